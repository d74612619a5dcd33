# Finds OpenBLAS and defines the imported target `tessera::openblas`. Used by the build and, installed beside
# tesseraConfig.cmake, by projects that link the static library.
#
# The serial flavour comes first: Tessera runs its own threads, and GEMMs that thread themselves inside them
# would be slower and would depend on the host's thread settings.
#
# It is linked as a shared library. Linked statically, OpenBLAS adds 25 MB to libtessera.so (all kernels of all
# x86 cores hang on one dispatch table, so --gc-sections removes nothing; Debian 12, OpenBLAS 0.3.21).
find_library(TESSERA_OPENBLAS_LIBRARY NAMES openblas PATH_SUFFIXES openblas-serial)
find_path(TESSERA_OPENBLAS_INCLUDE_DIR cblas.h PATH_SUFFIXES openblas-serial openblas)
mark_as_advanced(TESSERA_OPENBLAS_LIBRARY TESSERA_OPENBLAS_INCLUDE_DIR)

include(FindPackageHandleStandardArgs)
set(FPHSA_NAME_MISMATCHED TRUE)
find_package_handle_standard_args(TesseraOpenBLAS
  REQUIRED_VARS TESSERA_OPENBLAS_LIBRARY TESSERA_OPENBLAS_INCLUDE_DIR)

if(TesseraOpenBLAS_FOUND AND NOT TARGET tessera::openblas)
  add_library(tessera::openblas UNKNOWN IMPORTED)
  set_target_properties(tessera::openblas PROPERTIES
    IMPORTED_LOCATION "${TESSERA_OPENBLAS_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${TESSERA_OPENBLAS_INCLUDE_DIR}")
endif()
