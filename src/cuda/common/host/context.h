// The CUDA context that a thread works in. In builds without CUDA there is none.
#pragma once

#include <cstdint>

namespace tessera::cuda {

// The number of the current context, which no other one of this process ever has: a context that is
// destroyed leaves its address to another one. Throws Error (device_failure).
std::uint64_t current_context_id();

}  // namespace tessera::cuda
