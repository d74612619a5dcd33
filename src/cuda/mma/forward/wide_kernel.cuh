// cuda.flash2 forward for head_dim 256, plain calls: pairs of warps.
//
// Why pairs
//   A warp has no registers for all columns of the output of 32 rows, and with 16 rows every
//   operand from shared memory would feed only one product. So two warps share 32 rows. For the
//   scores they divide the keys of a step, for the output the columns; P travels through shared
//   memory.
//
// Schedule
//   A thread block owns 128 queries, four pairs of warps, and walks over the keys that they see,
//   from the last to the first:
//
//     barrier, with a vote over P(i)  | the copies of V(i + 1) and K(i + 2) are issued
//     S(i + 1) = Q K^T                | O += P(i) V(i), interleaved with P(i + 1) = 2^(S c - m c)
//
// Speculation
//   As in kernel.cuh, but the vote comes before P is used: if a score has outgrown its maximum, the
//   step is scored again, with a search. That decision, and whether a mask cuts a step, are common
//   to the thread block.
//
// Traffic
//   Q, O and LSE once; K and V once per 128 queries and head. Shared memory holds Q, and two steps
//   of K, V and P.
#pragma once

#include <cstdint>

#include "cuda/common/ptx/mma.cuh"
#include "cuda/common/ptx/shared_memory.cuh"
#include "cuda/mma/forward/products.cuh"
#include "cuda/mma/forward/tile_info.cuh"

namespace tessera::cuda::mma::forward {

template <Config C>
class WideQueryTile {
 public:
  __device__ explicit WideQueryTile(const Arguments& arguments);

  __device__ bool empty() const { return info().empty(); }

  __device__ bool compute(bool careful);

 private:
  static_assert(C.pairs && C.m_tiles == 2 && C.stages == 2 && C.variant == Variant::plain);
  static constexpr int kM = C.m_tiles;
  static constexpr int kKeys = C.block_k / 2;  // of a step, scored by one warp
  static constexpr int kN = kKeys / 8, kK = C.head_dim / 16, kD = C.head_dim / 16;
  static constexpr unsigned kWarp = 0xFFFFFFFF;
  static constexpr float kSpeculationLimit = C.type == ptx::Half16::bf16 ? 1e15F : 3e4F;
  // A maximum that grows by less than 2^kLazy is not worth rescaling O.
  static constexpr float kLazy = 8;

  using Tile = SharedTile<C.head_dim>;
  using ProbabilityTile = SharedTile<C.block_k>;
  using Scores = float[kM][kN][4];
  using RowValues = float[kM][2];
  using Walk = StepWalk<WalkOrder::descending, const VisibleColumns&>;

  __device__ void clear();
  __device__ void walk_keys(bool careful);
  __device__ void issue_qk(Scores& s, int stage);
  template <typename Between>
  __device__ void issue_pv(int stage, Between&& between);
  __device__ bool search(Scores& s, int begin, int stage);
  __device__ void exponentiate(const Scores& s, const RowValues& reference, int stage, int unit);
  __device__ void finalize(bool careful);

  __device__ int row(int mi, int half) const { return warp_row_ + mi * 16 + lane_ / 4 + half * 8; }
  __device__ Tile k_tile(int stage) const { return {shared_ + C.q_bytes() + stage * C.kv_bytes()}; }
  __device__ Tile v_tile(int stage) const { return {k_tile(2 + stage).base}; }
  __device__ ProbabilityTile p_tile(int stage) const {
    return {k_tile(4).base + stage * C.probability_bytes()};
  }
  // Where the warps of a pair exchange a number of each row.
  __device__ std::uint32_t exchange(int part, int r) const {
    return p_tile(2).base + static_cast<std::uint32_t>(part * C.block_q() + r) * 4;
  }
  __device__ static TileInfo& info() {
    return ptx::static_shared<TileInfo[C.warps], WideQueryTile>()[threadIdx.x / 32];
  }

