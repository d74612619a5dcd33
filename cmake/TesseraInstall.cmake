# Headers, both libraries, the command, the CMake package and pkg-config.
include(CMakePackageConfigHelpers)
set(_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/tessera")

install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/tessera" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILES_MATCHING PATTERN "*.h")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")

# Two export sets: what the static library links (the CUDA runtime) must be found by its users,
# while the shared library needs nothing from them.
install(TARGETS tessera EXPORT tesseraTargets)
install(EXPORT tesseraTargets NAMESPACE tessera:: DESTINATION "${_package_dir}")
install(TARGETS tessera_static EXPORT tesseraStaticTargets)
install(EXPORT tesseraStaticTargets NAMESPACE tessera:: DESTINATION "${_package_dir}")

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
  DESTINATION "${_package_dir}")

# The .pc file finds its prefix from its own place, so that an installed tree can be moved.
file(RELATIVE_PATH _prefix_from_pc "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
string(REGEX REPLACE "/$" "" _prefix_from_pc "${_prefix_from_pc}")
set(_libs_private "-lstdc++ -lm -lpthread -ldl")
if(TESSERA_CUDA_ENABLED)
  string(APPEND _libs_private " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt")
endif()
configure_file("${PROJECT_SOURCE_DIR}/cmake/tessera.pc.in" "${PROJECT_BINARY_DIR}/package/tessera.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/package/tessera.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
