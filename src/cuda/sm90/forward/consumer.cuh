// A computing warp group of the Hopper forward kernel: its 64 rows of a tile, step by step.
// kernel.cuh has the schedule.
#pragma once

#include <cfloat>

#include "cuda/common/ptx/math.cuh"
#include "cuda/common/ptx/mma.cuh"
#include "cuda/common/ptx/wgmma.cuh"
#include "cuda/sm90/common/warp_group.cuh"
#include "cuda/sm90/forward/shared.cuh"

namespace tessera::cuda::sm90::forward {

// Named barriers, by the index of a warp group; 0 is __syncthreads.
enum Barrier : int { kTurn = 1, kOwn = 5, kEveryone = 9 };

template <Config C>
class Consumer {
  static_assert(valid(C));
  using Number = ptx::Storage<C.type>;
  static constexpr int kWidth = C.block_k, kRows = C.block_q();
  static constexpr bool kTwoBuffers = C.softmax == Softmax::two_buffers;
  static constexpr bool kSpeculates = C.softmax != Softmax::exact_maximum;
  static constexpr bool kOverlapTiles = C.overlap_tiles();
  static constexpr unsigned kWarp = 0xFFFFFFFF;
  // Bounds for the sum over the columns of a step that a lane holds of a row. Below the upper bound
  // no P overflows its type; above the lower one, which holds for the first step of a tile, no P
  // loses digits.
  static constexpr float kLargestSum = C.type == ptx::Half16::bf16 ? 1e18F : 3e4F;
  static constexpr float kLeastSum = C.type == ptx::Half16::bf16 ? 1e-18F : 1.0F;
  static constexpr float kNothing = -FLT_MAX;  // the reference of a row that has seen no key yet
  // A maximum that grows by less than 2^kLazy is not worth rescaling O.
  static constexpr float kLazy = 8;
  static constexpr int kForever = 1 << 30;

 public:
  __device__ __forceinline__ Consumer(const Arguments& a, SharedMemory<C>& shared, int group, int warp)
      : a_(a), shared_(shared), group_(group), warp_(warp), lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ __forceinline__ void run() {
    if (C.alternate && group_ == C.warp_groups - 1) ptx::pass(kTurn, 2 * kWarpGroup);
    if (next_tile()) {
      Finish finish;
      issue_first_step();
      first_step();
      if constexpr (kOverlapTiles) {
        while (remaining_steps(), next_tile()) change_tile(finish);
        last_values(finish);
      } else {
        while (remaining_steps(), last_values(finish), next_tile()) {
          issue_first_step();
          finalize(tile_before(), finish);
          first_step();
        }
      }
      finalize(tile_before(), finish);
    }
    if (C.alternate && group_ == 0) ptx::meet(kTurn, 2 * kWarpGroup);
    repair();
  }

 private:
  // The ends of this lane's two rows: the factor of O, and the LSE.
  struct Finish {
    float normaliser[2], lse[2];
  };

  // For addresses that are seldom needed: they are computed there and do not occupy registers
  // through all steps.
  __device__ __forceinline__ int opaque_lane() const { return ptx::opaque(lane_); }

  // --- products ---

  __device__ __forceinline__ void issue_qk() {
    const std::uint64_t q = descriptor(shared_.q[q_slot()], group_ * kGroupRows * kRowBytes, 0);
    const std::uint64_t k = descriptor(shared_.k[k_.slot()], 0, 0);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < C.qk_dim / C.product_depth(); ++i) {
      const std::uint64_t a = ptx::advance(q, column_step(kRows, i)),
                          b = ptx::advance(k, column_step(kWidth, i));
      if (i == 0) ptx::Wgmma<kWidth, C.type>::shared_first(s_, a, b);
      else ptx::Wgmma<kWidth, C.type>::shared(s_, a, b);
    }
    ptx::wgmma_commit();
  }

