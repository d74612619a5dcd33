// The loading warp group of the Hopper forward kernel: one thread takes tiles and keeps the rings
// of Q, K and V full.
#pragma once

#include "cuda/sm90/common/panels.cuh"
#include "cuda/sm90/forward/shared.cuh"

namespace tessera::cuda::sm90::forward {

// The lengths of packed sequences, for PackedTiles.
template <Config C>
struct LengthsOf {
  const Arguments& a;
  __device__ PackedLengths operator()(int index) const {
    const ShortSequence s = short_sequence(a.p, index);
    return {s.q_length, s.k_length, C.packed_order() == PackedOrder::tiles ? a.diagonals(s).high : 0};
  }
};

template <Config C>
__device__ __forceinline__ PackedTiles<C.packed_order()> packed_tiles(const Arguments& a) {
  return {static_cast<int>(a.p.batch), static_cast<int>(a.p.q_heads), C.block_q(),
          static_cast<int>(a.p.k_length)};
}

// Loads are issued in the order in which they are used: K of a step, then V of the step before it.
// Where tiles overlap (two stages of Q) this holds from tile to tile, too. While K and V of a tile
// are loading, the loader finds and announces the next tile and, if there is room, loads its Q, so
// that no warp group waits for it when tiles change. With one stage, Q is loaded after the first K,
// because there is room for K earlier.
//
// The loader writes a slot for a tile without waiting. The slot holds the fourth tile before. By
// now the loader has seen the Q of the third tile before (or of a later one) released, and a warp
// does that after it has written the output of the fourth.
template <Config C>
class Loader {
 public:
  __device__ Loader(const Arguments& a, SharedMemory<C>& shared)
      : a_(a), shared_(shared), packed_(packed_tiles<C>(a)) {}

  __device__ __forceinline__ void run() {
    ptx::admit_successor();
    ptx::await_predecessors();
    open_counter();
    unsigned tile = blockIdx.x;
    bool more = begin(tile);
    if (more && C.overlap_tiles()) load_queries(tile_);
    while (more) {
      const unsigned next = take(tile);  // used a step later, so that its latency is hidden
      const int top = tile_.top, bottom = tile_.bottom, prepare = max(top - 1, bottom);
      Keys keys{k_begin_ + top * C.block_k, kv_head_, tile_.batch};
#pragma unroll 1
      for (int step = top; step >= bottom; --step) {
        load_keys(keys);
        if (!C.overlap_tiles() && step == top) load_queries(tile_);
        if (waiting_) load_values();
        values_ = keys, waiting_ = true;
        keys.row -= C.block_k;
        if (step == prepare) {
          more = begin(next);
          if (more && C.overlap_tiles()) load_queries(tile_);
        }
      }
      if constexpr (!C.overlap_tiles()) load_values();
      tile = next;
    }
    if (waiting_) load_values();
    announce_end();
    close_counter();
  }

 private:
  struct Keys {
    int row, head, batch;
  };

  // Finds and announces a tile; false if there are fewer tiles.
  __device__ __forceinline__ bool begin(unsigned tile) {
    TileIndex at;
    if (!find(tile, at)) return false;
    const ShortSequence sequence = short_sequence(a_.p, static_cast<int>(at.sequence));
    tile_ = locate(at, sequence);
    k_begin_ = sequence.k_begin;
    kv_head_ = static_cast<int>(a_.group.quotient(at.head));
    if (a_.counter != nullptr) a_.links[tile] = before_;
    before_ = static_cast<int>(tile);
    announce(tile_);
    return true;
  }

  // False if there are fewer tiles.
  __device__ __forceinline__ bool find(unsigned tile, TileIndex& at) {
    if (a_.p.packed) return packed_.find(tile, LengthsOf<C>{a_}, at);
    if (tile >= a_.schedule.count()) return false;
    at = a_.schedule[tile];
    return true;
  }

