// Which Hopper backward kernels are compiled.
#pragma once

#include <array>

#include "cuda/sm90/backward/config.h"

namespace tessera::cuda::sm90::backward {

// There are too few registers for dropout at head_dim 128: cuda.flash2 supports that.
template <ptx::Half16 Type, bool Bounded = false>
inline constexpr std::array kConfigs = {
    Config{.bounded_waits = Bounded, .type = Type},
    Config{.dropout = true, .bounded_waits = Bounded, .type = Type},
    Config{.head_dim = 128, .block_q = 64, .bounded_waits = Bounded, .type = Type},
};

}  // namespace tessera::cuda::sm90::backward
