# Writes the commit of the source tree into a header, when it has changed. Run at build time:
#   cmake -DSOURCE=<source tree> -DHEADER=<file> -P commit.cmake
execute_process(
  COMMAND git -C "${SOURCE}" describe --always --dirty --abbrev=12 "--exclude=*"
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(commit "unknown")
endif()
set(text "#pragma once\n#define TESSERA_COMMIT \"${commit}\"\n")
set(before "")
if(EXISTS "${HEADER}")
  file(READ "${HEADER}" before)
endif()
if(NOT text STREQUAL before)
  file(WRITE "${HEADER}" "${text}")
endif()
