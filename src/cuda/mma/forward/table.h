// Which forward kernels are compiled: one table per path, in the order of preference.
#pragma once

#include <array>

#include "cuda/mma/forward/config.h"

namespace tessera::cuda::mma::forward {

// From sm_80 on. head_dim 64 and 128: two thread blocks of four warps share a multiprocessor. A
// warp has 32 rows, so that every operand read from shared memory feeds two products. The first
// kernel for 128 requires 196 KB. head_dim 256: pairs of warps where 225 KB are available; the next
// kernel fits 8.6 and 8.9. Dropout needs whole calls of the random generator: chunks of 32.
template <ptx::Half16 Type>
inline constexpr std::array kConfigs = {
    Config{.head_dim = 64, .search = 64, .q_in_registers = true, .type = Type},
    Config{.head_dim = 64, .chunk = 64, .type = Type, .variant = Variant::featured, .bias = false},
    Config{.head_dim = 64, .type = Type, .variant = Variant::featured},
    Config{.head_dim = 64, .type = Type, .variant = Variant::dropout},
    Config{.head_dim = 128, .type = Type},
    Config{.head_dim = 128, .block_k = 32, .chunk = 16, .search = 32, .type = Type},
    Config{.head_dim = 128, .type = Type, .variant = Variant::featured, .bias = false},
    Config{.head_dim = 128, .block_k = 32, .type = Type, .variant = Variant::featured},
    Config{.head_dim = 128, .block_k = 32, .type = Type, .variant = Variant::dropout},
    Config{.head_dim = 256, .warps = 8, .pairs = true, .thread_blocks = 1, .type = Type},
    Config{.head_dim = 256, .m_tiles = 1, .stages = 1, .type = Type},
    Config{.head_dim = 256, .m_tiles = 1, .block_k = 32, .type = Type, .variant = Variant::featured},
    Config{.head_dim = 256, .m_tiles = 1, .block_k = 32, .type = Type, .variant = Variant::dropout},
};

// Turing: fp16 by m16n8k8, 64 KB of shared memory per multiprocessor. Q lives in registers only, so
// that two thread blocks share a multiprocessor at head_dim 64 and two stages fit at 128.
constexpr Config turing(Config c) {
  c.thread_blocks = c.head_dim == 64 ? 2 : 1;
  c.type = ptx::Half16::fp16;
  c.mma = ptx::Mma::k8;
  if (c.head_dim == 128) c.m_tiles = 1, c.warps = 8, c.block_k = 32;
  if (c.head_dim == 256) c.m_tiles = 1, c.block_k = 16, c.chunk = 16, c.stages = 1;
  return c;
}

inline constexpr std::array kTuringConfigs = {
    turing({.head_dim = 64, .block_k = 32, .chunk = 16, .q_in_registers = true, .q_makes_room = true}),
    turing({.head_dim = 64, .variant = Variant::featured}),
    turing({.head_dim = 64, .variant = Variant::dropout}),
    turing({.head_dim = 128, .chunk = 16, .q_in_registers = true, .q_makes_room = true}),
    turing({.head_dim = 128, .chunk = 16, .stages = 1, .variant = Variant::featured}),
    turing({.head_dim = 128, .stages = 1, .variant = Variant::dropout}),
    turing({.head_dim = 256}),
    turing({.head_dim = 256, .variant = Variant::featured}),
    turing({.head_dim = 256, .variant = Variant::dropout}),
};

}  // namespace tessera::cuda::mma::forward