  const Arguments& a_;
  const std::uint32_t shared_;
  const int lane_, part_, warp_row_;  // part: which of the pair
  std::uint32_t q_lane_, k_lane_, v_lane_, p_lane_, p_own_;
  int k_own_, v_own_;
  float o_[kM][kD][4];
  RowValues maximum_, sum_;  // sums over this warp's keys
  RowValues step_sum_;       // of the step before its vote
};

template <Config C>
__device__ __forceinline__ WideQueryTile<C>::WideQueryTile(const Arguments& arguments)
    : a_(arguments),
      shared_(ptx::dynamic_shared_address<128>()),
      lane_(static_cast<int>(threadIdx.x) % 32),
      part_(static_cast<int>(threadIdx.x) / 32 / (C.warps / 2)),
      warp_row_(static_cast<int>(threadIdx.x) / 32 % (C.warps / 2) * 16 * kM) {
  const MatrixAddress by_row = row_operand(lane_), by_column = column_operand(lane_);
  q_lane_ = ptx::opaque(shared_ + Tile::offset(warp_row_ + by_row.row, by_row.chunk));
  k_lane_ = ptx::opaque(k_tile(0).base + Tile::offset(part_ * kKeys + by_column.row, by_column.chunk));
  v_lane_ = ptx::opaque(v_tile(0).base + Tile::offset(by_row.row, by_row.chunk) + part_ * C.head_dim);
  p_lane_ = ptx::opaque(p_tile(0).base + ProbabilityTile::offset(warp_row_ + by_row.row, by_row.chunk));
  p_own_ = ptx::opaque(p_tile(0).base + ProbabilityTile::offset(row(0, 0), part_ * kN) + lane_ % 4 * 4);
  const TileLocation here(a_, C.block_q());
  if (!here.empty()) {
    load_rows<C.head_dim, C.block_q(), C.threads(), true, false>(Tile{shared_}, here.q(), 0, here.rows());
    const KeyWalk walk = here.walk(C.block_k);
    if (!walk.done()) {
      load_rows<C.head_dim, C.block_k, C.threads(), true, false>(k_tile(0), here.k(), walk.begin(),
                                                                 here.keys());
    }
    k_own_ = own_offset<C.head_dim>(a_.k_row_bytes);
    v_own_ = own_offset<C.head_dim>(a_.v_row_bytes);
  }
  here.template remember<Variant::plain>(info());
}

template <Config C>
__device__ __forceinline__ void WideQueryTile<C>::clear() {
#pragma unroll
  for (int mi = 0; mi < kM; ++mi) {
#pragma unroll
    for (int j = 0; j < kD; ++j) o_[mi][j][0] = o_[mi][j][1] = o_[mi][j][2] = o_[mi][j][3] = 0;
    maximum_[mi][0] = maximum_[mi][1] = -INFINITY;
    sum_[mi][0] = sum_[mi][1] = step_sum_[mi][0] = step_sum_[mi][1] = 0;
  }
}

template <Config C>
__device__ __forceinline__ void WideQueryTile<C>::issue_qk(Scores& s, int stage) {
  const std::uint32_t k_base = k_lane_ + stage * C.kv_bytes();
#pragma unroll
  for (int k_step = 0; k_step < kK; ++k_step) {
    std::uint32_t q[kM][4];
#pragma unroll
    for (int mi = 0; mi < kM; ++mi) ptx::load_matrix(q[mi], Tile::at(q_lane_, mi * 16, k_step));
    multiply_keys<C>(s, q, k_base, 0, k_step);
  }
}

// O += P V for a step. Calls between(n) after the n-th of its kProducts groups of products.
template <Config C>
template <typename Between>
__device__ __forceinline__ void WideQueryTile<C>::issue_pv(int stage, Between&& between) {
  const std::uint32_t p_base = p_lane_ + stage * C.probability_bytes();
  const std::uint32_t v_base = v_lane_ + stage * C.kv_bytes();
#pragma unroll
  for (int k_step = 0; k_step < C.block_k / 16; ++k_step) {
    std::uint32_t p[kM][4];
#pragma unroll
    for (int mi = 0; mi < kM; ++mi) ptx::load_matrix(p[mi], ProbabilityTile::at(p_base, mi * 16, k_step));
#pragma unroll
    for (int d_tile = 0; d_tile < kD; d_tile += 2) {
      std::uint32_t v[4];
      ptx::load_matrix_transposed(v, Tile::at(v_base, k_step * 16, d_tile / 2));
#pragma unroll
      for (int mi = 0; mi < kM; ++mi) {
        ptx::mma<C.mma, C.type>(o_[mi][d_tile], p[mi], v[0], v[1]);
        ptx::mma<C.mma, C.type>(o_[mi][d_tile + 1], p[mi], v[2], v[3]);
      }
      between(k_step * (kD / 2) + d_tile / 2);
    }
  }
}

// Turns a pair of scores into a word of P.
template <Config C>
__device__ __forceinline__ void WideQueryTile<C>::exponentiate(const Scores& s, const RowValues& reference,
                                                               int stage, int unit) {
  const int mi = unit / (kN * 2), j = unit / 2 % kN, half = unit % 2;
  const float c = a_.features.scale_log2;
  const float x = ptx::exp2(fmaf(s[mi][j][2 * half], c, -reference[mi][half]));
  const float y = ptx::exp2(fmaf(s[mi][j][2 * half + 1], c, -reference[mi][half]));
  step_sum_[mi][half] += x + y;
  ptx::store_shared((p_own_ ^ static_cast<std::uint32_t>(j << 4)) + stage * C.probability_bytes() +
                        (mi * 16 + half * 8) * ProbabilityTile::kRowBytes,
                    ptx::pack<C.type>(x, y));
}

// Masks the scores of a step, raises the maxima, rescales O and the sums, and stores P. Returns
// whether every row of the tile has a maximum now.
template <Config C>
__device__ __forceinline__ bool WideQueryTile<C>::search(Scores& s, int begin, int stage) {
  const float c = a_.features.scale_log2;
  const int key_0 = begin + part_ * kKeys + lane_ % 4 * 2;
  const Diagonals seen = info().diagonals;
#pragma unroll
  for (int mi = 0; mi < kM; ++mi) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = info().begin + row(mi, half);
      const int first = query + seen.low - key_0, last = min(info().keys - 1, query + seen.high) - key_0;
      float x = -INFINITY;
#pragma unroll
      for (int j = 0; j < kN; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& score = s[mi][j][2 * half + e];
          if (j * 8 + e < first || j * 8 + e > last) score = -INFINITY;
          x = fmaxf(x, score);
        }
      }
      x = fmaxf(x, __shfl_xor_sync(kWarp, x, 1));
      x = fmaxf(x, __shfl_xor_sync(kWarp, x, 2));
      if (lane_ % 4 == 0) ptx::store_shared(exchange(part_, row(mi, half)), __float_as_uint(x));
    }
  }
  __syncthreads();
  bool set = true;
