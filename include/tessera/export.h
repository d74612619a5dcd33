/// \file
/// Symbol visibility. The library is built with hidden visibility: what carries TESSERA_API is the
/// API.
#pragma once

/// Marks what the shared library exports.
#define TESSERA_API __attribute__((visibility("default")))
