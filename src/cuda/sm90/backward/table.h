// Which Hopper backward kernels are compiled.
#pragma once

#include <array>

#include "cuda/sm90/backward/config.h"

namespace tessera::cuda::hopper {

// With dropout and head_dim 128 the registers do not suffice: cuda.flash2 serves that.
template <ptx::Half16 Type, bool Bounded = false>
inline constexpr std::array kBackwardConfigs = {
    BackwardConfig{.bounded_waits = Bounded, .type = Type},
    BackwardConfig{.dropout = true, .bounded_waits = Bounded, .type = Type},
    BackwardConfig{.head_dim = 128, .block_q = 64, .bounded_waits = Bounded, .type = Type},
};

}  // namespace tessera::cuda::hopper
