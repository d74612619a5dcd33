# What `cmake --install` puts where, in components:
#   runtime      the shared library and the `tessera` command: what a program needs to run
#   development  headers, the static library, the CMake package and pkg-config: what a build needs
#   python       the extension module, for wheels only (python/CMakeLists.txt)
# Without --component runtime and development are installed. The target `uninstall` removes them again.
include(CMakePackageConfigHelpers)
set(_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/tessera")

install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/tessera" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  COMPONENT development FILES_MATCHING PATTERN "*.h")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT runtime)

# Two export sets: users of the static library must find what it links (the CUDA runtime), while the
# shared library needs nothing from them.
install(TARGETS tessera EXPORT tesseraTargets
  LIBRARY COMPONENT runtime NAMELINK_COMPONENT development)
install(EXPORT tesseraTargets NAMESPACE tessera:: DESTINATION "${_package_dir}" COMPONENT development)
install(TARGETS tessera_static EXPORT tesseraStaticTargets ARCHIVE COMPONENT development)
install(EXPORT tesseraStaticTargets NAMESPACE tessera:: DESTINATION "${_package_dir}" COMPONENT development)

if(TARGET tessera_lab)
  install(TARGETS tessera_lab RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT runtime)
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
  DESTINATION "${_package_dir}" COMPONENT development)

# The .pc file derives its prefix from its own location, so that an installed tree can be moved.
file(RELATIVE_PATH _prefix_from_pc "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
string(REGEX REPLACE "/$" "" _prefix_from_pc "${_prefix_from_pc}")
set(_libs_private "-lstdc++ -lm -lpthread -ldl")
if(TESSERA_CUDA_ENABLED)
  string(APPEND _libs_private " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt")
endif()
configure_file("${PROJECT_SOURCE_DIR}/cmake/tessera.pc.in" "${PROJECT_BINARY_DIR}/package/tessera.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/package/tessera.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig"
  COMPONENT development)

if(PROJECT_IS_TOP_LEVEL)
  add_custom_target(uninstall
    COMMAND "${CMAKE_COMMAND}" "-DBUILD=${PROJECT_BINARY_DIR}" -P "${PROJECT_SOURCE_DIR}/cmake/uninstall.cmake"
    COMMENT "Removing the files of the last installation" VERBATIM)
endif()
