# Finds everything outside the repository. Each optional part leaves two variables for the summary:
# TESSERA_<PART>_ENABLED and TESSERA_<PART>_REASON, a phrase that says why it is on or off.

# Ends the configuration when the user asked for a part (ON) that is not there.
function(_tessera_require part message)
  if("${TESSERA_${part}}" STREQUAL "ON")
    message(FATAL_ERROR "TESSERA_${part}=ON, but ${message}. Run `tools/setup test`, or set TESSERA_${part}=OFF.")
  endif()
endfunction()

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

# --- DLPack: the C ABI takes its tensors; a single header ---------------------------------------------
find_path(TESSERA_DLPACK_INCLUDE_DIR dlpack/dlpack.h)
mark_as_advanced(TESSERA_DLPACK_INCLUDE_DIR)
if(NOT TESSERA_DLPACK_INCLUDE_DIR)
  message(FATAL_ERROR "DLPack (dlpack/dlpack.h) was not found. Run `tools/setup run` (package libdlpack-dev), or set "
    "TESSERA_DLPACK_INCLUDE_DIR to the folder that holds dlpack/.")
endif()

# --- Highway: vectors in the CPU kernels; headers only ------------------------------------------------
find_path(TESSERA_HIGHWAY_INCLUDE_DIR hwy/highway.h)
mark_as_advanced(TESSERA_HIGHWAY_INCLUDE_DIR)
if(NOT TESSERA_HIGHWAY_INCLUDE_DIR)
  message(FATAL_ERROR "Google Highway (hwy/highway.h) was not found. Run `tools/setup run` (package libhwy-dev).")
endif()

# Targets that the kernels are not compiled for: SSSE3 alone is not worth a copy, and SVE2 or SVE of one length
# would add nothing that they use.
set(TESSERA_HIGHWAY_DEFINITIONS "HWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_SVE2|HWY_SVE_256|HWY_SVE2_128)")

# --- CUDA ---------------------------------------------------------------------------------------------
set(TESSERA_CUDA_ENABLED OFF)
# AUTO takes the compiler that the user chose: nvcc on the PATH, or one that a variable names. A toolkit that merely lies
# on the disk stays unused, because minutes of compiling should not come as a surprise.
find_program(TESSERA_NVCC nvcc NO_CMAKE_PATH NO_CMAKE_ENVIRONMENT_PATH NO_CMAKE_SYSTEM_PATH)
mark_as_advanced(TESSERA_NVCC)
if(NOT TESSERA_CUDA)
  set(TESSERA_CUDA_REASON "TESSERA_CUDA=OFF")
elseif("${TESSERA_CUDA}" STREQUAL "AUTO" AND NOT TESSERA_NVCC AND NOT CMAKE_CUDA_COMPILER AND NOT CUDAToolkit_ROOT
       AND NOT DEFINED ENV{CUDACXX} AND NOT DEFINED ENV{CUDAToolkit_ROOT})
  set(TESSERA_CUDA_REASON "nvcc is not on the PATH; TESSERA_CUDA=ON or CUDACXX=<nvcc> builds the CUDA backend")
