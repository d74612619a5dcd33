# Writes a C++ source with the content of files as strings:
#   cmake -DOUTPUT=x.cpp -DNAMESPACE=a::b "-DFILES=name=path;name=path" -P EmbedFiles.cmake
set(text "// Made by cmake/EmbedFiles.cmake.\nnamespace ${NAMESPACE} {\n")
foreach(entry IN LISTS FILES)
  string(REGEX MATCH "^([a-z_]+)=(.*)$" _ "${entry}")
  set(name "${CMAKE_MATCH_1}")
  file(READ "${CMAKE_MATCH_2}" content)
  string(FIND "${content}" ")embedded\"" end)
  if(NOT end EQUAL -1)
    message(FATAL_ERROR "${CMAKE_MATCH_2} contains the mark that ends it")
  endif()
  string(APPEND text "extern const char* const ${name};\nconst char* const ${name} = R\"embedded(${content})embedded\";\n")
endforeach()
file(WRITE "${OUTPUT}" "${text}}\n")
