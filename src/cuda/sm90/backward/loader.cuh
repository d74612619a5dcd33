// The loading half of the Hopper backward kernel: one thread, which takes tiles of keys and keeps
// two rings full, one of K and V, and one of Q, dO and their statistics.
#pragma once

#include "cuda/sm90/backward/shared.cuh"
#include "cuda/sm90/common/panels.cuh"

namespace tessera::cuda::sm90::backward {

// The loader announces a tile, and loads its K and V, when all steps of the tile before are on
// their way. It does not wait for a free slot to announce it in. By then the warps have given back
// the keys of the last tile but one, so none of them still reads the announcement of the tile
// before that.
template <Config C>
class Loader {
 public:
  __device__ Loader(const Arguments& a, SharedMemory<C>& shared) : a_(a), shared_(shared) {}

  __device__ __forceinline__ void run() {
    const std::uint32_t count = a_.call.order.count();
    std::uint32_t tile = blockIdx.x;
#pragma unroll 1
    while (tile < count) {
      if (find(tile)) {
        load_keys();
#pragma unroll 1
        for (int head = 0; head < tile_.heads; ++head) {
#pragma unroll 1
          for (int begin = tile_.begin; begin < tile_.end; begin += C.block_q)
            load_queries(tile_.first_head + head, begin);
        }
      }
      tile = gridDim.x + atomicAdd(a_.call.ticket, 1U);
    }
    tile_.heads = 0;
    announce();
  }

 private:
  // Fills in tile_. False: the sequence has no such keys.
  __device__ __forceinline__ bool find(std::uint32_t index) {
    const core::Problem& p = a_.call.problem;
    const auto task = a_.call.order[index];
    const ShortSequence s = short_sequence(p, static_cast<int>(task.sequence));
    const int key = static_cast<int>(task.tile) * C.block_k();
    if (key >= s.k_length) return false;
    static_cast<TileQueries&>(tile_) =
        tile_queries(a_.diagonals(s), key, s.q_length, s.k_length, C.block_q, C.block_k());
    tile_.row = s.k_begin + key, tile_.head = static_cast<int>(task.head), tile_.batch = s.tensor_batch;
    tile_.heads = static_cast<int>(p.group()), tile_.first_head = tile_.head * tile_.heads;
    tile_.origin = first_query_block<int>(p.packed, s.q_begin, s.q_length, static_cast<int>(task.sequence));
    tile_.sequence = static_cast<int>(task.sequence), tile_.first_key = key;
    q_begin_ = s.q_begin, q_length_ = s.q_length;
    return true;
  }

  __device__ __forceinline__ void announce() {
    shared_.tiles[tiles_.slot()] = tile_;
    ptx::arrive(&shared_.tile_full[tiles_.slot()]);
    tiles_.next();
  }

  __device__ __forceinline__ void wait(std::uint64_t* barrier, std::uint32_t phase, WaitFor what) {
    ptx::wait<C.bounded_waits>(barrier, phase, a_.report, what);
  }

  __device__ __forceinline__ void load_keys() {
    const int slot = keys_.slot();
    wait(&shared_.keys_empty[slot], keys_.phase() ^ 1, WaitFor::keys_empty);
    announce();
    std::uint64_t* full = &shared_.keys_full[slot];
    ptx::arrive_and_expect(full, 2 * C.key_bytes());
    load_panels<C.element_bytes(), C.head_dim, C.block_k()>(shared_.k[slot], a_.k, full, tile_.row,
                                                            tile_.head, tile_.batch);
    load_panels<C.element_bytes(), C.head_dim, C.block_k()>(shared_.v[slot], a_.v, full, tile_.row,
                                                            tile_.head, tile_.batch);
    keys_.next();
  }

  __device__ __forceinline__ void load_queries(int head, int begin) {
    constexpr int kBlockBytes = 2 * kQueryBlock * sizeof(float);
    const int slot = queries_.slot(), row = q_begin_ + begin;
    // Blocks of statistics end with the sequence.
    const int blocks = min(C.block_q / kQueryBlock, (q_length_ - begin + kQueryBlock - 1) / kQueryBlock);
    const std::int64_t block = head * a_.call.blocks.per_head + tile_.origin + begin / kQueryBlock;
    wait(&shared_.q_empty[slot], queries_.phase() ^ 1, WaitFor::q_empty);
    std::uint64_t* full = &shared_.q_full[slot];
    ptx::arrive_and_expect(full, C.query_bytes() + static_cast<std::uint32_t>(blocks * kBlockBytes));
    load_panels<C.element_bytes(), C.head_dim, C.block_q>(shared_.q[slot], a_.q, full, row, head,
                                                          tile_.batch);
    ptx::load_bytes(shared_.statistics[slot], a_.call.statistics + block * (2 * kQueryBlock),
                    static_cast<std::uint32_t>(blocks * kBlockBytes), full);
    full = &shared_.grad_out_full[slot];
    ptx::arrive_and_expect(full, C.query_bytes());
    load_panels<C.element_bytes(), C.head_dim, C.block_q>(shared_.grad_out[slot], a_.grad_out, full, row,
                                                          head, tile_.batch);
    queries_.next();
  }

  const Arguments& a_;
  SharedMemory<C>& shared_;
  Ring<C.kKeyStages> keys_;
  Ring<C.kQueryStages> queries_;
  Ring<kTileSlots> tiles_;
  KeyTile tile_;
  int q_begin_ = 0, q_length_ = 0;
};

}  // namespace tessera::cuda::sm90::backward
