/// \file
/// The version of the library: the one place that states it. The build reads it from here.
#pragma once

/// The first number of the version: changes with incompatible interfaces.
#define TESSERA_VERSION_MAJOR 0
/// The second number: new features; before 1.0 also incompatible changes.
#define TESSERA_VERSION_MINOR 1
/// The third number: corrections only.
#define TESSERA_VERSION_PATCH 0

#ifdef __cplusplus

#include "tessera/export.h"

namespace tessera {

/// The version of the library that is linked, as "major.minor.patch". Never null.
TESSERA_API const char* version() noexcept;

}  // namespace tessera

#endif
