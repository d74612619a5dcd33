# Cross-compiles for 64-bit Arm with the compiler of the distribution and runs the programs under qemu-user.
# QEMU_CPU chooses the emulated processor, for example `max,sve256=on`: see tests/CMakeLists.txt.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

set(_root /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH "${_root}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_CROSSCOMPILING_EMULATOR "qemu-aarch64;-L;${_root}")

# Headers that serve every architecture come from the host, one folder at a time: all of /usr/include would
# bring the C library of the host with it.
set(TESSERA_HOST_HEADERS "${CMAKE_BINARY_DIR}/host-headers")
file(MAKE_DIRECTORY "${TESSERA_HOST_HEADERS}")
foreach(_folder IN ITEMS hwy dlpack)
  if(EXISTS "/usr/include/${_folder}" AND NOT EXISTS "${TESSERA_HOST_HEADERS}/${_folder}")
    file(CREATE_LINK "/usr/include/${_folder}" "${TESSERA_HOST_HEADERS}/${_folder}" SYMBOLIC)
  endif()
endforeach()
set(TESSERA_HIGHWAY_INCLUDE_DIR "${TESSERA_HOST_HEADERS}" CACHE PATH "")
set(TESSERA_DLPACK_INCLUDE_DIR "${TESSERA_HOST_HEADERS}" CACHE PATH "")
# Debian's libgtest-dev has its sources here; its libraries are those of the host.
set(TESSERA_GTEST_SOURCE_DIR "/usr/src/googletest/googletest" CACHE PATH "")
