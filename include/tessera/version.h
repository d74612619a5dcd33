/// \file
/// The version of the library: the one place that states it. The build reads it from here.
#pragma once

#define TESSERA_VERSION_MAJOR 0
#define TESSERA_VERSION_MINOR 1
#define TESSERA_VERSION_PATCH 0

#ifdef __cplusplus

#include "tessera/export.h"

namespace tessera {

/// The version of the library that is linked, as "major.minor.patch". Never null.
TESSERA_API const char* version() noexcept;

}  // namespace tessera

#endif
