// How a Hopper backward kernel is cut, and what it is told at run time. Host code: also compiled without nvcc.
#pragma once

#if TESSERA_HAVE_CUDA
#include <cuda.h>
#endif

#include <cstdint>

#include "core/task_order.h"
#include "cuda/common/step_cursor.h"
#include "cuda/mma/backward/arguments.h"
#include "cuda/sm90/common/layout.h"

namespace tessera::cuda::hopper {

using namespace sm90;

struct BackwardConfig {
  int head_dim = 64;  // 64 or 128, of q, k and v: what the problem has not arrives as zero
  int block_q = 128;  // queries in a step; warp groups share dQ by queries (128) or by columns (64)
  bool dropout = false;
  bool turns = true;  // warp groups issue their products in turn
  int registers = 240, loader_registers = 24;
  bool bounded_waits = false;  // a wait that takes too long ends the kernel with a message: for tests
  ptx::Half16 type = ptx::Half16::bf16;

  static constexpr int kGroups = 2;       // warp groups that compute, 64 keys each; one more loads
  static constexpr int kKeyStages = 2;    // the next tile's K and V arrive during this one
  static constexpr int kQueryStages = 2;  // steps of Q, dO and statistics
  static constexpr int kScoreStages = 2;  // steps of dS

  constexpr int block_k() const { return kGroups * kGroupRows; }
  constexpr int threads() const { return (kGroups + 1) * kWarpGroup; }
  constexpr int warps() const { return 4 * kGroups; }                   // that compute
  constexpr int key_bytes() const { return block_k() * head_dim * 2; }  // of K or V, as the following
  constexpr int query_bytes() const { return block_q * head_dim * 2; }
  constexpr int score_bytes() const { return block_q * block_k() * 2; }
  constexpr int statistics_bytes() const { return block_q * 2 * 4; }
  constexpr int shared_bytes() const {
    constexpr int kBarriersAndTiles = 640;
    return 2 * kKeyStages * key_bytes() + kQueryStages * (2 * query_bytes() + statistics_bytes()) +
           kScoreStages * score_bytes() + (dropout ? warps() * (32 * 2 * 2 + 40) : 0) + kBarriersAndTiles;
  }
};

constexpr bool valid(const BackwardConfig& c) {
  constexpr int kRegisters = 65536, kSharedBytes = 227 * 1024;
  const int at_launch = kRegisters / c.threads() / 8 * 8;
  return c.kGroups * c.registers + c.loader_registers <= at_launch * (c.kGroups + 1) &&
         c.registers % 8 == 0 && c.loader_registers % 8 == 0 && c.shared_bytes() <= kSharedBytes &&
         c.block_q * c.head_dim == 2 * 64 * 64;  // a warp group's share of dQ: 64 x 64
}

#if TESSERA_HAVE_CUDA

struct BackwardArguments {
  CUtensorMap q, k, v, grad_out, grad_k, grad_v;
  flash2::BackwardArguments
      call;  // order: of the tiles of keys; ticket: tiles given out beyond the first of each thread block
  core::DiagonalRule diagonals;
  std::uint32_t* report;  // bounded waits: 4 words that the host can read
};

#else
struct BackwardArguments;
#endif

using BackwardKernel = void (*)(BackwardArguments);

struct BackwardInstance {
  BackwardConfig config;
  BackwardKernel kernel;
};

}  // namespace tessera::cuda::hopper
