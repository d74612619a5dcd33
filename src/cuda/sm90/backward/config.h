// How a Hopper backward kernel is cut, and its arguments. Host code: also compiled without nvcc.
#pragma once

#if TESSERA_HAVE_CUDA
#include <cuda.h>
#endif

#include <cstdint>

#include "cuda/common/backward_call.h"
#include "cuda/common/ptx/types.h"
#include "cuda/common/step_cursor.h"
#include "cuda/sm90/common/layout.h"

namespace tessera::cuda::sm90::backward {

struct Config {
  int head_dim = 64;  // 64 or 128, of q, k and v; columns that the problem does not have arrive as zero
  int block_q = 128;  // queries in a step; warp groups divide dQ by queries (128) or by columns (64)
  bool dropout = false;
  bool alternate = true;  // warp groups take turns to issue their products
  int registers = 240, loader_registers = 24;
  bool bounded_waits = false;  // for tests: a wait that takes too long ends the kernel and reports itself
  ptx::Half16 type = ptx::Half16::bf16;

  static constexpr int kDropoutHeadBytes = 80;
  static constexpr int kGroups = 2;       // warp groups that compute, 64 keys each; one more loads
  static constexpr int kKeyStages = 2;    // the next tile's K and V arrive during this one
  static constexpr int kQueryStages = 2;  // steps of Q, dO and statistics
  static constexpr int kScoreStages = 2;  // steps of dS

  constexpr int element_bytes() const { return ptx::element_bytes(type); }
  constexpr int panel() const { return panel_columns(element_bytes()); }
  constexpr int block_k() const { return kGroups * kGroupRows; }
  constexpr int threads() const { return (kGroups + 1) * kWarpGroup; }
  constexpr int warps() const { return 4 * kGroups; }  // that compute
  // One stage of K or V, of Q or dO, of dS, and of statistics (LSE and delta).
  constexpr int key_bytes() const { return block_k() * head_dim * element_bytes(); }
  constexpr int query_bytes() const { return block_q * head_dim * element_bytes(); }
  constexpr int score_bytes() const { return block_q * block_k() * element_bytes(); }
  constexpr int statistics_bytes() const { return block_q * 2 * static_cast<int>(sizeof(float)); }
  // Two buffers with 16 bits of every lane, and a DropoutHead for every two warps.
  constexpr int dropout_bytes() const {
    return warps() * (2 * 32 * static_cast<int>(sizeof(std::uint16_t)) + kDropoutHeadBytes / 2);
  }
  constexpr int shared_bytes() const {
    constexpr int kBarriersAndTiles = 640;
    return 2 * kKeyStages * key_bytes() + kQueryStages * (2 * query_bytes() + statistics_bytes()) +
           kScoreStages * score_bytes() + (dropout ? dropout_bytes() : 0) + kBarriersAndTiles;
  }
};

// Whether registers and shared memory allow a config: for static_assert.
constexpr bool valid(const Config& c) {
  constexpr int kRegisters = 65536, kSharedBytes = 227 * 1024;
  const int at_launch = kRegisters / c.threads() / 8 * 8;
  return c.kGroups * c.registers + c.loader_registers <= at_launch * (c.kGroups + 1) &&
         c.registers % 8 == 0 && c.loader_registers % 8 == 0 && c.shared_bytes() <= kSharedBytes &&
         c.block_q * c.head_dim == 2 * 64 * 64;  // two warp groups compute 64 x 64 of dQ each
}

#if TESSERA_HAVE_CUDA

struct Arguments {
  CUtensorMap q, k, v, grad_out, grad_k, grad_v;
  // The order is that of the tiles of keys. The ticket counts the tiles taken beyond the first of
  // each thread block.
  BackwardCall call;
  DiagonalRule diagonals;
  std::uint32_t* report;  // bounded waits: 4 words that the host can read
};

#else
struct Arguments;
#endif

using Kernel = void (*)(Arguments);

// An instance: how it is cut, and the function to launch.
struct Instance {
  Config config;
  Kernel kernel;
};

}  // namespace tessera::cuda::sm90::backward