#pragma unroll
  for (int mi = 0; mi < kM; ++mi) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float x = fmaxf(__uint_as_float(ptx::load_shared_word(exchange(0, row(mi, half)))),
                            __uint_as_float(ptx::load_shared_word(exchange(1, row(mi, half)))));
      const float before = maximum_[mi][half];
      if (x > before && !((x - before) * c < kLazy)) {
        maximum_[mi][half] = x;
        const float factor = ptx::exp2((before - x) * c);
        sum_[mi][half] *= factor;
#pragma unroll
        for (int j = 0; j < kD; ++j) o_[mi][j][2 * half] *= factor, o_[mi][j][2 * half + 1] *= factor;
      }
      set = set && maximum_[mi][half] != -INFINITY;
      // A row that has seen no key yet takes any reference: all of its scores are -inf.
      const float reference = maximum_[mi][half] == -INFINITY ? 0 : maximum_[mi][half];
      float sum = 0;
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        // The difference comes first: then P of the maximum is exactly 1, however large the scores
        // are.
        const float p0 = ptx::exp2((s[mi][j][2 * half] - reference) * c);
        const float p1 = ptx::exp2((s[mi][j][2 * half + 1] - reference) * c);
        sum += p0 + p1;
        ptx::store_shared((p_own_ ^ static_cast<std::uint32_t>(j << 4)) + stage * C.probability_bytes() +
                              (mi * 16 + half * 8) * ProbabilityTile::kRowBytes,
                          ptx::pack<C.type>(p0, p1));
      }
      step_sum_[mi][half] = sum;
    }
  }
  return __syncthreads_and(set);
}