else()
  find_package(CUDAToolkit QUIET)
  if(NOT CUDAToolkit_FOUND OR NOT TARGET CUDA::cudart_static)
    _tessera_require(CUDA "no CUDA toolkit (nvcc and the static runtime) was found")
    set(TESSERA_CUDA_REASON "no CUDA toolkit found (looked for nvcc on PATH and under CUDAToolkit_ROOT)")
  else()
    file(GLOB_RECURSE _cuda_host CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/cuda/*.cpp")
    list(FILTER _cuda_host EXCLUDE REGEX "_test\\.cpp$")
    file(GLOB_RECURSE _cuda_kernels CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/cuda/*.cu")
    if(_cuda_kernels)
      enable_language(CUDA)
      if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION) # CMake 3.25 does not know that nvcc has C++20
        set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      endif()
      set(CMAKE_CUDA_STANDARD 20)
      set(CMAKE_CUDA_STANDARD_REQUIRED ON)
      set(CMAKE_CUDA_EXTENSIONS OFF)
    endif()
    set(TESSERA_CUDA_ENABLED ON)
    list(LENGTH _cuda_kernels _kernel_count)
    list(LENGTH _cuda_host _host_count)
    set(TESSERA_CUDA_REASON
      "toolkit ${CUDAToolkit_VERSION}, ${_host_count} host and ${_kernel_count} kernel files")
    if(_host_count EQUAL 0 AND _kernel_count EQUAL 0)
      set(TESSERA_CUDA_ENABLED OFF)
      set(TESSERA_CUDA_REASON "toolkit ${CUDAToolkit_VERSION} found, but this version has no CUDA sources")
    endif()
  endif()
endif()

# --- the `tessera` command ----------------------------------------------------------------------------
set(TESSERA_LAB_ENABLED OFF)
if(NOT TESSERA_LAB)
  set(TESSERA_LAB_REASON "TESSERA_LAB=OFF")
else()
  set(_lab_missing)
  foreach(package IN ITEMS fmt CLI11 nlohmann_json)
    find_package(${package} CONFIG QUIET)
    if(NOT ${package}_FOUND)
      list(APPEND _lab_missing ${package})
    endif()
  endforeach()
  # Chart.js, which the build puts into the pages of `tessera report`; Debian: libjs-chart.js.
  find_file(TESSERA_CHART_JS NAMES chart.min.js Chart.min.js chart.umd.js
    PATHS /usr/share/javascript PATH_SUFFIXES chart.js chart.js/dist NO_CMAKE_FIND_ROOT_PATH)
  mark_as_advanced(TESSERA_CHART_JS)
  if(NOT TESSERA_CHART_JS)
    list(APPEND _lab_missing "Chart.js (package libjs-chart.js, or TESSERA_CHART_JS=a chart.min.js)")
  endif()
  list(JOIN _lab_missing ", " _lab_missing)
  if(NOT _lab_missing)
    set(TESSERA_LAB_ENABLED ON)
    set(TESSERA_LAB_REASON "CLI11 ${CLI11_VERSION}, fmt ${fmt_VERSION}, nlohmann-json ${nlohmann_json_VERSION}")
  elseif(TESSERA_LAB STREQUAL "AUTO")
    set(TESSERA_LAB_REASON "not found: ${_lab_missing}; tools/setup run installs them")
  else()
    message(FATAL_ERROR "the `tessera` command needs ${_lab_missing}: run `tools/setup run`, or set TESSERA_LAB=OFF")
  endif()
endif()

# --- tests --------------------------------------------------------------------------------------------
set(TESSERA_TESTS_ENABLED OFF)
if(TESSERA_TESTS STREQUAL "AUTO" AND NOT PROJECT_IS_TOP_LEVEL)
  set(TESSERA_TESTS_REASON "part of another project")
elseif(NOT TESSERA_TESTS)
  set(TESSERA_TESTS_REASON "TESSERA_TESTS=OFF")
else()
  if(TESSERA_GTEST_SOURCE_DIR) # cross builds: the libraries of the system are for another processor
    add_subdirectory("${TESSERA_GTEST_SOURCE_DIR}" "${PROJECT_BINARY_DIR}/googletest" EXCLUDE_FROM_ALL SYSTEM)
    set(GTest_FOUND TRUE)
    set(GTest_VERSION "from ${TESSERA_GTEST_SOURCE_DIR}")
  else()
    find_package(GTest CONFIG QUIET)
  endif()
  find_package(Python3 COMPONENTS Interpreter QUIET)
  if(GTest_FOUND AND Python3_FOUND)
    set(TESSERA_TESTS_ENABLED ON)
    set(TESSERA_TESTS_REASON "GoogleTest ${GTest_VERSION}")
  else()
    _tessera_require(TESTS "GoogleTest or Python 3 was not found")
    set(TESSERA_TESTS_REASON "GoogleTest or Python 3 not found; tools/setup test installs them")
  endif()
endif()

# pytest lives in .venv, which tools/setup makes.
find_program(TESSERA_PYTEST pytest PATHS "${PROJECT_SOURCE_DIR}/.venv/bin" NO_DEFAULT_PATH)
mark_as_advanced(TESSERA_PYTEST)

# --- the Python package -------------------------------------------------------------------------------
# In a wheel's build scikit-build-core says which Python; otherwise it is the one of .venv, which tools/setup makes,
# with nanobind in it.
set(TESSERA_PYTHON_ENABLED OFF)
if(NOT TESSERA_PYTHON)
  set(TESSERA_PYTHON_REASON "TESSERA_PYTHON=OFF")
else()
  if(NOT Python_EXECUTABLE AND EXISTS "${PROJECT_SOURCE_DIR}/.venv/bin/python")
    set(Python_EXECUTABLE "${PROJECT_SOURCE_DIR}/.venv/bin/python")
  endif()
  find_package(Python 3.10 COMPONENTS Interpreter Development.Module OPTIONAL_COMPONENTS Development.SABIModule QUIET)
  if(Python_FOUND AND NOT nanobind_DIR)
    execute_process(COMMAND "${Python_EXECUTABLE}" -m nanobind --cmake_dir
      OUTPUT_VARIABLE nanobind_DIR OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  if(Python_FOUND AND nanobind_DIR)
    find_package(nanobind CONFIG QUIET)
  endif()
  if(nanobind_FOUND)
    set(TESSERA_PYTHON_ENABLED ON)
    set(TESSERA_PYTHON_REASON "Python ${Python_VERSION}, nanobind ${nanobind_VERSION}")
  else()
    _tessera_require(PYTHON "Python 3.10 or newer with its headers (python3-dev) or nanobind was not found")
    set(TESSERA_PYTHON_REASON "Python's headers (python3-dev) or nanobind not found; tools/setup python installs them")
  endif()
endif()
