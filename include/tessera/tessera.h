/// \file
/// Tessera: exact attention, forward and backward, on CPUs and NVIDIA GPUs. This header includes all of it.
#pragma once

#include "tessera/attention.h"  // IWYU pragma: export
#include "tessera/error.h"      // IWYU pragma: export
#include "tessera/execution.h"  // IWYU pragma: export
#include "tessera/mask.h"       // IWYU pragma: export
#include "tessera/plan.h"       // IWYU pragma: export
#include "tessera/tensor.h"     // IWYU pragma: export
#include "tessera/version.h"    // IWYU pragma: export
