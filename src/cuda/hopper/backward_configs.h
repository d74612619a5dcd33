// Which Hopper backward kernels are compiled.
#pragma once

#include <array>

#include "cuda/hopper/backward_config.h"

namespace tessera::cuda::hopper {

template <ptx::Half16 Type, bool Bounded = false>
inline constexpr std::array kBackwardConfigs = {
    BackwardConfig{.bounded_waits = Bounded, .type = Type},
    BackwardConfig{.dropout = true, .bounded_waits = Bounded, .type = Type},
    BackwardConfig{.head_dim = 128, .halves = 1, .bounded_waits = Bounded, .type = Type},
};

}  // namespace tessera::cuda::hopper
