/// \file
/// The version of the library, stated in one place: the build reads it from here.
#pragma once

/// The first number of the version: changes with incompatible interfaces.
#define TESSERA_VERSION_MAJOR 0
/// The second number: new features; before 1.0 also incompatible changes.
#define TESSERA_VERSION_MINOR 1
/// The third number: corrections only.
#define TESSERA_VERSION_PATCH 0

/// The version of this header as one number, for `#if`: 10203 is 1.2.3.
#define TESSERA_VERSION (TESSERA_VERSION_MAJOR * 10000 + TESSERA_VERSION_MINOR * 100 + TESSERA_VERSION_PATCH)

#ifdef __cplusplus

#include "tessera/export.h"

namespace tessera {

/// Returns the version of the linked library as "major.minor.patch". Never null.
[[nodiscard]] TESSERA_API const char* version() noexcept;

}  // namespace tessera

#endif
