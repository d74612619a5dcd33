// Which Hopper forward kernels are compiled.
#pragma once

#include <array>

#include "cuda/sm90/forward/config.h"

namespace tessera::cuda::sm90::forward {

// The fastest configs on an H200 (docs/kernels/hopper-forward.md). head_dim 64: four warp groups
// leave no registers for a second P, but their tiles of 256 queries change least often. Where a
// tile has many keys, three groups with a second P are faster. head_dim 96: as 128, with three
// quarters of the products. head_dim 256: shared memory has room for one Q. Speculation gains
// nothing, because the tensor cores are busy anyway.
template <ptx::Half16 Type, bool Bounded = false>
inline constexpr std::array kConfigs = {
    Config{.qk_dim = 64,
           .v_dim = 64,
           .warp_groups = 3,
           .block_k = 96,
           .k_stages = 4,
           .v_stages = 4,
           .store_columns = 64,
           .registers = 160,
           .loader_registers = 32,
           .bounded_waits = Bounded,
           .type = Type},
    Config{.qk_dim = 64,
           .v_dim = 64,
           .warp_groups = 4,
           .block_k = 64,
           .k_stages = 4,
           .v_stages = 4,
           .softmax = Softmax::shared_registers,
           .alternate = false,
           .store_columns = 64,
           .registers = 112,
           .bounded_waits = Bounded,
           .type = Type},
    Config{.qk_dim = 96, .v_dim = 96, .bounded_waits = Bounded, .type = Type},
    Config{.bounded_waits = Bounded, .type = Type},
    Config{.block_k = 64, .k_stages = 4, .v_stages = 4, .bounded_waits = Bounded, .type = Type},
    Config{.qk_dim = 192, .block_k = 96, .q_stages = 1, .bounded_waits = Bounded, .type = Type},
    Config{.qk_dim = 256,
           .v_dim = 256,
           .block_k = 64,
           .q_stages = 1,
           .softmax = Softmax::exact_maximum,
           .bounded_waits = Bounded,
           .type = Type},
};

// head_dim 64: three warp groups are for calls whose rows see at least this many keys; below, four
// are faster (H200: equal at about 6k).
inline constexpr int kManyKeys = 6144;
// head_dim 96 and 128: with a mask and at most this many keys, steps of 64 keys waste less of the
// diagonal than steps of 128 (H200: +9 % at 512 keys, equal at 1024).
inline constexpr int kFewKeys = 768;

}  // namespace tessera::cuda::sm90::forward
