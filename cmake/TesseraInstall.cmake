# Headers, both libraries, the command, the CMake package and pkg-config.
include(CMakePackageConfigHelpers)
set(_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/tessera")

install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/tessera" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILES_MATCHING PATTERN "*.h")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")

# Two export sets: what the static library links (OpenBLAS, the CUDA runtime) must be found by its users,
# while the shared library needs nothing from them.
install(TARGETS tessera EXPORT tesseraTargets)
install(EXPORT tesseraTargets NAMESPACE tessera:: DESTINATION "${_package_dir}")
install(TARGETS tessera_static EXPORT tesseraStaticTargets)
install(EXPORT tesseraStaticTargets NAMESPACE tessera:: DESTINATION "${_package_dir}")

# Where OpenBLAS lies off the loader's path: the command is a program of its own and names the flavour it was
# built with. The library does so only outside the distribution's openblas-* folders: among those the system's
# alternatives decide, for the host program and for us alike.
set(_openblas_private)
if(TESSERA_OPENBLAS_ENABLED)
  get_filename_component(_openblas_dir "${TESSERA_OPENBLAS_LIBRARY}" DIRECTORY)
  set(_openblas_private "-lopenblas")
  if(NOT _openblas_dir IN_LIST CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES)
    set(_openblas_private "-L${_openblas_dir} -lopenblas")
    if(TARGET tessera_lab)
      set_property(TARGET tessera_lab APPEND PROPERTY INSTALL_RPATH "${_openblas_dir}")
    endif()
    if(NOT _openblas_dir MATCHES "/openblas-[a-z0-9]+$")
      set_property(TARGET tessera APPEND PROPERTY INSTALL_RPATH "${_openblas_dir}")
    endif()
  endif()
endif()

if(TARGET tessera_lab)
  install(TARGETS tessera_lab RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/tesseraConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/package/tesseraConfig.cmake" INSTALL_DESTINATION "${_package_dir}")
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(_compatibility SameMinorVersion)
else()
  set(_compatibility SameMajorVersion)
endif()
write_basic_package_version_file("${PROJECT_BINARY_DIR}/package/tesseraConfigVersion.cmake"
  COMPATIBILITY ${_compatibility})
install(FILES
  "${PROJECT_BINARY_DIR}/package/tesseraConfig.cmake"
  "${PROJECT_BINARY_DIR}/package/tesseraConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/FindTesseraOpenBLAS.cmake"
  DESTINATION "${_package_dir}")

# The .pc file finds its prefix from its own place, so that an installed tree can be moved.
file(RELATIVE_PATH _prefix_from_pc "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
string(REGEX REPLACE "/$" "" _prefix_from_pc "${_prefix_from_pc}")
set(_libs_private "-lstdc++ -lm -lpthread ${_openblas_private}")
if(TESSERA_CUDA_ENABLED)
  string(APPEND _libs_private " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt")
endif()
configure_file("${PROJECT_SOURCE_DIR}/cmake/tessera.pc.in" "${PROJECT_BINARY_DIR}/package/tessera.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/package/tessera.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
