// The tile sizes and options of a forward kernel, and its arguments. Host code: also compiled
// without nvcc.
#pragma once

#include <cstdint>

#include "core/problem.h"
#include "core/task_order.h"
#include "cuda/common/features.h"
#include "cuda/common/grid_order.h"
#include "cuda/common/ptx/types.h"
#include "cuda/common/step_cursor.h"

namespace tessera::cuda::mma::forward {

inline constexpr int kStaticBytes = 1536;  // shared memory beside the tiles, rounded up
inline constexpr int kMostWarps = 8;

struct Config {
  int head_dim = 64;  // 64, 128 or 256: the larger of d_qk and d_v fits
  int m_tiles = 2;    // 16-row tiles per warp
  int warps = 4;
  int block_k = 64;             // keys per step
  int chunk = 32;               // columns of scores that a warp holds at a time
  int search = 0;               // the same where a step searches maxima; 0: as `chunk`
  int stages = 2;               // steps of K and V in shared memory
  bool pairs = false;           // pairs of warps share their rows (wide_kernel.cuh)
  bool q_in_registers = false;  // otherwise every step reads Q from shared memory
  bool q_makes_room = false;    // with Q in registers: K and V overwrite it in shared memory
  int thread_blocks = 2;
  ptx::Half16 type = ptx::Half16::bf16;
  ptx::Mma mma = ptx::Mma::k16;
  Variant variant = Variant::plain;
  bool bias = true;  // whether an instance with features supports a bias

  constexpr int element_bytes() const { return ptx::element_bytes(type); }
  constexpr int block_q() const { return 16 * m_tiles * warps / (pairs ? 2 : 1); }
  constexpr int search_width() const { return search == 0 ? chunk : search; }
  constexpr int threads() const { return 32 * warps; }
  constexpr int q_bytes() const { return block_q() * head_dim * element_bytes(); }
  // Of one tile of K, V or P.
  constexpr int kv_bytes() const { return block_k * head_dim * element_bytes(); }
  constexpr int probability_bytes() const { return block_q() * block_k * element_bytes(); }
  constexpr int tile_bytes() const {
    const int shared_by_pairs =
        pairs ? 2 * probability_bytes() + 2 * block_q() * static_cast<int>(sizeof(float)) : 0;
    const int kv = 2 * stages * kv_bytes();
    return (q_makes_room ? (q_bytes() > kv ? q_bytes() : kv) : q_bytes() + kv) + shared_by_pairs;
  }
  constexpr int bias_bytes() const { return stages * block_q() * block_k * element_bytes(); }
};

struct Arguments {
  core::Problem p;
  GridOrder order;
  DiagonalRule diagonals;
  ScoreFeatures features;
  std::uint32_t origin_row;      // of the random numbers of row 0
  std::uint32_t origin_group;    // the random numbers' group at column -column_shift
  Divider group;                 // query heads per key/value head
  int k_row_bytes, v_row_bytes;  // only valid for the plain variant
  int column_shift;              // steps begin where column + shift is a multiple of block_k
  bool q_aligned, k_aligned, v_aligned, out_aligned;
  bool bias_staged;  // the bias is copied to shared memory first
  bool speculate;
};

using Kernel = void (*)(Arguments);

// A compiled kernel and its config.
struct Instance {
  Config config;
  Kernel kernel;
};

}  // namespace tessera::cuda::mma::forward
