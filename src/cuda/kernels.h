// The CUDA kernels, for the registry. Compiled in every build: choosing among them needs no GPU and no CUDA.
#pragma once

#include <span>

#include "core/kernel.h"

namespace tessera::cuda {

std::span<const registry::Kernel> kernels();

// Whether there are any: in builds with CUDA, and for a thread that assumes a GPU (AssumedGpu).
bool kernels_exist();

}  // namespace tessera::cuda
