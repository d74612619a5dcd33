// How a Hopper forward kernel is cut, and what it is told at run time. Host code: also compiled without nvcc.
#pragma once

#if TESSERA_HAVE_CUDA
#include <cuda.h>
#endif

#include <cstdint>

#include "core/problem.h"
#include "cuda/common/ptx/types.h"
#include "cuda/common/step_cursor.h"
#include "cuda/sm90/common/layout.h"
#include "cuda/sm90/forward/schedule.h"

namespace tessera::cuda::sm90::forward {

inline constexpr int kMostGroups = 4;  // warp groups that compute

// What becomes of scores that no mask cuts.
enum class Softmax : int {
  two_buffers,  // speculation; P goes to a second set of registers, the scores stay for the case that it fails
  in_place,     // speculation; P takes the place of the scores, which are computed again when it fails
  search,       // the row maximum is searched in every step
};

struct Config {
  int qk_dim = 128,
      v_dim = 128;      // 64, 96, 128, 192 (qk_dim) or 256: what the problem has not arrives as zero
  int warp_groups = 2;  // that compute; one more loads
  int block_k = 128;    // keys per step
  int q_stages = 2;     // 2: a tile begins under the end of the one before
  int k_stages = 2, v_stages = 2;
  Softmax softmax = Softmax::two_buffers;
  bool turns = true;        // warp groups issue their products in turn
  int store_columns = 128;  // of O that wait in shared memory at a time
  int registers = 240, loader_registers = 24;
  bool bounded_waits = false;  // a wait that takes too long ends the kernel with a message: for tests
  ptx::Half16 type = ptx::Half16::bf16;

  constexpr int block_q() const { return warp_groups * kGroupRows; }
  constexpr bool overlap_tiles() const { return q_stages == 2; }
  // Q arrives in so many parts. Where one stage has room, each warp group's as soon as it has done with the one before.
  constexpr int q_parts() const { return overlap_tiles() ? 1 : warp_groups; }
  constexpr int q_part_rows() const { return block_q() / q_parts(); }
  constexpr int threads() const { return (warp_groups + 1) * kWarpGroup; }
  // Tiles stand in whole panels; products read no more of them than qk_dim and v_dim say.
  constexpr int qk_columns() const { return (qk_dim + kPanel - 1) / kPanel * kPanel; }
  constexpr int v_columns() const { return (v_dim + kPanel - 1) / kPanel * kPanel; }
  constexpr int q_bytes() const { return block_q() * qk_columns() * 2; }  // of one stage, as the following
  constexpr int k_bytes() const { return block_k * qk_columns() * 2; }
  constexpr int v_bytes() const { return block_k * v_columns() * 2; }
  constexpr int out_bytes() const { return block_q() * store_columns * 2; }
  constexpr int shared_bytes() const {
    constexpr int kBarriersAndTiles = 1280;
    return q_stages * q_bytes() + k_stages * k_bytes() + v_stages * v_bytes() + out_bytes() +
           kBarriersAndTiles;
  }
  // Where tiles are few and long, an even end is worth what finding them costs the loader (H200, causal, mixed lengths: 0.96 of
  // the time at head_dim 256, 1.01 at 64 and 128).
  constexpr PackedOrder packed_order() const {
    return v_dim == 256 ? PackedOrder::tiles : PackedOrder::sequences;
  }
  // Steps at the beginning and at the end of a tile that a warp group may pass over because it sees nothing of them.
  constexpr int most_skipped_above(int group) const {
    return ((warp_groups - 1 - group) * kGroupRows + block_k - 1) / block_k;
  }
  constexpr int most_skipped_below(int group) const { return (group * kGroupRows + block_k - 1) / block_k; }
};

// Whether registers, shared memory and the ring of V stages allow a config: for static_assert.
constexpr bool valid(const Config& c) {
  constexpr int kRegisters = 65536, kSharedBytes = 227 * 1024;
  const int at_launch = kRegisters / c.threads() / 8 * 8;
  bool ok = c.warp_groups * c.registers + c.loader_registers <= at_launch * (c.warp_groups + 1);
  ok = ok && c.registers % 8 == 0 && c.loader_registers % 8 == 0 && c.shared_bytes() <= kSharedBytes;
  ok = ok && c.warp_groups <= kMostGroups && c.block_k <= 256 && c.v_columns() % c.store_columns == 0 &&
       c.store_columns % kPanel == 0;
  for (int g = 0; g < c.warp_groups;
       ++g) {  // values passed over are given back late; the others must not wait for them
    ok = ok && c.most_skipped_above(g) + c.most_skipped_below(g) <= c.v_stages - 1;
  }
  return ok;
}

// Where thread blocks take their tiles from, in workspace. `launch` is the call's number as soon as `next` counts.
struct TileCounter {
  unsigned long long launch;
  unsigned next, finished;
};

#if TESSERA_HAVE_CUDA

struct Arguments {
  CUtensorMap q, k, v, out;
  core::Problem p;
  Schedule schedule;
  core::DiagonalRule diagonals;
  core::Divider group;  // query heads per key/value head
  float scale_log2;
  bool speculate;
  TileCounter* counter;       // null: tile + gridDim.x comes after tile
  int* links;                 // of a tile: the one that its thread block took before; with `counter`
  unsigned long long launch;  // never 0
  std::uint32_t* report;      // bounded waits: 4 words that the host can read
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

}  // namespace tessera::cuda::sm90::forward
