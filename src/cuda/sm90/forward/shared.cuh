// The shared memory of a Hopper forward kernel.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "cuda/common/ptx/async.cuh"
#include "cuda/sm90/common/layout.h"
#include "cuda/sm90/common/ring.cuh"
#include "cuda/sm90/forward/config.h"

namespace tessera::cuda::sm90::forward {

// What a thread may wait for: the report of a wait that gives up holds its number.
enum class WaitFor : std::uint32_t { tile, q_full, q_empty, k_full, k_empty, v_full, v_empty, launch };
inline constexpr std::array kWaitNames{
    "a tile",     "Q to arrive", "room for Q", "K to arrive",
    "room for K", "V to arrive", "room for V", "the tile counter",
};
static_assert(kWaitNames.size() == static_cast<std::size_t>(WaitFor::launch) + 1);

// A tile as the loader announces it to the computing warp groups. Its first row sees keys [low,
// high] of the sequence.
struct alignas(16) Tile {
  float* lse;       // where the LSE of the first row goes, or null
  int top, bottom;  // steps
  int keys;         // of the sequence
  int low, high;
  int rows;              // of the sequence, from the first of the tile on
  int row, head, batch;  // of the first row in the tensors
  // A `top` below 0 says that there is no further tile; then `row` is the number of the thread
  // block's last tile.
  GroupSteps groups[kMostGroups];
};

template <Config C>
struct SharedMemory {
  unsigned char q[C.q_stages][C.q_bytes()];
  unsigned char k[C.k_stages][C.k_bytes()];
  unsigned char v[C.v_stages][C.v_bytes()];
  unsigned char out[C.out_bytes()];
  std::uint64_t q_full[C.q_stages][C.q_parts()], q_empty[C.q_stages][C.q_parts()];
  std::uint64_t k_full[C.k_stages], k_empty[C.k_stages];
  std::uint64_t v_full[C.v_stages], v_empty[C.v_stages];
  std::uint64_t tile_full[kTileSlots];
  Tile tiles[kTileSlots];
  int non_finite;                   // not 0: the thread block has written a non-finite output
  int failures[4 * C.warp_groups];  // of speculation, per warp, in this tile

  // By one thread. A `full` barrier expects one arrival of the loader, and the bytes; an `empty`
  // barrier one arrival of each warp that reads the stage.
  __device__ void initialise() {
    constexpr std::uint32_t kWarps = 4 * C.warp_groups;
    for (int i = 0; i < C.q_stages * C.q_parts(); ++i) {
      ptx::init_barrier(&q_full[0][i], 1);
      ptx::init_barrier(&q_empty[0][i], kWarps / C.q_parts());
    }
    for (int i = 0; i < C.k_stages; ++i) {
      ptx::init_barrier(&k_full[i], 1);
      ptx::init_barrier(&k_empty[i], kWarps);
    }
    for (int i = 0; i < C.v_stages; ++i) {
      ptx::init_barrier(&v_full[i], 1);
      ptx::init_barrier(&v_empty[i], kWarps);
    }
    for (int i = 0; i < kTileSlots; ++i) ptx::init_barrier(&tile_full[i], 1);
    non_finite = 0;
    ptx::publish_barriers();
  }
};

}  // namespace tessera::cuda::sm90::forward
