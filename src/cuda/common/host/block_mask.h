// Block masks in the memory of a GPU. Compiled in every build.
#pragma once

#include "core/problem.h"
#include "tessera/mask.h"

namespace tessera::cuda {

// The mask as kernels on a GPU read it. The first call for a GPU copies it there and
// waits for the copy, on a stream of its own: neither the caller's stream nor a
// capture in progress is touched. The copy lives as long as the mask. Throws Error:
// unsupported (no such GPU), out_of_memory, device_failure.
core::BlockView device_blocks(const BlockMask& mask, int device);

}  // namespace tessera::cuda
