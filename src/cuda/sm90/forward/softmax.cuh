// Masks and softmax of the Hopper forward kernel. kernel.cuh explains speculation.
#pragma once

#include "cuda/sm90/forward/consumer.cuh"

namespace tessera::cuda::sm90::forward {

template <Config C>
__device__ __forceinline__ void Consumer<C>::apply_mask(int step) {
  const Tile& t = tile();
  const int lane = opaque_lane();
  const int row = group_ * kGroupRows + warp_ * 16 + lane / 4, column = step * kWidth + lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int last = min(row + half * 8 + t.high, t.keys - 1) - column;
#pragma unroll
    for (int j = 0; j < kWidth / 8; ++j) {
      if (j * 8 > last) s_[4 * j + 2 * half] = -INFINITY;
      if (j * 8 + 1 > last) s_[4 * j + 2 * half + 1] = -INFINITY;
    }
  }
  if (step * kWidth >= group_ * kGroupRows + kGroupRows - 1 + t.low) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int first = row + half * 8 + t.low - column;
#pragma unroll
    for (int j = 0; j < kWidth / 8; ++j) {
      if (j * 8 < first) s_[4 * j + 2 * half] = -INFINITY;
      if (j * 8 + 1 < first) s_[4 * j + 2 * half + 1] = -INFINITY;
    }
  }
}

// Searches the row maxima of s_. Returns whether a reference of this warp has moved; then O has to
// be multiplied by the factors.
template <Config C>
__device__ __forceinline__ bool Consumer<C>::raise_references(float (&factor)[2]) {
  bool moved = false;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float x = s_[2 * half], y = s_[2 * half + 1];  // two chains
#pragma unroll
    for (int j = 1; j < kWidth / 8; ++j) {
      x = fmaxf(x, s_[4 * j + 2 * half]);
      y = fmaxf(y, s_[4 * j + 2 * half + 1]);
    }
    x = fmaxf(x, y);
    x = fmaxf(x, __shfl_xor_sync(kWarp, x, 1));
    x = fmaxf(x, __shfl_xor_sync(kWarp, x, 2)) * a_.scale_log2;
    const bool grown = x > reference_[half] + kLazy;
    const float raised = grown ? x : reference_[half];
    factor[half] = ptx::exp2(reference_[half] - raised);
    reference_[half] = raised;
    sum_[half] *= factor[half];
    moved |= grown;
  }
  return __any_sync(kWarp, moved);
}

// 2^(s c - reference) of element i; Exact: the largest score gives exactly 1.
template <Config C>
template <bool Exact>
__device__ __forceinline__ float Consumer<C>::exponential(int i) const {
  const float reference = reference_[(i >> 1) & 1];
  return ptx::exp2(Exact ? __fadd_rn(__fmul_rn(s_[i], a_.scale_log2), -reference)
                         : fmaf(s_[i], a_.scale_log2, -reference));
}

// s_ becomes P, in place; `sums` over this lane's elements.
template <Config C>
template <bool Exact>
__device__ __forceinline__ void Consumer<C>::exponentiate(float (&sums)[2]) {
  float sum[4] = {};
#pragma unroll
  for (int i = 0; i < kWidth / 2; ++i) {
    s_[i] = exponential<Exact>(i);
    sum[i & 3] += s_[i];
  }
  sums[0] = sum[0] + sum[1], sums[1] = sum[2] + sum[3];
}

// P goes to a buffer; the scores stay.
template <Config C>
template <bool Exact, int Buffer>
__device__ __forceinline__ void Consumer<C>::exponentiate_into(float (&sums)[2]) {
  float sum[4] = {};
#pragma unroll
  for (int i = 0; i < kWidth / 2; i += 2) {
    const float x = exponential<Exact>(i), y = exponential<Exact>(i + 1);
    sum[i & 3] += x, sum[(i + 1) & 3] += y;
    p_[Buffer][i / 2] = ptx::pack<C.type>(x, y);
  }
  sums[0] = sum[0] + sum[1], sums[1] = sum[2] + sum[3];
}

template <Config C>
__device__ __forceinline__ void Consumer<C>::add(const float (&sums)[2]) {
  sum_[0] += sums[0], sum_[1] += sums[1];
}

// Whether a score has outgrown its reference too far for P's type, or is NaN.
template <Config C>
__device__ __forceinline__ bool Consumer<C>::outgrown(const float (&sums)[2]) {
  return !(sums[0] < kLargestSum && sums[1] < kLargestSum);
}

// After a failure of speculation: each pause is twice as long as the one before, so that unlucky
// data stays cheap.
template <Config C>
__device__ __forceinline__ void Consumer<C>::count_failure() {
  int& failures = shared_.failures[group_ * 4 + warp_];
  __syncwarp();  // lane 0 has stored the previous count; votes do not order memory
  const int count = failures + 1;
  __syncwarp();
  if (lane_ == 0) failures = count;
  pause_ = 1 << min(count, 16);
}

