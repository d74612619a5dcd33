// Who decides which tiles a thread block computes: one thread of the loading warp group, ahead of the thread that loads.
#pragma once

#include "cuda/hopper/shared.cuh"

namespace tessera::cuda::hopper {

// Of packed sequences, as PackedTiles asks for them.
struct PackedLengths {
  struct Pair {
    int q, k;
  };
  const core::Problem& p;
  __device__ Pair operator()(int index) const {
    const core::ShortSequence s = core::short_sequence(p, index);
    return {s.q_length, s.k_length};
  }
};

template <Config C>
__device__ __forceinline__ PackedTiles packed_tiles(const Arguments& a) {
  return {static_cast<int>(a.p.batch), static_cast<int>(a.p.q_heads), C.block_q(),
          static_cast<int>(gridDim.x), static_cast<int>(a.p.k_length)};
}

// Takes tiles and announces them, with all that depends on masks and lengths, as far ahead as there are slots: about 500
// dependent instructions per tile, for which nobody waits.
template <Config C>
class Planner {
 public:
  __device__ Planner(const Arguments& a, SharedMemory<C>& shared)
      : a_(a), shared_(shared), packed_(packed_tiles<C>(a)) {}

  __device__ __forceinline__ void run() {
    open_counter();
    int before = -1;
    unsigned tile = blockIdx.x;
    for (TileIndex at; find(tile, at);) {
      const unsigned next = take(tile);  // used at the end: its time passes meanwhile
      if (a_.counter != nullptr) a_.links[tile] = before;
      before = static_cast<int>(tile);
      announce(locate(at, core::short_sequence(a_.p, static_cast<int>(at.sequence))));
      tile = next;
    }
    announce({.top = -1, .row = before});
    close_counter();
  }

 private:
  // False: there are fewer tiles.
  __device__ __forceinline__ bool find(unsigned tile, TileIndex& at) {
    if (a_.p.packed) return packed_.find(tile, PackedLengths{a_.p}, at);
    if (tile >= a_.schedule.count()) return false;
    at = a_.schedule[tile];
    return true;
  }

  // The launch's number says that counting has begun. It cannot be there from another launch: the workspace of a call is its
  // own while it runs, and the last thread block takes the number away, so that a replayed graph does not find it. The first
  // two tiles of every thread block are not counted, so that nobody waits for this.
  __device__ __forceinline__ void open_counter() {
    if (a_.counter == nullptr || blockIdx.x != 0) return;
    a_.counter->next = 2 * gridDim.x;
    a_.counter->finished = 0;
    __threadfence();
    atomicExch(&a_.counter->launch, a_.launch);
  }
  __device__ __forceinline__ void wait_for_counter() {
    std::uint32_t polls = 0;
    while (!counting_) {
      counting_ = *static_cast<volatile unsigned long long*>(&a_.counter->launch) == a_.launch;
      __threadfence();
      if constexpr (C.bounded_waits) {
        if (++polls == ptx::kMostPolls) ptx::give_up(a_.report, ptx::WaitFor::launch);
      }
    }
  }
  __device__ __forceinline__ void close_counter() {
    if (a_.counter == nullptr) return;
    wait_for_counter();
    if (atomicAdd(&a_.counter->finished, 1U) == gridDim.x - 1) atomicExch(&a_.counter->launch, 0ULL);
  }

  // The tile after `tile`. Who had a long first one has a short second one.
  __device__ __forceinline__ unsigned take(unsigned tile) {
    if (a_.counter == nullptr) return tile + gridDim.x;
    if (tile < gridDim.x) return 2 * gridDim.x - 1 - tile;
    wait_for_counter();
    return atomicAdd(&a_.counter->next, 1U);
  }

  __device__ __forceinline__ Tile locate(const TileIndex& at, const core::ShortSequence& s) const {
    constexpr int kFar = 1 << 30;  // beyond every key, with room to add a row
    const int first = static_cast<int>(at.tile) * C.block_q(), rows = s.q_length - first;
    const core::Diagonals d = a_.diagonals(s);
    const Steps steps = visible_steps(first, first + min(rows, C.block_q()) - 1, d, s.k_length, C.block_k);
    Tile t{.top = steps.top,
           .bottom = steps.bottom,
           .keys = s.k_length,
           .low = max(first + d.low, -kFar),
           .high = min(first + d.high, kFar),
           .rows = rows,
           .row = s.q_begin + first,
           .head = static_cast<int>(at.head),
           .batch = s.tensor_batch,
           .kv_row = s.k_begin,
           .kv_head = static_cast<int>(a_.group.quotient(at.head))};
#pragma unroll
    for (int g = 0; g < C.warp_groups; ++g) {
      const int row = g * kGroupRows;
      t.groups[g] = group_steps(steps, row, row + kGroupRows - 1, {t.low, t.high}, t.keys, C.block_k,
                                C.most_skipped_above(g), C.most_skipped_below(g));
    }
    return t;
  }

  __device__ __forceinline__ void announce(const Tile& tile) {
    wait(&shared_.tile_empty[tiles_.slot()], tiles_.phase() ^ 1, ptx::WaitFor::tile_empty);
    shared_.tiles[tiles_.slot()] = tile;
    ptx::arrive(&shared_.tile_full[tiles_.slot()]);
    tiles_.next();
  }

  __device__ __forceinline__ void wait(std::uint64_t* barrier, std::uint32_t phase, ptx::WaitFor what) {
    ptx::wait<C.bounded_waits>(barrier, phase, a_.report, what);
  }

  const Arguments& a_;
  SharedMemory<C>& shared_;
  PackedTiles packed_;
  Ring<kTileSlots> tiles_;
  bool counting_ = false;
};

}  // namespace tessera::cuda::hopper
