// The CUDA kernels, for the registry. Compiled in every build; without CUDA there are none.
#pragma once

#include <span>

#include "registry/kernel.h"

namespace tessera::cuda {

std::span<const registry::Kernel> kernels();

}  // namespace tessera::cuda
