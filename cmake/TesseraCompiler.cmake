# The language level, the warnings of developer mode and the sanitizers.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12)
  message(FATAL_ERROR "Tessera needs GCC 12 or newer; found ${CMAKE_CXX_COMPILER_VERSION} (${CMAKE_CXX_COMPILER})")
elseif(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 15)
  message(FATAL_ERROR "Tessera needs Clang 15 or newer; found ${CMAKE_CXX_COMPILER_VERSION} (${CMAKE_CXX_COMPILER})")
endif()

if(TESSERA_SANITIZE)
  set(_sanitize "-fsanitize=${TESSERA_SANITIZE}" -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:${_sanitize}>")
  add_link_options(${_sanitize})
endif()

# Flags of our own targets, for developers: a warning of a compiler that we have not met must not end a user's build.
# -Wsign-conversion is left out: index arithmetic mixes std::ptrdiff_t and
# std::size_t everywhere, and the casts it asks for hide more than they show. Sanitizer builds keep the
# warnings but not -Werror, because instrumentation makes GCC's flow analysis report false positives.
function(tessera_developer_options target)
  if(NOT TESSERA_DEVELOPER)
    return()
  endif()
  set(warnings -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wundef)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC 12 and 13 raise these inside the standard library for correct code (string concatenation, sorting a
    # small array; GCC bug 105651 and its relatives). AddressSanitizer looks for the same mistakes.
    list(APPEND warnings -Wno-restrict -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
    # Notes on Arm about a calling convention that changed between GCC 9 and 10.
    list(APPEND warnings -Wno-psabi)
  else()
    # Clang reports GCC's own std::stable_sort, which calls a function that its library deprecates.
    list(APPEND warnings -Wno-deprecated-declarations)
  endif()
  set(cxx_warnings -Wnon-virtual-dtor -Woverloaded-virtual)
  if(NOT TESSERA_SANITIZE)
    list(APPEND warnings -Werror)
  endif()
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:C,CXX>:${warnings}>" "$<$<COMPILE_LANGUAGE:CXX>:${cxx_warnings}>")
endfunction()

# For programs around the library, whose speed does not matter but whose compile time does. `level` is the
# optimisation in ordinary builds ("" keeps that of the build type); sanitizer builds do without, which halves
# their compile time.
function(tessera_light_optimisation target level)
  if(TESSERA_SANITIZE)
    target_compile_options(${target} PRIVATE -O0)
  elseif(level AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
    target_compile_options(${target} PRIVATE ${level})
  endif()
endfunction()
