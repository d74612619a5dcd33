// The computing half of the Hopper backward kernel: a warp group and its 64 keys of a tile, step by
// step. kernel.cuh draws the schedule.
#pragma once

#include "cuda/common/dq_sums.cuh"
#include "cuda/common/features.cuh"
#include "cuda/common/non_finite.cuh"
#include "cuda/common/ptx/math.cuh"
#include "cuda/common/ptx/mma.cuh"
#include "cuda/common/ptx/opaque.cuh"
#include "cuda/common/ptx/shared_memory.cuh"
#include "cuda/common/ptx/wgmma.cuh"
#include "cuda/common/visible.h"
#include "cuda/sm90/backward/shared.cuh"
#include "cuda/sm90/common/warp_group.cuh"

namespace tessera::cuda::sm90::backward {

template <Config C>
class Consumer {
  static_assert(valid(C));
  using Number = ptx::Storage<C.type>;
  static constexpr int D = C.head_dim, kKeys = C.block_k(), kQueries = C.block_q;
  static constexpr int kParts = kQueries / kQueryBlock;  // of 64 queries, as in a block of statistics
  static constexpr unsigned kWarp = 0xFFFFFFFF;
  // Named barriers: of a warp group, of two neighbouring warps, and for the turns of the warp
  // groups.
  enum Barrier : int { kOwn = 1, kPair = 3, kTurn = 7 };

 public:
  __device__ __forceinline__ Consumer(const Arguments& a, SharedMemory<C>& shared, int group, int warp)
      : a_(a), shared_(shared), group_(group), warp_(warp) {}

  __device__ __forceinline__ void run() {
    if (C.alternate && group_ == 1) ptx::pass(kTurn, 2 * kWarpGroup);
#pragma unroll 1
    while (next_tile()) {
      wait(&shared_.keys_full[key_slot()], tiles_.count() / C.kKeyStages & 1, WaitFor::keys_full);
      int head = uniform(tile().first_head), begin = uniform(tile().begin);
      if (begin < uniform(tile().end)) {
        if constexpr (C.dropout) begin_head(head);
        one_step<true>(head, begin);
        release_keys_before();
#pragma unroll 1
        while (next_step(head, begin)) one_step<false>(head, begin);
        last_queries();
        finalize<true>();
      } else {  // no query sees these keys
        release_keys_before();
        finalize<false>();
      }
    }
    if (C.alternate && group_ == 0) ptx::meet(kTurn, 2 * kWarpGroup);
    if (lane() == 0) ptx::wait_stores_read();
  }

 private:
  __device__ __forceinline__ void wait(std::uint64_t* barrier, std::uint32_t phase, WaitFor what) {
    ptx::wait<C.bounded_waits>(barrier, phase, a_.report, what);
  }

  // Read where it is needed, not kept in a register through all steps.
  __device__ static __forceinline__ int lane() { return ptx::lane_index(); }

  // --- products ---

  // `out` = left right^T over head_dim, keys by queries: this warp group's keys and the `Count`
  // queries from `first` on.
  template <int Count>
  __device__ __forceinline__ void issue_scores(float (&out)[Count / 2], const unsigned char* left,
                                               const unsigned char* right, int first) {
    const std::uint64_t a = descriptor(left, group_ * kGroupRows * kRowBytes, 0);
    const std::uint64_t b = descriptor(right, first * kRowBytes, 0);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      const std::uint64_t x = ptx::advance(a, column_step(kKeys, i)),
                          y = ptx::advance(b, column_step(kQueries, i));
      if (i == 0) ptx::Wgmma<Count, C.type>::shared_first(out, x, y);
      else ptx::Wgmma<Count, C.type>::shared(out, x, y);
    }
    ptx::wgmma_commit();
  }

