// The computing half of the Hopper backward kernel: one warp group's 64 keys of a tile, step by step. backward.cuh has the
// schedule.
#pragma once

#include "cuda/flash2/backward_features.cuh"
#include "cuda/flash2/backward_steps.cuh"
#include "cuda/hopper/backward_shared.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace tessera::cuda::hopper {

template <BackwardConfig C>
class BackwardConsumer {
  static_assert(valid(C));
  static constexpr int D = C.head_dim, kKeys = C.block_k(), kQueries = C.block_q(), kUnit = kGroupRows;
  static constexpr unsigned kWarp = 0xFFFFFFFF;
  enum Barrier : int { kOwn = 1, kPair = 3 };  // named barriers: of a warp group, of two neighbouring warps

 public:
  __device__ __forceinline__ BackwardConsumer(const BackwardArguments& a, BackwardMemory<C>& shared, int group,
                                              int warp)
      : a_(a), shared_(shared), group_(group), warp_(warp) {}

  __device__ __forceinline__ void run() {
#pragma unroll 1
    while (next_tile()) {
      wait(&shared_.keys_full[key_slot()], tiles_.count() / C.kKeyStages & 1, ptx::WaitFor::k_full);
#pragma unroll
      for (int i = 0; i < D / 2; ++i) grad_k_[i] = grad_v_[i] = 0;
      int head = uniform(tile().first_head), begin = uniform(tile().begin);
      if (begin < uniform(tile().end)) {
        if constexpr (C.dropout) begin_head(head);
        one_step<true>(head, begin);
        release_keys_before();
#pragma unroll 1
        while (next_step(head, begin)) one_step<false>(head, begin);
        last_queries();
      } else {
        release_keys_before();
      }
      finalize();
    }
    if (lane() == 0) ptx::wait_stores_read();
  }

 private:
  // A number that all lanes have, and the assembler knows it.
  __device__ static __forceinline__ int uniform(int x) { return __shfl_sync(kWarp, x, 0); }

  __device__ static __forceinline__ std::uint64_t descriptor(const void* tile, int offset,
                                                             std::uint32_t leading) {
    const std::uint32_t address = ptx::shared_address(tile) + static_cast<std::uint32_t>(offset);
    return join_descriptor(descriptor_low(address, leading));
  }

  __device__ __forceinline__ void wait(std::uint64_t* barrier, std::uint32_t phase, ptx::WaitFor what) {
    ptx::wait<C.bounded_waits>(barrier, phase, a_.report, what);
  }

  // Worked out where it is needed, not kept in a register through all steps. PTX ISA: %laneid.
  __device__ static __forceinline__ int lane() {
    int lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
  }

  // --- products ---

