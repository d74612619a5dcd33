// Which Hopper forward kernels are compiled.
#pragma once

#include <array>

#include "cuda/sm90/forward/config.h"

namespace tessera::cuda::sm90::forward {

// What won on an H200 (docs/kernels/hopper-forward.md). head_dim 64: four warp groups leave no registers for a second P, but
// their tiles of 256 queries take the fewest changes; with many keys per tile three groups with it are faster. head_dim 96: as
// 128, with three quarters of the products. head_dim 256: one Q has room; speculation gains nothing where the tensor cores are
// that busy.
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
           .softmax = Softmax::in_place,
           .turns = false,
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
           .softmax = Softmax::search,
           .bounded_waits = Bounded,
           .type = Type},
};

// The first config is for calls whose rows see at least so many keys; the second wins below (H200: equal at about 6k).
inline constexpr int kManyKeys = 6144;
// Up to so many keys under a mask narrow steps waste less of the diagonal: the fifth config (H200: +9 % at 512, equal at 1024),
// also in place of the third.
inline constexpr int kFewKeys = 768;

}  // namespace tessera::cuda::sm90::forward
