// The tile sizes and options of a Hopper forward kernel, and its arguments. Host code: also
// compiled without nvcc.
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

// How a step that no mask cuts turns scores into P.
enum class Softmax : int {
  // Speculates. P goes to registers of its own, so that the scores remain if speculation fails.
  two_buffers,
  // Speculates. P overwrites the scores, which are computed again if speculation fails.
  shared_registers,
  // Searches the row maximum in every step.
  exact_maximum,
};

struct Config {
  // 64, 96, 128, 192 (qk_dim) or 256. Columns that the problem does not have are loaded as zeros.
  int qk_dim = 128, v_dim = 128;
  int warp_groups = 2;  // that compute; one more loads
  int block_k = 128;    // keys per step
  int q_stages = 2;     // 2: a tile begins while the tile before it ends
  int k_stages = 2, v_stages = 2;
  Softmax softmax = Softmax::two_buffers;
  bool alternate = true;    // warp groups take turns at the tensor cores
  int store_columns = 128;  // columns of O that are staged in shared memory at a time
  int registers = 240, loader_registers = 24;
  bool bounded_waits = false;  // for tests: too long a wait ends the kernel with a message
  ptx::Half16 type = ptx::Half16::bf16;

  constexpr int element_bytes() const { return ptx::element_bytes(type); }
  constexpr int panel() const { return panel_columns(element_bytes()); }
  // The columns of Q and K that one wgmma multiplies.
  constexpr int product_depth() const { return kStepBytes / element_bytes(); }
  constexpr int block_q() const { return warp_groups * kGroupRows; }
  constexpr bool overlap_tiles() const { return q_stages == 2; }
  // The parts in which Q is loaded. With one stage, each warp group has a part of its own, which is
  // loaded as soon as that group has finished with its part of the tile before.
  constexpr int q_parts() const { return overlap_tiles() ? 1 : warp_groups; }
  constexpr int q_part_rows() const { return block_q() / q_parts(); }
  constexpr int threads() const { return (warp_groups + 1) * kWarpGroup; }
  // Tiles consist of whole panels; the products read only qk_dim and v_dim columns of them.
  constexpr int qk_columns() const { return (qk_dim + panel() - 1) / panel() * panel(); }
  constexpr int v_columns() const { return (v_dim + panel() - 1) / panel() * panel(); }
  // Of one stage.
  constexpr int q_bytes() const { return block_q() * qk_columns() * element_bytes(); }
  constexpr int k_bytes() const { return block_k * qk_columns() * element_bytes(); }
  constexpr int v_bytes() const { return block_k * v_columns() * element_bytes(); }
  constexpr int out_bytes() const { return block_q() * store_columns * element_bytes(); }
  constexpr int shared_bytes() const {
    constexpr int kBarriersAndTiles = 1280;
    return q_stages * q_bytes() + k_stages * k_bytes() + v_stages * v_bytes() + out_bytes() +
           kBarriersAndTiles;
  }
  // Ordering by tile ends more evenly but costs the loader time to find the tiles. It pays off
  // where tiles are few and long (H200, causal, mixed lengths: 0.96 of the time at head_dim 256,
  // 1.01 at 64 and 128).
  constexpr PackedOrder packed_order() const {
    return v_dim == 256 ? PackedOrder::tiles : PackedOrder::sequences;
  }
  // The most steps at the beginning and at the end of a tile that a warp group may skip because its
  // rows see none of their keys.
  constexpr int most_skipped_above(int group) const {
    return ((warp_groups - 1 - group) * kGroupRows + block_k - 1) / block_k;
  }
  constexpr int most_skipped_below(int group) const { return (group * kGroupRows + block_k - 1) / block_k; }
};

// Whether a config fits the registers, the shared memory and the ring of V. For static_assert.
constexpr bool valid(const Config& c) {
  constexpr int kRegisters = 65536, kSharedBytes = 227 * 1024;
  const int at_launch = kRegisters / c.threads() / 8 * 8;
  bool ok = c.warp_groups * c.registers + c.loader_registers <= at_launch * (c.warp_groups + 1);
  ok = ok && c.registers % 8 == 0 && c.loader_registers % 8 == 0 && c.shared_bytes() <= kSharedBytes;
  ok = ok && c.warp_groups <= kMostGroups && c.block_k <= 256 && c.v_columns() % c.store_columns == 0 &&
       c.store_columns % c.panel() == 0;
  // A group releases the V of skipped steps late; the other groups must not have to wait for it.
  for (int g = 0; g < c.warp_groups; ++g) {
    ok = ok && c.most_skipped_above(g) + c.most_skipped_below(g) <= c.v_stages - 1;
  }
  return ok;
}

// The counter in workspace from which thread blocks take their tiles. `launch` holds the number of
// the call once `next` is valid.
struct TileCounter {
  unsigned long long launch;
  unsigned next, finished;
};

#if TESSERA_HAVE_CUDA

struct Arguments {
  CUtensorMap q, k, v, out;
  core::Problem p;
  Schedule schedule;
  DiagonalRule diagonals;
  Divider group;  // query heads per key/value head
  float scale_log2;
  bool speculate;
  TileCounter* counter;       // null: a thread block takes every gridDim.x-th tile
  int* links;                 // with `counter`: the tile that a tile's thread block took before
  unsigned long long launch;  // never 0
  std::uint32_t* report;      // with bounded waits: 4 words that the host can read after a hang
};

#else
struct Arguments;
#endif

using Kernel = void (*)(Arguments);

// A compiled kernel and its config.
struct Instance {
  Config config;
  Kernel kernel;
};

}  // namespace tessera::cuda::sm90::forward