  // Of this warp group's keys and 64 queries, keys by queries: `out` = left right^T, over head_dim.
  __device__ __forceinline__ void issue_scores(float (&out)[kUnit / 2], const unsigned char* left,
                                               const unsigned char* right, int half) {
    const std::uint64_t a = descriptor(left, group_ * kGroupRows * kRowBytes, 0);
    const std::uint64_t b = descriptor(right, half * kUnit * kRowBytes, 0);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      const std::uint64_t x = ptx::advance(a, column_step(kKeys, i)), y = ptx::advance(b, column_step(kQueries, i));
      if (i == 0) ptx::Wgmma<kUnit, C.type>::shared_first(out, x, y);
      else ptx::Wgmma<kUnit, C.type>::shared(out, x, y);
    }
    ptx::wgmma_commit();
  }

  // sums += left right, over 64 queries.
  __device__ __forceinline__ void issue_sums(float (&sums)[D / 2], const std::uint32_t (&left)[kUnit / 4],
                                             const unsigned char* right, int half) {
    const std::uint64_t b = descriptor(right, half * kUnit * kRowBytes, kQueries * kRowBytes);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kUnit / 16; ++i)
      ptx::Wgmma<D, C.type>::registers(sums, left + 4 * i, ptx::advance(b, row_step(i)));
    ptx::wgmma_commit();
  }

  // This warp group's 64 x 64 of dQ of the step before, all keys of the tile, when the other warp group has stored its dS, too.
  __device__ __forceinline__ void issue_dq(float (&grad_q)[32]) {
    wait(&shared_.scores_full[score_slot(1)], (queries_.count() - 1) / C.kScoreStages & 1, ptx::WaitFor::scores);
    const std::uint64_t a =
        descriptor(shared_.scores[score_slot(1)], kByQueries ? group_ * kUnit * kRowBytes : 0, 0);
    const std::uint64_t b = descriptor(shared_.k[key_slot()], kByQueries ? 0 : group_ * kKeys * kRowBytes,
                                       kKeys * kRowBytes);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) {
      const std::uint64_t x = ptx::advance(a, column_step(kQueries, i)), y = ptx::advance(b, row_step(i));
      if (i == 0) ptx::Wgmma<64, C.type>::template shared_first<true>(grad_q, x, y);
      else ptx::Wgmma<64, C.type>::template shared<true>(grad_q, x, y);
    }
    ptx::wgmma_commit();
  }

  // --- a step ---

  __device__ __forceinline__ bool next_tile() {
    tiles_.next();
    wait(&shared_.tile_full[tiles_.slot()], tiles_.phase(), ptx::WaitFor::tile);
    return uniform(tile().heads) > 0;
  }

  // False: that was the last one.
  __device__ __forceinline__ bool next_step(int& head, int& begin) {
    begin += kQueries;
    if (begin < uniform(tile().end)) return true;
    if (++head == uniform(tile().first_head + tile().heads)) return false;
    begin = uniform(tile().begin);
    if constexpr (C.dropout) begin_head(head);
    return true;
  }

  template <bool First>
  __device__ __forceinline__ void one_step(int head, int begin) {
    unit<0, First>(begin);
    if constexpr (C.halves == 2) unit<1, First>(begin);
    const int query = begin + (kByQueries ? group_ * kUnit : 0);
    sums_ = query < uniform(tile().last)
                ? head * static_cast<int>(a_.call.blocks.per_head) + tile().origin + query / kUnit
                : -1;
    queries_.next();
  }

  // 64 queries of a step.
  template <int Half, bool First>
  __device__ __forceinline__ void unit(int begin) {
    constexpr bool kLast = Half == C.halves - 1;
    const int slot = uniform(queries_.slot());
    if constexpr (Half == 0) wait(&shared_.q_full[slot], queries_.phase(), ptx::WaitFor::q_full);
    issue_scores(s_, shared_.k[key_slot()], shared_.q[slot], Half);
    ptx::wgmma_wait<1>();
    ptx::pin(p_packed_), ptx::pin(ds_packed_);
    if (Half == 0 && !First) ptx::arrive_if(lane() == 0, &shared_.q_empty[queries_.slot_before()]);
    if constexpr (Half == 0) wait(&shared_.grad_out_full[slot], queries_.phase(), ptx::WaitFor::v_full);
    issue_scores(ds_, shared_.v[key_slot()], shared_.grad_out[slot], Half);
    const int query = begin + Half * kUnit;
    std::uint32_t kept = ~0U;
    if constexpr (C.dropout) kept = draw(query, C.halves == 2 ? Half : static_cast<int>(queries_.count()) & 1);
    ptx::wgmma_wait<1>();
    ptx::pin(s_);
    const bool masked = !whole(begin);
    float check = 0;
    if (masked) apply_mask(query, check);
    exponentiate(slot, Half);
    ptx::wgmma_wait<0>();
    ptx::pin(ds_);
    const bool careful = masked && look_for_poison(check);
    differentiate(slot, Half, kept);
    pack_scores();
    if (masked) hide_unseen(query);
    ptx::arrive_if(lane() == 0, &shared_.read[Half]);
    if constexpr (Half == 0) {
      wait(&shared_.scores_empty[score_slot(0)], (queries_.count() / C.kScoreStages & 1) ^ 1, ptx::WaitFor::v_empty);
    }
    store_scores(Half);
    if constexpr (kLast) {
      ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
      __syncwarp();
      ptx::arrive_if(lane() == 0, &shared_.scores_full[score_slot(0)]);
    }
    if (careful) clear_queries(slot, Half);
    if constexpr (Half == 0 && !First) {
      float grad_q[32];
      issue_dq(grad_q);
      issue_sums(grad_v_, p_packed_, shared_.grad_out[slot], Half);
      issue_sums(grad_k_, ds_packed_, shared_.q[slot], Half);
      ptx::wgmma_wait<2>();
      add_to_dq(grad_q);
    } else {
      issue_sums(grad_v_, p_packed_, shared_.grad_out[slot], Half);
      issue_sums(grad_k_, ds_packed_, shared_.q[slot], Half);
    }
    if constexpr (!C.overlap_units()) ptx::wgmma_wait<0>();
  }

  // Adds what issue_dq computed to the sums.
  __device__ __forceinline__ void add_to_dq(const float (&grad_q)[32]) {
    const bool careful = __any_sync(kWarp, shared_.careful[score_slot(1)] == careful_mark(1));
    if (sums_ >= 0) {
      float* to = a_.call.grad_q_sums + static_cast<std::int64_t>(sums_) * (kUnit * D) +
                  flash2::fragment_offset(D, warp_ * 16, kByQueries ? 0 : group_ * 64);
      if (careful) {
        add_carefully(to);
      } else {
#pragma unroll
        for (int j = 0; j < 8; ++j)
          flash2::reduce_fragment(to + 128 * j, reinterpret_cast<const float(&)[4]>(grad_q[4 * j]));
      }
    }
    ptx::arrive_if(lane() == 0, &shared_.scores_empty[score_slot(1)]);
  }

  // After the last step of a tile.
  __device__ __forceinline__ void last_queries() {
    float grad_q[32];
    issue_dq(grad_q);
    ptx::wgmma_wait<0>();
    ptx::pin(grad_v_), ptx::pin(grad_k_), ptx::pin(p_packed_), ptx::pin(ds_packed_);
    add_to_dq(grad_q);
    ptx::arrive_if(lane() == 0, &shared_.q_empty[queries_.slot_before()]);
  }

  // --- scores to P and dS: backward_scores.cuh ---

  __device__ bool whole(int query) const;
  __device__ void apply_mask(int query, float& check);
  __device__ void exponentiate(int slot, int half);
  __device__ void differentiate(int slot, int half, std::uint32_t kept);
  __device__ bool look_for_poison(float check);
  __device__ void hide_unseen(int query);
  __device__ void pack_scores();
  __device__ void store_scores(int half) const;
  __device__ void clear_queries(int slot, int half);
  __device__ void add_carefully(float* to) const;
  __device__ void begin_head(int head);
  __device__ std::uint32_t draw(int query, int buffer);

  // --- the end of a tile: backward_finish.cuh ---

  __device__ void release_keys_before();
  __device__ void finalize();
  __device__ void store_tile(const float (&sums)[D / 2], float factor, unsigned char* staged,
                             const CUtensorMap& map, const core::View& view);

  __device__ const KeyTile& tile() const { return shared_.tiles[tiles_.slot()]; }
  __device__ int key_slot() const { return static_cast<int>(tiles_.count() % C.kKeyStages); }
  // Of dS of this step, or of the one before.
  __device__ int score_slot(unsigned before) const {
    return static_cast<int>((queries_.count() - before) % C.kScoreStages);
  }
  // The bit of what dropout keeps for query 8 j + 2 (lane % 4) + x of a unit and key 8 r + lane / 4 of a warp.
  __device__ static constexpr int kept_position(int j, int r, int x) { return 16 * x + 2 * j + r; }
  __device__ int careful_mark(unsigned before) const { return static_cast<int>(queries_.count() - before) + 1; }

  static constexpr bool kByQueries = C.halves == 2;  // how warp groups share dQ

  const BackwardArguments& a_;
  BackwardMemory<C>& shared_;
  const int group_, warp_;  // the warp within its group
  Ring<kTileSlots> tiles_{~0U};    // next_tile goes to the first
  Ring<C.kQueryStages> queries_;   // counts steps
  int sums_ = -1;             // the block of sums that dQ under way is added to; -1: the sequence has no such queries
  float s_[kUnit / 2];        // scores, then P: rows are keys
  float ds_[kUnit / 2];       // dP, then dS
  float grad_k_[D / 2], grad_v_[D / 2];
  std::uint32_t p_packed_[kUnit / 4], ds_packed_[kUnit / 4];
};

}  // namespace tessera::cuda::hopper