  // sums += left right over the queries of a step. First: sums = left right.
  template <bool First>
  __device__ __forceinline__ void issue_sums(float (&sums)[D / 2], const std::uint32_t (&left)[kQueries / 4],
                                             const unsigned char* right) {
    const std::uint64_t b = descriptor(right, 0, kQueries * kRowBytes);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kQueries / 16; ++i) {
      if (First && i == 0) ptx::Wgmma<D, C.type>::registers_first(sums, left, b);
      else ptx::Wgmma<D, C.type>::registers(sums, left + 4 * i, ptx::advance(b, row_step(i)));
    }
    ptx::wgmma_commit();
  }

  // This warp group's 64 x 64 of dQ of the step before, over all keys of the tile. Waits until the
  // other warp group has stored its dS.
  __device__ __forceinline__ void issue_dq(float (&grad_q)[32]) {
    wait(&shared_.scores_full[score_slot(1)], (queries_.count() - 1) / C.kScoreStages & 1,
         WaitFor::scores_full);
    const std::uint64_t a =
        descriptor(shared_.scores[score_slot(1)], kByQueries ? group_ * 64 * kRowBytes : 0, 0);
    const std::uint64_t b =
        descriptor(shared_.k[key_slot()], kByQueries ? 0 : group_ * kKeys * kRowBytes, kKeys * kRowBytes);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) {
      const std::uint64_t x = ptx::advance(a, column_step(kQueries, i)), y = ptx::advance(b, row_step(i));
      if (i == 0) ptx::Wgmma<64, C.type>::template shared_first<true>(grad_q, x, y);
      else ptx::Wgmma<64, C.type>::template shared<true>(grad_q, x, y);
    }
    ptx::wgmma_commit();
  }

  // The products from the end of one softmax to the scores for the next are a turn. The warp groups
  // take turns, so that the softmax of one overlaps the products of the other.
  __device__ __forceinline__ void begin_turn() {
    if constexpr (C.alternate) ptx::meet(kTurn + group_, 2 * kWarpGroup);
  }
  __device__ __forceinline__ void end_turn() {
    if constexpr (C.alternate) ptx::pass(kTurn + 1 - group_, 2 * kWarpGroup);
  }

  // --- a step ---

  __device__ __forceinline__ bool next_tile() {
    tiles_.next();
    wait(&shared_.tile_full[tiles_.slot()], tiles_.phase(), WaitFor::tile);
    return uniform(tile().heads) > 0;
  }

  // False: that was the last step.
  __device__ __forceinline__ bool next_step(int& head, int& begin) {
    begin += kQueries;
    if (begin < uniform(tile().end)) return true;
    if (++head == uniform(tile().first_head + tile().heads)) return false;
    begin = uniform(tile().begin);
    if constexpr (C.dropout) begin_head(head);
    return true;
  }

  // One step. First: the first of the tile, whose products begin the sums and which has no dQ of a
  // step before.
  template <bool First>
  __device__ __forceinline__ void one_step(int head, int begin) {
    const int slot = uniform(queries_.slot());
    wait(&shared_.q_full[slot], queries_.phase(), WaitFor::q_full);
    if constexpr (First) begin_turn();
    issue_scores<kQueries>(s_, shared_.k[key_slot()], shared_.q[slot], 0);
    wait(&shared_.grad_out_full[slot], queries_.phase(), WaitFor::grad_out_full);
    issue_scores<64>(ds_, shared_.v[key_slot()], shared_.grad_out[slot], 0);
    end_turn();
    ptx::wgmma_wait<1>();
    ptx::pin(s_);
    const bool masked = !whole(begin);
    float check = 0;
    if (masked) apply_mask(begin, check);
    exponentiate(slot);
    std::uint32_t kept[kParts];
    if constexpr (C.dropout) draw(begin, kept);
    bool careful = false;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {  // there are no registers for all of dP
      ptx::wgmma_wait<0>();
      ptx::pin(ds_);
      if (masked) careful |= spread_non_finite(part, check);
      differentiate(slot, part, kept[part]);
      if (masked) clear_masked(begin, part);
      if (part + 1 < kParts)
        issue_scores<64>(ds_, shared_.v[key_slot()], shared_.grad_out[slot], 64 * (part + 1));
    }
    wait(&shared_.scores_empty[score_slot(0)], (queries_.count() / C.kScoreStages & 1) ^ 1,
         WaitFor::scores_empty);
    if (careful && lane() == 0) {
      const int mark = careful_mark(0);  // as an argument it would change the machine code
      ptx::store_same(shared_.careful[score_slot(0)], mark);
    }
    store_scores();
    ptx::fence_shared_for_engine();
    __syncwarp();
    ptx::arrive_if(lane() == 0, &shared_.scores_full[score_slot(0)]);
    if (careful) clear_queries(slot);
    begin_turn();
    if constexpr (First) {
      issue_sums<First>(grad_v_, p_packed_, shared_.grad_out[slot]);
      issue_sums<First>(grad_k_, ds_packed_, shared_.q[slot]);
    } else {
      float grad_q[32];
      issue_dq(grad_q);
      issue_sums<First>(grad_v_, p_packed_, shared_.grad_out[slot]);
      issue_sums<First>(grad_k_, ds_packed_, shared_.q[slot]);
      ptx::wgmma_wait<2>();
      add_to_dq(grad_q);
    }
    // Where this step's dQ will be added. Nowhere, if the sequence has no such queries.
    const int query = begin + (kByQueries ? group_ * 64 : 0);
    sums_ = query < uniform(tile().last)
                ? head * static_cast<int>(a_.call.blocks.per_head) + tile().origin + query / kQueryBlock
                : -1;
    ptx::wgmma_wait<0>();
    ptx::pin(p_packed_), ptx::pin(ds_packed_);
    ptx::arrive_if(lane() == 0, &shared_.q_empty[slot]);
    queries_.next();
  }

  // Adds the result of issue_dq to the sums.
  __device__ __forceinline__ void add_to_dq(const float (&grad_q)[32]) {
    const bool careful = __any_sync(kWarp, shared_.careful[score_slot(1)] == careful_mark(1));
    if (sums_ >= 0) {
      float* to = a_.call.grad_q_sums + static_cast<std::int64_t>(sums_) * (kQueryBlock * D) +
                  fragment_offset(D, warp_ * 16, kByQueries ? 0 : group_ * 64);
      if (careful) {
        add_carefully(to);
      } else {
#pragma unroll
        for (int j = 0; j < 8; ++j)
          add_fragment<SumsLayout::fours>(to + 128 * j, reinterpret_cast<const float(&)[4]>(grad_q[4 * j]));
      }
    }
    ptx::arrive_if(lane() == 0, &shared_.scores_empty[score_slot(1)]);
  }

  // After the last step of a tile.
  __device__ __forceinline__ void last_queries() {
    end_turn();
    float grad_q[32];
    issue_dq(grad_q);
    ptx::wgmma_wait<0>();
    ptx::pin(grad_v_), ptx::pin(grad_k_);
    add_to_dq(grad_q);
  }

  // --- scores to P and dS: scores.cuh ---

  __device__ bool whole(int begin) const;
  __device__ void apply_mask(int begin, float& check);
  __device__ void exponentiate(int slot);
  __device__ void differentiate(int slot, int part, std::uint32_t kept);
  __device__ void clear_masked(int begin, int part);
  __device__ void store_scores() const;
  __device__ bool spread_non_finite(int part, float& check);
  __device__ void clear_queries(int slot);
  __device__ void add_carefully(float* to) const;
  __device__ void begin_head(int head);
  __device__ void draw(int begin, std::uint32_t (&kept)[kParts]);

  // --- the end of a tile: epilogue.cuh ---

  __device__ void release_keys_before();
  template <bool Visible>
  __device__ void finalize();
  template <bool Visible>
  __device__ void store_tile(const float (&sums)[D / 2], float factor, unsigned char* staged,
                             const CUtensorMap& map, const core::View& view);

  __device__ const KeyTile& tile() const { return shared_.tiles[tiles_.slot()]; }
  __device__ int key_slot() const { return static_cast<int>(tiles_.count() % C.kKeyStages); }
  // The stage of dS of this step (0) or of the one before (1).
  __device__ int score_slot(unsigned before) const {
    return static_cast<int>((queries_.count() - before) % C.kScoreStages);
  }
  // The bit of what dropout keeps that belongs to query 8 j + 2 (lane % 4) + x of 64 and to key 8 r
  // + lane / 4 of a warp.
  __device__ static constexpr int kept_position(int j, int r, int x) { return 16 * x + 2 * j + r; }
  __device__ int careful_mark(unsigned before) const {
    return static_cast<int>(queries_.count() - before) + 1;
  }

  static constexpr bool kByQueries = C.block_q == 128;  // how warp groups divide dQ

  const Arguments& a_;
  SharedMemory<C>& shared_;
  const int group_, warp_;        // the warp within its group
  Ring<kTileSlots> tiles_{~0U};   // next_tile goes to the first
  Ring<C.kQueryStages> queries_;  // counts steps
  int sums_ = -1;          // the block of sums for the last step's dQ; -1: the sequence has no such queries
  float s_[kQueries / 2];  // scores, then P: rows are keys
  float ds_[64 / 2];       // dP, then dS
  float grad_k_[D / 2], grad_v_[D / 2];
  std::uint32_t p_packed_[kQueries / 4], ds_packed_[kQueries / 4];
};

}  // namespace tessera::cuda::sm90::backward
