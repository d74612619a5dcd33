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
      : a_(a), shared_(shared), group_(group), warp_(warp), lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ __forceinline__ void run() {
#pragma unroll 1
    while (next_tile()) {
      wait(&shared_.keys_full[key_slot()], tiles_.count() / C.kKeyStages & 1, ptx::WaitFor::k_full);
#pragma unroll
      for (int i = 0; i < D / 2; ++i) grad_k_[i] = grad_v_[i] = 0;
      step_ = 0;
      if (uniform(tile().begin) < uniform(tile().end)) {
        int head = uniform(tile().first_head);
#pragma unroll 1
        do {  // loops that are never passed over: products may be in flight at their ends
          if constexpr (C.dropout) begin_head(head);
          int at = uniform(tile().begin);
#pragma unroll 1
          do {
            one_step(head, at);
            at += kQueries;
          } while (at < uniform(tile().end));
        } while (++head < uniform(tile().first_head + tile().heads));
        last_queries();
      }
      finalize();
    }
    if (lane_ == 0) ptx::wait_stores_read();
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

  // For addresses that are worked out where they are needed and not kept in registers through all steps.
  __device__ __forceinline__ int kept_lane() const {
    return static_cast<int>(ptx::kept(static_cast<std::uint32_t>(lane_)));
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

  // This warp group's 64 x 64 of dQ: all keys of the tile.
  __device__ __forceinline__ void issue_dq(float (&grad_q)[32]) {
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

  __device__ __forceinline__ void one_step(int head, int begin) {
    float grad_q[32];
    unit<0>(begin, grad_q);
    if constexpr (C.halves == 2) unit<1>(begin, grad_q);
    const int query = begin + (kByQueries ? group_ * kUnit : 0);
    sums_ = query < uniform(tile().last)
                ? head * static_cast<int>(a_.call.blocks.per_head) + tile().origin + query / kUnit
                : -1;
    queries_.next();
    ++step_;
  }

  // 64 queries of a step.
  template <int Half>
  __device__ __forceinline__ void unit(int begin, float (&grad_q)[32]) {
    constexpr bool kLast = Half == C.halves - 1;
    const int slot = uniform(queries_.slot());
    if constexpr (Half == 0) wait(&shared_.q_full[slot], queries_.phase(), ptx::WaitFor::q_full);
    issue_scores(s_, shared_.k[key_slot()], shared_.q[slot], Half);
    ptx::wgmma_wait<1>();
    ptx::pin(p_packed_), ptx::pin(ds_packed_);
    if (Half == 0 && step_ > 0) ptx::arrive_if(lane_ == 0, &shared_.q_empty[queries_.slot_before()]);
    if (Half == 0 && step_ == 1) release_keys_before();
    if (Half == 1 && step_ > 0) add_to_dq(grad_q);
    if constexpr (Half == 0) wait(&shared_.grad_out_full[slot], queries_.phase(), ptx::WaitFor::v_full);
    issue_scores(ds_, shared_.v[key_slot()], shared_.grad_out[slot], Half);
    const int query = begin + Half * kUnit;
    std::uint32_t kept = ~0U;
    if constexpr (C.dropout) kept = draw(query, C.halves == 2 ? Half : static_cast<int>(queries_.count()) & 1);
    ptx::wgmma_wait<1>();
    ptx::pin(s_);
    const bool masked = !whole(begin);
    float check = 0;
    exponentiate(slot, Half, query, masked, check);
    ptx::wgmma_wait<0>();
    ptx::pin(ds_);
    differentiate(slot, Half, query, masked, kept, check);
    ptx::arrive_if(lane_ == 0, &shared_.read[Half]);
    if constexpr (Half == 0) {
      wait(&shared_.scores_empty[score_slot(0)], (queries_.count() / C.kScoreStages & 1) ^ 1, ptx::WaitFor::v_empty);
    }
    store_scores(Half);
    if (masked && any_of_group(!(check == 0))) clear_queries(slot, Half);
    issue_sums(grad_v_, p_packed_, shared_.grad_out[slot], Half);
    issue_sums(grad_k_, ds_packed_, shared_.q[slot], Half);
    if constexpr (kLast) {
      ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
      __syncwarp();
      ptx::arrive_if(lane_ == 0, &shared_.scores_full[score_slot(0)]);
    }
    if (Half == 0 && step_ > 0) begin_dq(grad_q);
  }

  // dQ of the step before, when the other warp group has stored its part of dS.
  __device__ __forceinline__ void begin_dq(float (&grad_q)[32]) {
    wait(&shared_.scores_full[score_slot(1)], (queries_.count() - 1) / C.kScoreStages & 1, ptx::WaitFor::scores);
    issue_dq(grad_q);
  }

  // Adds what begin_dq began to the sums.
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
    ptx::arrive_if(lane_ == 0, &shared_.scores_empty[score_slot(1)]);
  }

  // After the last step of a tile.
  __device__ __forceinline__ void last_queries() {
    float grad_q[32];
    begin_dq(grad_q);
    ptx::wgmma_wait<0>();
    ptx::pin(grad_v_), ptx::pin(grad_k_), ptx::pin(p_packed_), ptx::pin(ds_packed_);
    add_to_dq(grad_q);
    ptx::arrive_if(lane_ == 0, &shared_.q_empty[queries_.slot_before()]);
  }

  // --- scores to P and dS: backward_scores.cuh ---

  __device__ bool whole(int query) const;
  __device__ void exponentiate(int slot, int half, int query, bool masked, float& check);
  __device__ void differentiate(int slot, int half, int query, bool masked, std::uint32_t kept, float& check);
  __device__ bool any_of_group(bool condition) const;
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
  const int group_, warp_, lane_;  // the warp within its group
  Ring<kTileSlots> tiles_{~0U};    // next_tile goes to the first
  Ring<C.kQueryStages> queries_;   // counts steps
  int step_ = 0;              // of the tile
  int sums_ = -1;             // the block of sums that dQ under way is added to; -1: the sequence has no such queries
  float s_[kUnit / 2];        // scores, then P: rows are keys
  float ds_[kUnit / 2];       // dP, then dS
  float grad_k_[D / 2], grad_v_[D / 2];
  std::uint32_t p_packed_[kUnit / 4], ds_packed_[kUnit / 4];
};

}  // namespace tessera::cuda::hopper