  // The number of the launch in the counter says that the counter is valid. No other launch can
  // have left it there: a call has its workspace to itself while it runs, and the last thread block
  // removes the number, so that a replayed graph does not find it. Every thread block takes its
  // first two tiles without the counter, so that none waits for this.
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
        if (++polls == ptx::kMostPolls) ptx::give_up(a_.report, WaitFor::launch);
      }
    }
  }
  __device__ __forceinline__ void close_counter() {
    if (a_.counter == nullptr) return;
    wait_for_counter();
    if (atomicAdd(&a_.counter->finished, 1U) == gridDim.x - 1) atomicExch(&a_.counter->launch, 0ULL);
  }

  // The tile after `tile`. The second tiles go in reverse: a thread block whose first tile was long
  // gets a short one.
  __device__ __forceinline__ unsigned take(unsigned tile) {
    if (a_.counter == nullptr) return tile + gridDim.x;
    if (tile < gridDim.x) return 2 * gridDim.x - 1 - tile;
    wait_for_counter();
    return atomicAdd(&a_.counter->next, 1U);
  }

  __device__ __forceinline__ Tile locate(const TileIndex& at, const ShortSequence& s) const {
    constexpr int kFar = 1 << 30;  // beyond every key, with room to add a row
    const int first = static_cast<int>(at.tile) * C.block_q(), rows = s.q_length - first;
    const Diagonals d = a_.diagonals(s);
    const Steps steps = visible_steps(first, first + min(rows, C.block_q()) - 1, d, s.k_length, C.block_k);
    const int row = s.q_begin + first, head = static_cast<int>(at.head);
    const core::View& lse = a_.p.lse;
    Tile t{.lse = lse.data == nullptr ? nullptr : lse.template row<float>(s.tensor_batch, head, row),
           .top = steps.top,
           .bottom = steps.bottom,
           .keys = s.k_length,
           .low = max(first + d.low, -kFar),
           .high = min(first + d.high, kFar),
           .rows = rows,
           .row = row,
           .head = head,
           .batch = s.tensor_batch};
#pragma unroll
    for (int g = 0; g < C.warp_groups; ++g) {
      const int row = g * kGroupRows;
      t.groups[g] = group_steps(steps, row, row + kGroupRows - 1, {t.low, t.high}, t.keys, C.block_k,
                                C.most_skipped_above(g), C.most_skipped_below(g));
    }
    return t;
  }

  __device__ __forceinline__ void announce(const Tile& tile) {
    shared_.tiles[tiles_.slot()] = tile;
    ptx::arrive(&shared_.tile_full[tiles_.slot()]);
    tiles_.next();
  }

  __device__ __forceinline__ void announce_end() {
    Tile end{.row = before_};
#pragma unroll
    for (int g = 0; g < C.warp_groups; ++g) end.groups[g].top = -1;
    announce(end);
  }

  __device__ __forceinline__ void wait(std::uint64_t* barrier, std::uint32_t phase, WaitFor what) {
    ptx::wait<C.bounded_waits>(barrier, phase, a_.report, what);
  }

  // Loads `Rows` rows of all columns into a tile of `Pitch` rows.
  template <int Columns, int Rows, int Pitch = Rows>
  __device__ __forceinline__ void load(unsigned char* to, const CUtensorMap& map, std::uint64_t* full,
                                       int row, int head, int batch) {
    ptx::arrive_and_expect(full, Rows * Columns * C.element_bytes());
    load_panels<C.element_bytes(), Columns, Rows, Pitch>(to, map, full, row, head, batch);
  }

  __device__ __forceinline__ void load_queries(const Tile& t) {
    const int slot = q_.slot();
#pragma unroll
    for (int g = 0; g < C.q_parts(); ++g) {
      constexpr int kRows = C.q_part_rows();
      wait(&shared_.q_empty[slot][g], q_.phase() ^ 1, WaitFor::q_empty);
      load<C.qk_columns(), kRows, C.block_q()>(shared_.q[slot] + g * kRows * kRowBytes, a_.q,
                                               &shared_.q_full[slot][g], t.row + g * kRows, t.head, t.batch);
    }
    q_.next();
  }

  __device__ __forceinline__ void load_keys(const Keys& at) {
    wait(&shared_.k_empty[k_.slot()], k_.phase() ^ 1, WaitFor::k_empty);
    load<C.qk_columns(), C.block_k>(shared_.k[k_.slot()], a_.k, &shared_.k_full[k_.slot()], at.row, at.head,
                                    at.batch);
    k_.next();
  }

  // V of the step before the one whose K was loaded last.
  __device__ __forceinline__ void load_values() {
    wait(&shared_.v_empty[v_.slot()], v_.phase() ^ 1, WaitFor::v_empty);
    load<C.v_columns(), C.block_k>(shared_.v[v_.slot()], a_.v, &shared_.v_full[v_.slot()], values_.row,
                                   values_.head, values_.batch);
    v_.next();
    waiting_ = false;
  }

  const Arguments& a_;
  SharedMemory<C>& shared_;
  Ring<C.q_stages> q_;
  Ring<C.k_stages> k_;
  Ring<C.v_stages> v_;
  Ring<kTileSlots> tiles_;
  PackedTiles<C.packed_order()> packed_;
  Tile tile_;                      // announced last
  int k_begin_ = 0, kv_head_ = 0;  // of this tile
  int before_ = -1;                // its number
  Keys values_{};                  // the V to be loaded next,
  bool waiting_ = false;           // if any
  bool counting_ = false;          // the counter is valid
};

}  // namespace tessera::cuda::sm90::forward
