// The list of kernels for CPUs in the model's program: none.
#include "cpu/kernels.h"

namespace tessera::cpu {

std::span<const core::Kernel> kernels() { return {}; }

}  // namespace tessera::cpu