// Whether this step searches because of a failure. A vote, so that the assembler knows that all
// lanes agree.
template <Config C>
__device__ __forceinline__ bool Consumer<C>::pauses() {
  const bool pause = __any_sync(kWarp, pause_ > 0);
  if (pause) --pause_;
  return pause;
}

// The first softmax of a tile, into p_[0]. S is complete.
template <Config C>
__device__ __forceinline__ void Consumer<C>::first_softmax() {
  ptx::pin(s_);
  release_keys();
  release_queries(own_.top);
  if (lane_ == 0) shared_.failures[group_ * 4 + warp_] = 0;
  pause_ = a_.speculate ? 0 : kForever;
  sum_[0] = sum_[1] = 0;
  float sums[2];
  bool search = !kSpeculates || pause_ > 0;
  if (own_.top < own_.whole_begin || own_.top >= own_.whole_end) {
    apply_mask(own_.top);
    search = true;
  }
  if (!search) {
    reference_[0] = reference_[1] = 0;
    exponentiate_into<false, 0>(sums);
    // The bounds are checked per lane, not per row: that is quicker, and a lane with a small sum
    // only costs a search.
    search = outgrown(sums) || !(sums[0] >= kLeastSum && sums[1] >= kLeastSum);
    search = __any_sync(kWarp, search);
  }
  if (search) {
    reference_[0] = reference_[1] = kNothing;
    float factor[2];
    raise_references(factor);
    exponentiate_into<true, 0>(sums);
  }
  add(sums);
  clear();
}

// P into the other buffer. Returns whether O has to be multiplied by the factors.
template <Config C>
template <int To>
__device__ __forceinline__ bool Consumer<C>::speculate(float (&factor)[2]) {
  float sums[2];
  bool search = pauses();
  if (!search) {
    exponentiate_into<false, To>(sums);
    search = __any_sync(kWarp, outgrown(sums));
    if (search) count_failure();
  }
  bool moved = false;
  if (search) {
    moved = raise_references(factor);
    exponentiate_into<false, To>(sums);
  }
  add(sums);
  return moved;
}

// Computes S of this warp's 16 rows again, by mma.sync: the other warps of the group take no part.
// P V may be in flight.
template <Config C>
__device__ __forceinline__ void Consumer<C>::recompute_scores() {
  const int lane = opaque_lane();
  const std::uint32_t q =
      ptx::shared_address(shared_.q[q_slot()]) + matrix_offset(kRows, group_ * kGroupRows + warp_ * 16, lane);
  const std::uint32_t k =
      ptx::shared_address(shared_.k[k_.slot()]) +
      element_offset(kWidth, lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8, C.element_bytes());
  auto& s = reinterpret_cast<float(&)[kWidth / 8][4]>(s_);
#pragma unroll
  for (float& x : s_) x = 0;
#pragma unroll
  for (int step = 0; step < C.qk_dim / 16; ++step) {
    std::uint32_t a[4], b[4];
    ptx::load_matrix(a, matrix_step(kRows, q, 2 * step));
#pragma unroll
    for (int j = 0; j < kWidth / 8; j += 2) {
      ptx::load_matrix(b, matrix_step(kWidth, k, 2 * step) + static_cast<std::uint32_t>(j * 8 * kRowBytes));
      ptx::mma<ptx::Mma::k16, C.type>(s[j], a, b[0], b[1]);
      ptx::mma<ptx::Mma::k16, C.type>(s[j + 1], a, b[2], b[3]);
    }
  }
}

// P overwrites the scores, which are computed again if speculation fails.
template <Config C>
__device__ __forceinline__ bool Consumer<C>::speculate_in_place(float (&factor)[2]) {
  float sums[2];
  bool search = pauses();
  if (!search) {
    exponentiate<false>(sums);
    search = __any_sync(kWarp, outgrown(sums));
    if (search) {
      count_failure();
      recompute_scores();
    }
  }
  bool moved = false;
  if (search) {
    moved = raise_references(factor);
    exponentiate<false>(sums);
  }
  add(sums);
  return moved;
}

template <Config C>
__device__ __forceinline__ void Consumer<C>::rescale(const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < C.v_dim / 2; ++i) o_[i] *= factor[(i >> 1) & 1];
}

template <Config C>
template <int Buffer>
__device__ __forceinline__ void Consumer<C>::pack_scores() {
#pragma unroll
  for (int i = 0; i < kWidth / 4; ++i) p_[Buffer][i] = ptx::pack<C.type>(s_[2 * i], s_[2 * i + 1]);
}

}  // namespace tessera::cuda::sm90::forward
