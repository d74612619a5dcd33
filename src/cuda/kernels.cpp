#include "cuda/kernels.h"

namespace tessera::cuda {

std::span<const registry::Kernel> kernels() { return {}; }

}  // namespace tessera::cuda
