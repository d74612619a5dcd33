// How a forward kernel is cut, and what it is told at run time. Host code: also compiled without nvcc.
#pragma once

#include <cstdint>

#include "core/problem.h"
#include "core/task_order.h"
#include "cuda/common/features.h"
#include "cuda/common/ptx/types.h"
#include "cuda/common/step_cursor.h"

namespace tessera::cuda::mma::forward {

inline constexpr int kStaticBytes = 1536;  // shared memory that a kernel takes beside its tiles, rounded up
inline constexpr int kMostWarps = 8;

struct Config {
  int head_dim = 64;  // 64, 128 or 256: the larger of d_qk and d_v fits
  int m_tiles = 2;    // 16-row tiles per warp
  int warps = 4;
  int block_k = 64;             // keys per step
  int chunk = 32;               // columns of scores held at a time
  int search = 0;               // the same where maxima are searched; 0: as many
  int stages = 2;               // copies of K and V under way
  bool pairs = false;           // of warps that share their rows (wide_kernel.cuh)
  bool q_in_registers = false;  // else read from shared memory for every step
  bool q_makes_room = false;    // once it is there, K and V take its place in shared memory
  int blocks_per_sm = 2;
  ptx::Half16 type = ptx::Half16::bf16;
  ptx::Mma mma = ptx::Mma::k16;
  Variant variant = Variant::plain;
  bool bias = true;  // whether an instance with features serves a bias, too

  constexpr int block_q() const { return 16 * m_tiles * warps / (pairs ? 2 : 1); }
  constexpr int search_width() const { return search == 0 ? chunk : search; }
  constexpr int threads() const { return 32 * warps; }
  constexpr int q_bytes() const { return block_q() * head_dim * 2; }
  constexpr int kv_bytes() const { return block_k * head_dim * 2; }            // of one tile
  constexpr int probability_bytes() const { return block_q() * block_k * 2; }  // of one tile of P
  constexpr int tile_bytes() const {
    const int shared_by_pairs = pairs ? 2 * probability_bytes() + 2 * block_q() * 4 : 0;
    const int kv = 2 * stages * kv_bytes();
    return (q_makes_room ? (q_bytes() > kv ? q_bytes() : kv) : q_bytes() + kv) + shared_by_pairs;
  }
  constexpr int bias_bytes() const { return stages * block_q() * block_k * 2; }
};

struct Arguments {
  core::Problem p;
  core::GridOrder order;
  core::DiagonalRule diagonals;
  ScoreFeatures features;
  std::uint32_t origin_row;      // of the random numbers
  std::uint32_t origin_group;    // their group of columns where column_shift counts from
  core::Divider group;           // query heads per key/value head
  int k_row_bytes, v_row_bytes;  // plain: they fit
  int column_shift;              // steps begin where column + shift is a multiple of the step
  bool q_aligned, k_aligned, v_aligned, out_aligned;
  bool bias_staged;  // the bias comes through shared memory
  bool speculate;
};

using Kernel = void (*)(Arguments);

// An instance: how it is cut, and the function to launch.
struct Instance {
  Config config;
  Kernel kernel;
};

}  // namespace tessera::cuda::mma::forward