// Computes all steps. `careful`: no speculation, and non-finite values do not reach rows that do
// not see them.
template <Config C>
__device__ __forceinline__ void WideQueryTile<C>::walk_keys(bool careful) {
  constexpr int kUnits = kM * kN * 2, kProducts = C.block_k / 16 * kD / 2;
  Walk walk(info().visible, C.block_k);
  if ((careful || !a_.speculate) && lane_ == 0) info().failures = -1;
  __syncwarp();
  WholeSteps speculative{0, -1};
  bool outgrown = false;  // P of the step to be multiplied next is invalid
  // Of the step that is scored, and of the step before, which is multiplied.
  int begin = 0, current = 0;
  ptx::commit_copies();
#pragma unroll 1
  for (int i = -1;; ++i) {
    const int stage = i & 1;  // of the step that is multiplied
    const bool more = !walk.done();
    ptx::wait_copies<0>();
    const bool failed = __syncthreads_or(outgrown);
    begin = walk.begin();
    Scores s;
    if (failed) {
      const int failures = info().failures + 1;
      __syncwarp();
      if (lane_ == 0) info().failures = failures;
      __syncwarp();
      speculative.high = current - (C.block_k << min(failures, 16));
      issue_qk(s, stage);
      search(s, current, stage);
    }
    if (i < 0 && !more) break;
    if (careful && i >= 0) hide_non_finite_values<C.type, C.threads()>(v_tile(stage).base, C.kv_bytes());
    outgrown = false;
#pragma unroll
    for (int mi = 0; mi < kM; ++mi) {
      sum_[mi][0] += step_sum_[mi][0], sum_[mi][1] += step_sum_[mi][1];
      step_sum_[mi][0] = step_sum_[mi][1] = 0;
    }
    // V of the step that is scored, and K of the step after it. Only the first step may lack keys.
    if (i < 0) {
      const RowSource v{info().v, a_.p.v.row_stride, static_cast<int>(a_.p.v_dim), true};
      load_rows<C.head_dim, C.block_k, C.threads(), true, false>(v_tile(0), v, begin, info().keys);
    }
    const int column = own_column<C.head_dim>();
    if (i >= 0) {
      copy_rows<C.head_dim, C.block_k, C.threads()>(v_tile(stage ^ 1), info().v, v_own_, a_.v_row_bytes,
                                                    begin, more && column < a_.p.v_dim);
    }
    if (more) walk.next();
    copy_rows<C.head_dim, C.block_k, C.threads()>(k_tile(stage), info().k, k_own_, a_.k_row_bytes,
                                                  walk.begin(), !walk.done() && column < a_.p.qk_dim);
    ptx::commit_copies();
    if (more) issue_qk(s, stage ^ 1);
    if (more && begin >= speculative.low && begin <= speculative.high) {
      RowValues reference;
#pragma unroll
      for (int mi = 0; mi < kM; ++mi) {
        reference[mi][0] = maximum_[mi][0] * a_.features.scale_log2;
        reference[mi][1] = maximum_[mi][1] * a_.features.scale_log2;
      }
      issue_pv(stage, [&](int n) {
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
          if (u >= kUnits * n / kProducts && u < kUnits * (n + 1) / kProducts)
            exponentiate(s, reference, stage ^ 1, u);
        }
      });
#pragma unroll
      for (int mi = 0; mi < kM; ++mi) {  // or NaN
        outgrown |= !(step_sum_[mi][0] < kSpeculationLimit) || !(step_sum_[mi][1] < kSpeculationLimit);
      }
    } else {
      if (i >= 0) issue_pv(stage, [](int) {});
      if (!more) break;
      if (search(s, begin, stage ^ 1) && info().failures == 0) {
        speculative = whole_steps(info(), 0, C.block_q() - 1, C.block_k);
      }
    }
    current = begin;
  }
  ptx::wait_copies<0>();
  __syncthreads();
}

// False: the tile has a non-finite value and has to be computed again with care.
template <Config C>
__device__ __forceinline__ bool WideQueryTile<C>::compute(bool careful) {
  clear();
  walk_keys(careful);
  if (__syncthreads_or(!all_finite(o_)) && !careful) return false;
  finalize(careful);
  return true;
}

}  // namespace tessera::cuda::mma::forward
