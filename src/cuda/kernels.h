// The CUDA kernels, as the registry sees them. Compiled in every build: choosing among them
// requires neither a GPU nor CUDA.
#pragma once

#include <span>

#include "core/kernel.h"

namespace tessera::cuda {

std::span<const core::Kernel> kernels();

// Whether this build has them, or this thread assumes a GPU (AssumedGpu).
bool kernels_exist();

}  // namespace tessera::cuda