  template <int Buffer>
  __device__ __forceinline__ void issue_pv() {
    const std::uint64_t v = descriptor(shared_.v[v_.slot()], 0, kWidth * kRowBytes);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kWidth / C.product_depth(); ++i) {
      ptx::Wgmma<C.v_dim, C.type>::registers(o_, p_[Buffer] + 4 * i, ptx::advance(v, row_step(i)));
    }
    ptx::wgmma_commit();
  }

  // --- barriers ---

  __device__ __forceinline__ void wait(std::uint64_t* barrier, std::uint32_t phase, WaitFor what) {
    ptx::wait<C.bounded_waits>(barrier, phase, a_.report, what);
  }
  __device__ __forceinline__ void wait_queries() {
    wait(&shared_.q_full[q_slot()][q_part()], tiles_.count() / C.q_stages & 1, WaitFor::q_full);
  }
  __device__ __forceinline__ void wait_keys() {
    wait(&shared_.k_full[k_.slot()], k_.phase(), WaitFor::k_full);
  }
  __device__ __forceinline__ void wait_values() {
    wait(&shared_.v_full[v_.slot()], v_.phase(), WaitFor::v_full);
  }
  __device__ __forceinline__ void release_keys() {
    ptx::arrive_if(lane_ == 0, &shared_.k_empty[k_.slot()]);
    k_.next();
  }
  __device__ __forceinline__ void release_values() {
    ptx::arrive_if(lane_ == 0, &shared_.v_empty[v_.slot()]);
    v_.next();
  }
  // Releases Q after the last S of the tile.
  __device__ __forceinline__ void release_queries(int step) {
    ptx::arrive_if(step == own_.bottom && lane_ == 0, &shared_.q_empty[q_slot()][q_part()]);
  }
  __device__ __forceinline__ void begin_turn() {
    if constexpr (C.alternate) ptx::meet(kTurn + group_, 2 * kWarpGroup);
  }
  __device__ __forceinline__ void end_turn() {
    if constexpr (C.alternate) ptx::pass(kTurn + (group_ + 1) % C.warp_groups, 2 * kWarpGroup);
  }

  // --- the steps of a tile ---

  // Goes to the next tile and skips the steps above this warp group's; false if there is no tile.
  __device__ __forceinline__ bool next_tile() {
    tiles_.next();
    wait(&shared_.tile_full[tiles_.slot()], tiles_.phase(), WaitFor::tile);
    own_ = own();
    if (own_.top < 0) return false;
    skip_keys(own_.above);
    return true;
  }

  // What this warp group does in the tile. Read from shared memory again where registers are
  // scarce.
  __device__ __forceinline__ GroupSteps own() const {
    const GroupSteps& steps = tile().groups[group_];
    const auto a = *reinterpret_cast<const int4*>(&steps.top);
    const auto b = *reinterpret_cast<const int2*>(&steps.above);
    return {uniform(a.x), uniform(a.y), uniform(a.z), uniform(a.w), uniform(b.x), uniform(b.y)};
  }

  __device__ __forceinline__ void skip_keys(int count) {
#pragma unroll 1
    for (; count > 0; --count) {
      wait_keys();
      begin_turn();
      end_turn();
      release_keys();
    }
  }
  // Releases V of skipped steps as soon as no step before them needs its own. Pending: the last
  // step's V is still in use.
  template <int Pending>
  __device__ __forceinline__ void skip_values() {
#pragma unroll 1
    while (v_.count() + Pending != k_.count()) {
      wait_values();
      release_values();
    }
  }

  // The rows of Q beyond the end of a packed sequence belong to the next one. They must not take
  // part in votes: they become 0.
  __device__ __forceinline__ void hide_foreign_queries() {
    const int rows = uniform(tile().rows) - group_ * kGroupRows;
    if (rows >= kGroupRows) return;
    const std::uint32_t q = ptx::shared_address(shared_.q[q_slot()]) +
                            static_cast<std::uint32_t>(group_ * kGroupRows * kRowBytes);
    const int begin = max(rows, 0) * kRowBytes, thread = static_cast<int>(threadIdx.x) % kWarpGroup;
#pragma unroll 1
    for (int panel = 0; panel < C.qk_columns() / C.panel(); ++panel) {
#pragma unroll 1
      for (int at = begin + thread * 16; at < kGroupRows * kRowBytes; at += kWarpGroup * 16) {
        ptx::store_shared(q + static_cast<std::uint32_t>(panel * kRows * kRowBytes + at), uint4{});
      }
    }
    ptx::fence_shared_for_engine();
    ptx::meet(kOwn + group_, kWarpGroup);
  }

  // Issues S of a tile's first step.
  __device__ __forceinline__ void issue_first_step() {
    wait_queries();
    if (a_.p.packed) hide_foreign_queries();
    wait_keys();
    begin_turn();
    issue_qk();
    end_turn();
  }
  // The rest of the first step.
  __device__ __forceinline__ void first_step() {
    ptx::wgmma_wait<0>();
    first_softmax();
    skip_values<1>();
  }

  // The change of overlapping tiles: the last P V and the output of the tile before, and the first
  // step of this one.
  __device__ __forceinline__ void change_tile(Finish& finish) {
    if (a_.p.packed) {
      wait_queries();
      hide_foreign_queries();
    }
    wait_values();
    begin_turn();
    issue_pv<0>();
    wait_queries();
    wait_keys();
    issue_qk();
    end_turn();
    finish_rows(finish);
    ptx::wgmma_wait<1>();
    ptx::pin(o_), ptx::pin(p_[0]);
    release_values();
    finalize(tile_before(), finish);
    if constexpr (C.softmax == Softmax::shared_registers)
      own_ = own();  // registers had no room for it until here
    first_step();
  }

  // The last P V of a tile that is not followed by a change_tile.
  __device__ __forceinline__ void last_values(Finish& finish) {
    wait_values();
    if constexpr (!kOverlapTiles) begin_turn();
    issue_pv<0>();
    if constexpr (!kOverlapTiles) end_turn();
    finish_rows(finish);
    ptx::wgmma_wait<0>();
    ptx::pin(o_), ptx::pin(p_[0]);
    release_values();
    skip_values<0>();
  }

  // All steps but the first: those that the mask cuts, whole ones, and those that the other edge of
  // a window cuts.
  __device__ __forceinline__ void remaining_steps() {
    int step = own_.top - 1, masked_until = max(own_.whole_end, own_.bottom);
    const int whole_until = max(own_.whole_begin, own_.bottom);
#pragma unroll 1
    do {
#pragma unroll 1
      for (; step >= masked_until; --step) one_step<true, 0>(step);
      masked_until = own_.bottom;
      if constexpr (kTwoBuffers) {  // pairs of steps, so that P starts and ends in p_[0]
        bool second = step >= whole_until && (step - whole_until) % 2 == 0;
        if (second) {
#pragma unroll
          for (int i = 0; i < kWidth / 4; ++i) p_[1][i] = p_[0][i];
        }
#pragma unroll 1
        while (step >= whole_until) {
          if (!second) one_step<false, 0>(step--);
          one_step<false, 1>(step--);
          second = false;
        }
      } else {
#pragma unroll 1
        for (; step >= whole_until; --step) one_step<false, 0>(step);
      }
    } while (step >= own_.bottom);
    skip_keys(own_.below);
  }

  // S of a step, and P V of the step before it, whose P is in buffer `From`.
  template <bool Masked, int From>
  __device__ __forceinline__ void one_step(int step) {
    constexpr bool kOther = kTwoBuffers && !Masked;  // P goes to the buffer that P V does not read
    wait_keys();
    begin_turn();
    issue_qk();
    wait_values();
    issue_pv<From>();
    end_turn();
    ptx::wgmma_wait<1>();
    ptx::pin(s_);
    float factor[2];
    bool moved = false;
    if constexpr (kOther) {
      release_keys();
      release_queries(step);
      moved = speculate<1 - From>(factor);
      ptx::pin(p_[1 - From]);
    } else if constexpr (kSpeculates && !Masked) {
      moved = speculate_in_place(factor);
      release_keys();
      release_queries(step);
      ptx::pin(s_);
    } else {
      release_keys();
      release_queries(step);
      if constexpr (Masked) apply_mask(step);
      moved = raise_references(factor);
      float sums[2];
      exponentiate<Masked>(sums);
      add(sums);
      ptx::pin(s_);
    }
    ptx::wgmma_wait<0>();
    ptx::pin(o_), ptx::pin(p_[From]);
    release_values();
    if (moved) rescale(factor);
    if constexpr (!kOther) pack_scores<From>();
  }

  // --- masks and softmax: softmax.cuh ---

  __device__ void apply_mask(int step);
  __device__ bool raise_references(float (&factor)[2]);
  template <bool Exact>
  __device__ float exponential(int i) const;
  template <bool Exact>
  __device__ void exponentiate(float (&sums)[2]);
  template <bool Exact, int Buffer>
  __device__ void exponentiate_into(float (&sums)[2]);
  __device__ void add(const float (&sums)[2]);
  __device__ static bool outgrown(const float (&sums)[2]);
  __device__ void count_failure();
  __device__ bool pauses();
  __device__ void first_softmax();
  template <int To>
  __device__ bool speculate(float (&factor)[2]);
  __device__ void recompute_scores();
  __device__ bool speculate_in_place(float (&factor)[2]);
  __device__ void rescale(const float (&factor)[2]);
  template <int Buffer>
  __device__ void pack_scores();

  // --- the end of a tile, and of all tiles: epilogue.cuh ---

  __device__ void clear();
  __device__ void finish_rows(Finish& finish);
  __device__ void finalize(const Tile& t, const Finish& finish);
  __device__ void store_lse(const Tile& t, const Finish& finish);
  __device__ void store_rows(const Tile& t, int first_column, int rows);
  __device__ void repair();

  // Every tile has a Q, so the tiles count the ring of Q.
  __device__ int q_slot() const { return static_cast<int>(tiles_.count() % C.q_stages); }
  __device__ int q_part() const { return C.q_parts() == 1 ? 0 : group_; }
  __device__ const Tile& tile() const { return shared_.tiles[tiles_.slot()]; }
  __device__ const Tile& tile_before() const { return shared_.tiles[tiles_.slot_before()]; }

  const Arguments& a_;
  SharedMemory<C>& shared_;
  const int group_, warp_, lane_;  // the warp within its group
  Ring<C.k_stages> k_;
  Ring<C.v_stages> v_;
  Ring<kTileSlots> tiles_{~0U};  // the first next_tile goes to slot 0
  GroupSteps own_;               // of this tile
  int pause_ = 0;                // steps to search before the next speculation
  float s_[kWidth / 2];          // scores
  float o_[C.v_dim / 2];         // output, not normalised
  std::uint32_t p_[kTwoBuffers ? 2 : 1][kWidth / 4];
  // Of rows lane / 4 and lane / 4 + 8. The sums are over this lane's columns.
  float reference_[2], sum_[2];
};

}  // namespace tessera::cuda::sm90::forward
