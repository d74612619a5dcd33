// flash2 forward on mma.sync: exact attention for 16-bit types on every GPU from Turing on.
//
// A thread block owns block_q queries of one head and walks over the keys they see, from the last to the first. A warp
// owns 16 * m_tiles of the rows, with all columns of their output in registers. Per step of block_k keys:
//
//     copies of the next K and V tile are issued    (cp.async, two stages; on Turing plain loads)
//     for each chunk of the step:  S = Q K^T  ->  P = 2^(S c - m c)  ->  O += P V
//
// Speculation. The first steps, and those that a mask cuts, search each row's maximum m (safe_chunk). The others
// exponentiate against the m known so far, and without a search the exponentials of one chunk can stand between the
// products of its neighbours (speculative_step). Before a chunk's P is used, a vote over its row sums tells whether
// some score outgrew m too far for P's type; then the rest of the step is redone with a search, and a tile in which that
// happens twice stops speculating. What is decided depends on the tile's rows alone: results stay reproducible.
//
// Traffic: Q and O once, K and V once per block of queries and head (from L2 when heads of a wave share it), LSE once.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "core/schedule.h"
#include "core/tiles.h"
#include "core/walk.h"
#include "cuda/flash2/features.cuh"
#include "cuda/flash2/forward_config.h"
#include "cuda/ptx/mma.cuh"
#include "cuda/tile/shared_tile.cuh"
#include "cuda/use.h"

namespace tessera::cuda {

template <ForwardConfig C>
class ForwardTile {
 public:
  __device__ explicit ForwardTile(const ForwardArguments& arguments);

  // Whether there are rows at all: sequences of a packed batch differ in length.
  __device__ bool empty() const { return begin_ >= later().end; }

  __device__ bool compute(bool careful);

 private:
  static constexpr int kM = C.m_tiles, kN = C.chunk / 8, kChunks = C.block_k / C.chunk;
  static constexpr int kK = C.head_dim / 16, kD = C.head_dim / 8;
  static constexpr bool kAsync = C.mma == ptx::Mma::k16;
  static constexpr bool kFeatured = C.variant != Variant::plain, kDropout = C.variant == Variant::dropout;
  static constexpr unsigned kWarp = 0xFFFFFFFF;
  // The largest row sum of a chunk that P may have before it is stored in its type.
  static constexpr float kSpeculationLimit = C.type == ptx::Half16::bf16 ? 1e18F : 3e4F;
  static constexpr float kLazy = 8;  // a maximum that grows by less than 2^kLazy is not worth rescaling O

  using Tile = SharedTile<C.head_dim>;
  using BiasTile = SharedTile<C.block_k>;
  using Scores = float[kM][kN][4];
  using Probabilities = std::uint32_t[kM][kN / 2][4];
  using RowValues = float[kM][2];  // a value of each row: rows lane / 4 and lane / 4 + 8 of every m16 tile

  using Walk = core::StepWalk<core::WalkOrder::descending, const core::VisibleColumns&>;

  struct Step {
    int begin, first, last;
  };

  __device__ void clear();
  __device__ void load_step(const Step& step, int stage);
  __device__ void walk_keys(bool careful);
  __device__ void issue_qk(Scores& s, int stage, int chunk, int k_step);
  __device__ void issue_pv(const Probabilities& p, int stage, int chunk, int k_step, int d_tile);
  __device__ void modify(Scores& s, const Step& step, int stage, int chunk);
  __device__ void apply_mask(Scores& s, const Step& step, int chunk);
  __device__ void online_softmax(const Scores& s, Probabilities& p, int column);
  __device__ int speculative_step(const Step& step, int stage);
  __device__ void safe_chunk(const Step& step, int stage, int chunk, bool masked);
  __device__ void hide_spoiled_values(int stage);
  __device__ void reach_visible_rows();
  __device__ bool finite() const;
  __device__ void finalize(bool careful);

  __device__ int row(int mi, int half) const {
    return warp_row_ + mi * 16 + lane_ / 4 + half * 8;
  }  // within the tile
  __device__ static bool spoiled(float x) { return !(fabsf(x) < INFINITY); }
  __device__ float exponent_scale() const { return kFeatured ? 1.0F : a_.features.scale_log2; }
  __device__ Tile k_tile(int stage) const { return {shared_ + C.q_bytes() + stage * 2 * C.kv_bytes()}; }
  __device__ Tile v_tile(int stage) const { return {k_tile(stage).base + C.kv_bytes()}; }
  __device__ BiasTile bias_tile(int stage) const {
    return {shared_ + C.tile_bytes() + stage * C.block_q() * C.block_k * 2};
  }

  // Drops two neighbouring columns as the random generator says. Pairs come in the order of the accumulator, so that
  // one call serves the four pairs of 32 columns; a chunk of 16 uses half of it.
  __device__ __forceinline__ void drop(float& x, float& y, int mi, int j, int half, int column) {
    const unsigned shifted =
        static_cast<unsigned>(column + a_.column_shift);  // of the chunk: a multiple of it
    if (j % 4 == 0) {
      const uint4 stream = ptx::load_shared(ptx::shared_address(&later().dropout));
      const core::PhiloxBlock block =
          core::dropout_call({stream.x, stream.y, stream.z, stream.w},
                             a_.origin_row + static_cast<unsigned>(begin_ + row(mi, half)),
                             a_.origin_group + (shifted + j * 8) / core::kDropoutGroup, lane_ % 4);
      const bool second = C.chunk == 16 && shifted % core::kDropoutGroup != 0;
#pragma unroll
      for (int w = 0; w < 4; ++w) dropout_words_[w] = second ? block.word[(w + 2) % 4] : block.word[w];
    }
    const std::uint32_t word = dropout_words_[j % 4];
    if ((word << 16) <= a_.dropout_limit) x = 0;
    if (word <= a_.dropout_limit) y = 0;
  }

  // What is needed at the end only, or seldom, waits in shared memory, not in registers.
  struct alignas(16) Later {
    core::DropoutStream dropout;
    const std::uint16_t *k, *v;  // the sequence's first row
    std::uint16_t* out;          // the tile's first row
    float* lse;
    std::int64_t bias;  // offset of the head's first row
    int diagonal;       // ALiBi counts from it
    float slope;
    int end;   // of the tile's rows
    int keys;  // of the sequence
    core::VisibleColumns visible;
  };
  __device__ static Later& later() {
    __shared__ Later memory;
    return memory;
  }

  const ForwardArguments& a_;
  const std::uint32_t shared_;
  const int lane_, warp_row_;
  int begin_;  // the tile's first row
  core::Diagonals diagonals_;
  std::uint32_t q_lane_, k_lane_, v_lane_;
  std::uint32_t q_[C.q_in_registers ? kK : 1][C.q_in_registers ? kM : 1][4];
  float o_[kM][kD][4];
  RowValues maximum_, sum_;
  std::uint32_t dropout_words_[4];
};

template <ForwardConfig C>
__device__ __forceinline__ ForwardTile<C>::ForwardTile(const ForwardArguments& arguments)
    : a_(arguments),
      shared_([] {
        extern __shared__ __align__(128) unsigned char memory[];
        return ptx::shared_address(memory);
      }()),
      lane_(static_cast<int>(threadIdx.x) % 32),
      warp_row_(static_cast<int>(threadIdx.x) / 32 * 16 * kM) {
  const core::BasicTask<std::uint32_t> task = a_.order[blockIdx.x];
  const core::Problem& p = a_.p;
  const core::Sequence sequence = core::sequence(p, task.sequence);
  const int head = static_cast<int>(task.head);
  const core::Tile rows = core::Tiling{sequence.q_length, C.block_q(), p.blocks.block_q}[task.tile];
  begin_ = static_cast<int>(rows.begin);
  diagonals_ = core::diagonals(sequence.band);
  const std::int64_t kv_head = head / a_.group;
  const MatrixAddress by_row = row_operand(lane_), by_column = column_operand(lane_);
  q_lane_ = shared_ + Tile::offset(warp_row_ + by_row.row, by_row.chunk);
  k_lane_ = Tile::offset(by_column.row, by_column.chunk);
  v_lane_ = Tile::offset(by_row.row, by_row.chunk);
  if (threadIdx.x == 0) {
    Later& l = later();
    l.k = p.k.row<const std::uint16_t>(sequence.tensor_batch, kv_head, sequence.k_begin);
    l.v = p.v.row<const std::uint16_t>(sequence.tensor_batch, kv_head, sequence.k_begin);
    l.out = p.out.row<std::uint16_t>(sequence.tensor_batch, head, sequence.q_begin + begin_);
    l.lse = p.lse ? p.lse.row<float>(sequence.tensor_batch, head, sequence.q_begin + begin_) : nullptr;
    l.end = static_cast<int>(rows.end);
    l.keys = static_cast<int>(sequence.k_length);
    l.visible = core::visible_keys(p, sequence, head, begin_, static_cast<int>(rows.end));
    if constexpr (kFeatured) {
      l.bias = sequence.index * p.bias.batch_stride + head * p.bias.head_stride;
      l.diagonal =
          static_cast<int>(min(max(sequence.band.diagonal, -core::kLongestWalk), core::kLongestWalk));
      l.slope = a_.features.has_alibi ? alibi_slope(p, sequence.index, head) : 0;
    }
    if constexpr (kDropout) l.dropout = core::dropout_stream(p, sequence.index, head);
  }
  const RowSource q_source{p.q.row<const std::uint16_t>(sequence.tensor_batch, head, sequence.q_begin),
                           p.q.row_stride, static_cast<int>(p.qk_dim), a_.q_aligned};
  if (rows.begin < rows.end) {
    load_rows<C.head_dim, C.block_q(), C.threads(), kAsync, kFeatured>(Tile{shared_}, q_source, begin_,
                                                                       static_cast<int>(rows.end));
  }
  __syncthreads();
}

template <ForwardConfig C>
__device__ __forceinline__ void ForwardTile<C>::clear() {
#pragma unroll
  for (int mi = 0; mi < kM; ++mi) {
#pragma unroll
    for (int j = 0; j < kD; ++j) o_[mi][j][0] = o_[mi][j][1] = o_[mi][j][2] = o_[mi][j][3] = 0;
    maximum_[mi][0] = maximum_[mi][1] = -INFINITY;
    sum_[mi][0] = sum_[mi][1] = 0;
  }
}

template <ForwardConfig C>
__device__ __forceinline__ void ForwardTile<C>::load_step(const Step& step, int stage) {
  const int keys = later().keys;
  const RowSource k{later().k, a_.p.k.row_stride, static_cast<int>(a_.p.qk_dim), a_.k_aligned};
  const RowSource v{later().v, a_.p.v.row_stride, static_cast<int>(a_.p.v_dim), a_.v_aligned};
  load_rows<C.head_dim, C.block_k, C.threads(), kAsync, kFeatured>(k_tile(stage), k, step.begin, keys);
  load_rows<C.head_dim, C.block_k, C.threads(), kAsync, kFeatured>(v_tile(stage), v, step.begin, keys);
  if constexpr (kFeatured) {
    if (a_.bias_staged) {
      const core::View& bias = a_.p.bias;
      const RowSource source{static_cast<const std::uint16_t*>(bias.data) + later().bias + step.begin,
                             bias.row_stride, static_cast<int>(a_.p.k_length) - step.begin, true};
      load_rows<C.block_k, C.block_q(), C.threads(), kAsync, false>(bias_tile(stage), source, begin_,
                                                                    later().end);
    }
  }
}

// One 16-wide step of the contraction for all scores of a chunk.
template <ForwardConfig C>
__device__ __forceinline__ void ForwardTile<C>::issue_qk(Scores& s, int stage, int chunk, int k_step) {
  std::uint32_t q[kM][4];
#pragma unroll
  for (int mi = 0; mi < kM; ++mi) {
    if constexpr (C.q_in_registers) {
#pragma unroll
      for (int e = 0; e < 4; ++e) q[mi][e] = q_[k_step][mi][e];
    } else {
      ptx::load_matrix(q[mi], Tile::at(q_lane_, mi * 16, k_step));
    }
  }
  const std::uint32_t k_base = k_tile(stage).base + k_lane_;
#pragma unroll
  for (int j = 0; j < kN; j += 2) {
    std::uint32_t k[4];
    ptx::load_matrix(k, Tile::at(k_base, chunk * C.chunk + j * 8, k_step));
#pragma unroll
    for (int mi = 0; mi < kM; ++mi) {
      if (k_step == 0) {
        ptx::mma_first<C.mma, C.type>(s[mi][j], q[mi], k[0], k[1]);
        ptx::mma_first<C.mma, C.type>(s[mi][j + 1], q[mi], k[2], k[3]);
      } else {
        ptx::mma<C.mma, C.type>(s[mi][j], q[mi], k[0], k[1]);
        ptx::mma<C.mma, C.type>(s[mi][j + 1], q[mi], k[2], k[3]);
      }
    }
  }
}

// O += P V for 16 keys (k_step) and the two column tiles from d_tile on.
template <ForwardConfig C>
__device__ __forceinline__ void ForwardTile<C>::issue_pv(const Probabilities& p, int stage, int chunk,
                                                         int k_step, int d_tile) {
  std::uint32_t v[4];
  ptx::load_matrix_transposed(
      v, Tile::at(v_tile(stage).base + v_lane_, chunk * C.chunk + k_step * 16, d_tile / 2));
#pragma unroll
  for (int mi = 0; mi < kM; ++mi) {
    ptx::mma<C.mma, C.type>(o_[mi][d_tile], p[mi][k_step], v[0], v[1]);
    ptx::mma<C.mma, C.type>(o_[mi][d_tile + 1], p[mi][k_step], v[2], v[3]);
  }
}

// Softcap, bias and ALiBi; scores leave in base-2 logarithms.
template <ForwardConfig C>
__device__ __forceinline__ void ForwardTile<C>::modify(Scores& s, const Step& step, int stage, int chunk) {
  const int column = step.begin + chunk * C.chunk + lane_ % 4 * 2;
#pragma unroll
  for (int mi = 0; mi < kM; ++mi) {
#pragma unroll
    for (int j = 0; j < kN; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[mi][j][e] = scaled_score(a_.features, s[mi][j][e]);
    }
  }
  if (a_.bias_staged) {
#pragma unroll
    for (int mi = 0; mi < kM; ++mi) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int j = 0; j < kN; ++j) {
          const std::uint32_t at =
              bias_tile(stage).base + BiasTile::offset(row(mi, half), chunk * kN + j) + lane_ % 4 * 4;
          const float2 bias = ptx::unpack<C.type>(ptx::load_shared_word(at));
          s[mi][j][2 * half] = fmaf(bias.x, kLog2E, s[mi][j][2 * half]);
          s[mi][j][2 * half + 1] = fmaf(bias.y, kLog2E, s[mi][j][2 * half + 1]);
        }
      }
    }
  } else if (a_.features.has_bias) {
    const std::int64_t head = later().bias;
    const int end = later().end, keys = later().keys;
#pragma unroll
    for (int mi = 0; mi < kM; ++mi) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int query = min(begin_ + row(mi, half), end - 1);
#pragma unroll
        for (int j = 0; j < kN; ++j) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int key = min(max(column + j * 8 + e, 0), keys - 1);
            s[mi][j][2 * half + e] += kLog2E * load_bias(a_.p, head + query * a_.p.bias.row_stride + key);
          }
        }
      }
    }
  }
  if (a_.features.has_alibi) {
    const float slope = later().slope;
    const int diagonal = later().diagonal;
#pragma unroll
    for (int mi = 0; mi < kM; ++mi) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto distance = static_cast<float>(begin_ + row(mi, half) + diagonal - column);
#pragma unroll
        for (int j = 0; j < kN; ++j) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            s[mi][j][2 * half + e] -= slope * fabsf(distance - static_cast<float>(j * 8 + e));
          }
        }
      }
    }
  }
}

template <ForwardConfig C>
__device__ __forceinline__ void ForwardTile<C>::apply_mask(Scores& s, const Step& step, int chunk) {
  const int column = step.begin + chunk * C.chunk + lane_ % 4 * 2;
#pragma unroll
  for (int mi = 0; mi < kM; ++mi) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = begin_ + row(mi, half);
      const int first = max(step.first, query + diagonals_.low) - column;
      const int last = min(step.last - 1, query + diagonals_.high) - column;
#pragma unroll
      for (int j = 0; j < kN; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (j * 8 + e < first || j * 8 + e > last) s[mi][j][2 * half + e] = -INFINITY;
        }
      }
    }
  }
}

// Raises the maxima, rescales what was accumulated when one moved far, and turns scores into probabilities.
template <ForwardConfig C>
__device__ __forceinline__ void ForwardTile<C>::online_softmax(const Scores& s, Probabilities& p,
                                                               int column) {
  const float c = exponent_scale();
  RowValues factor;
  bool moved = false;
#pragma unroll
  for (int mi = 0; mi < kM; ++mi) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float x = fmaxf(s[mi][0][2 * half], s[mi][0][2 * half + 1]);
#pragma unroll
      for (int j = 1; j < kN; ++j) x = fmaxf(x, fmaxf(s[mi][j][2 * half], s[mi][j][2 * half + 1]));
      x = fmaxf(x, __shfl_xor_sync(kWarp, x, 1));
      x = fmaxf(x, __shfl_xor_sync(kWarp, x, 2));
      const float before = maximum_[mi][half];
      factor[mi][half] = 1;
      if (x > before && !((x - before) * c < kLazy)) {
        maximum_[mi][half] = x;
        factor[mi][half] = ptx::exp2((before - x) * c);
        moved = true;
      }
    }
  }
  if (__any_sync(kWarp, moved)) {
#pragma unroll
    for (int mi = 0; mi < kM; ++mi) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sum_[mi][half] *= factor[mi][half];
#pragma unroll
        for (int j = 0; j < kD; ++j) {
          o_[mi][j][2 * half] *= factor[mi][half];
          o_[mi][j][2 * half + 1] *= factor[mi][half];
        }
      }
    }
  }
#pragma unroll
  for (int mi = 0; mi < kM; ++mi) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Nothing visible yet: any reference will do, every score is -inf.
      const float reference = maximum_[mi][half] == -INFINITY ? 0 : maximum_[mi][half];
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        // The difference first: at the maximum P is exactly 1, however large the scores.
        float x = ptx::exp2((s[mi][j][2 * half] - reference) * c);
        float y = ptx::exp2((s[mi][j][2 * half + 1] - reference) * c);
        sum_[mi][half] += x + y;
        if constexpr (kDropout) drop(x, y, mi, j, half, column);
        p[mi][j / 2][j % 2 * 2 + half] = ptx::pack<C.type>(x, y);
      }
    }
  }
}

// A step that no mask cuts, against the maxima known so far. Exponentials of chunk c stand between the products of
// chunks c + 1 (scores) and c - 1 (output), in proportion to their count. Returns how many chunks are done: all, or
// those before the first that outgrew its maximum.
template <ForwardConfig C>
__device__ __forceinline__ int ForwardTile<C>::speculative_step(const Step& step, int stage) {
  constexpr int kUnits = kM * kN * 2;                            // pairs of exponentials in a chunk
  constexpr int kScoreWork = kK * kN, kValueWork = kN / 2 * kD;  // products per m16 tile
  Scores s[2];
  Probabilities p[2];
  RowValues sum = {}, reference;
  const float c = exponent_scale();
#pragma unroll
  for (int mi = 0; mi < kM; ++mi) {
    reference[mi][0] = maximum_[mi][0] * c;
    reference[mi][1] = maximum_[mi][1] * c;
  }
  auto exponentiate = [&](int chunk, int unit) {
    const int mi = unit / (kN * 2), half = unit / kN % 2, j = unit % kN;
    const float* pair = &s[chunk & 1][mi][j][2 * half];
    float x = ptx::exp2(kFeatured ? pair[0] - reference[mi][half] : fmaf(pair[0], c, -reference[mi][half]));
    float y = ptx::exp2(kFeatured ? pair[1] - reference[mi][half] : fmaf(pair[1], c, -reference[mi][half]));
    sum[mi][half] = j == 0 ? x + y : sum[mi][half] + (x + y);
    if constexpr (kDropout) drop(x, y, mi, j, half, step.begin + chunk * C.chunk);
    p[chunk & 1][mi][j / 2][j % 2 * 2 + half] = ptx::pack<C.type>(x, y);
  };
  auto outgrown = [&] {  // the chunk exponentiated last; else its sums are taken over
    bool bad = false;
#pragma unroll
    for (int mi = 0; mi < kM; ++mi) {
#pragma unroll
      for (int half = 0; half < 2; ++half) bad |= !(sum[mi][half] < kSpeculationLimit);  // NaN too
    }
    if (__any_sync(kWarp, bad)) return true;
#pragma unroll
    for (int mi = 0; mi < kM; ++mi) {
#pragma unroll
      for (int half = 0; half < 2; ++half) sum_[mi][half] += sum[mi][half];
    }
    return false;
  };

#pragma unroll
  for (int k_step = 0; k_step < kK; ++k_step) issue_qk(s[0], stage, 0, k_step);
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    if constexpr (kFeatured) modify(s[chunk & 1], step, stage, chunk);
    const int work = (chunk + 1 < kChunks ? kScoreWork : 0) + (chunk > 0 ? kValueWork : 0);
    int issued = 0, unit = 0;
    auto keep_pace = [&](int products) {
      issued += products;
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        if (u >= unit && u < kUnits * issued / work) exponentiate(chunk, u);
      }
      unit = kUnits * issued / work;
    };
    if (chunk + 1 < kChunks) {
#pragma unroll
      for (int k_step = 0; k_step < kK; ++k_step) {
        issue_qk(s[(chunk + 1) & 1], stage, chunk + 1, k_step);
        // Behind the first products, so that nothing waits for the last exponentials of the chunk before.
        if (chunk > 0 && k_step == 0 && outgrown()) return chunk - 1;
        keep_pace(kN);
      }
    } else if (chunk > 0 && outgrown()) {
      return chunk - 1;
    }
    if (chunk > 0) {
#pragma unroll
      for (int k_step = 0; k_step < kN / 2; ++k_step) {
#pragma unroll
        for (int d_tile = 0; d_tile < kD; d_tile += 2) {
          issue_pv(p[(chunk - 1) & 1], stage, chunk - 1, k_step, d_tile);
          keep_pace(2);
        }
      }
    }
  }
  if (outgrown()) return kChunks - 1;
#pragma unroll
  for (int k_step = 0; k_step < kN / 2; ++k_step) {
#pragma unroll
    for (int d_tile = 0; d_tile < kD; d_tile += 2) {
      issue_pv(p[(kChunks - 1) & 1], stage, kChunks - 1, k_step, d_tile);
    }
  }
  return kChunks;
}

// One chunk with everything: mask, search for the maximum, rescaling.
template <ForwardConfig C>
__device__ __forceinline__ void ForwardTile<C>::safe_chunk(const Step& step, int stage, int chunk,
                                                           bool masked) {
  Scores s;
  Probabilities p;
#pragma unroll
  for (int k_step = 0; k_step < kK; ++k_step) issue_qk(s, stage, chunk, k_step);
  if constexpr (kFeatured) modify(s, step, stage, chunk);
  if (masked) apply_mask(s, step, chunk);
  online_softmax(s, p, step.begin + chunk * C.chunk);
#pragma unroll
  for (int k_step = 0; k_step < kN / 2; ++k_step) {
#pragma unroll
    for (int d_tile = 0; d_tile < kD; d_tile += 2) issue_pv(p, stage, chunk, k_step, d_tile);
  }
}

// Values that are not finite must not reach rows that do not see them, and 0 * infinity would: out of the tile with
// them. reach_visible_rows brings them back to those that do.
template <ForwardConfig C>
__device__ __forceinline__ void ForwardTile<C>::hide_spoiled_values(int stage) {
  for (int i = static_cast<int>(threadIdx.x); i < C.kv_bytes() / 4; i += C.threads()) {
    const std::uint32_t at = v_tile(stage).base + static_cast<std::uint32_t>(i) * 4;
    float2 v = ptx::unpack<C.type>(ptx::load_shared_word(at));
    if (!spoiled(v.x) && !spoiled(v.y)) continue;
    ptx::store_shared(at, ptx::pack<C.type>(spoiled(v.x) ? 0 : v.x, spoiled(v.y) ? 0 : v.y));
  }
  __syncthreads();
}

// Adds every value that is not finite to the staged output of this warp's rows that see its key.
template <ForwardConfig C>
__device__ __forceinline__ void ForwardTile<C>::reach_visible_rows() {
  Walk walk(later().visible, C.block_k, kDropout ? a_.column_shift : 0);
  const std::uint16_t* const values = later().v;
  const int columns = static_cast<int>(a_.p.v_dim);
  for (; !walk.done(); walk.next()) {
    for (int key = walk.first(); key < walk.last(); ++key) {
      for (int d = lane_; d < columns; d += 32) {
        const float v = ptx::unpack<C.type>(values[key * a_.p.v.row_stride + d]).x;
        if (!spoiled(v)) continue;
        for (int r = warp_row_; r < warp_row_ + 16 * kM; ++r) {
          if (key < begin_ + r + diagonals_.low || key > begin_ + r + diagonals_.high) continue;
          const std::uint32_t at = shared_ + Tile::offset(r, d / 8) + d % 8 * 2;
          const float out = ptx::unpack<C.type>(ptx::load_shared_half(at)).x;
          ptx::store_shared(at, static_cast<std::uint16_t>(ptx::pack<C.type>(out + v, 0)));
        }
      }
    }
  }
  __syncwarp();
}

// All steps. `careful`: values that are not finite are kept from rows that do not see them.
template <ForwardConfig C>
__device__ __forceinline__ void ForwardTile<C>::walk_keys(bool careful) {
  static_assert(C.stages == 1 || C.stages == 2);
  Walk walk(later().visible, C.block_k, kDropout ? a_.column_shift : 0);
  auto step_of = [](const Walk& w) { return Step{w.begin(), w.first(), w.last()}; };
  // In key coordinates: what the first and the last row of this warp see at most.
  const int row_low = begin_ + warp_row_, row_high = row_low + 16 * kM - 1;
  bool ready = false;
  int failures = a_.speculate ? 0 : 2;

  if (C.stages == 2 && !walk.done()) load_step(step_of(walk), 0);
  if constexpr (kAsync) ptx::commit_copies();
  for (int i = 0; !walk.done(); ++i) {
    const Step step = step_of(walk);
    const int stage = C.stages == 2 ? i & 1 : 0;
    walk.next();
    if constexpr (C.stages == 1) {
      if (i > 0) __syncthreads();
      load_step(step, 0);
      if constexpr (kAsync) ptx::commit_copies();
    }
    if constexpr (kAsync) ptx::wait_copies<0>();
    __syncthreads();
    if constexpr (C.stages == 2) {
      if (!walk.done()) load_step(step_of(walk), stage ^ 1);
      if constexpr (kAsync) ptx::commit_copies();
    }
    if constexpr (C.q_in_registers) {
      if (i == 0) {
#pragma unroll
        for (int k_step = 0; k_step < kK; ++k_step) {
#pragma unroll
          for (int mi = 0; mi < kM; ++mi)
            ptx::load_matrix(q_[k_step][mi], Tile::at(q_lane_, mi * 16, k_step));
        }
      }
    }
    if (careful) hide_spoiled_values(stage);
    if (step.begin > row_high + diagonals_.high || step.last <= row_low + diagonals_.low) continue;
    const bool masked = step.first > step.begin || step.last < step.begin + C.block_k ||
                        step.begin < row_high + diagonals_.low ||
                        step.begin + C.block_k - 1 > row_low + diagonals_.high;
    int chunk = 0;
    if constexpr (kChunks > 1) {  // with one chunk there are no neighbours to stand between
      if (!masked && ready && failures < 2) {
        chunk = speculative_step(step, stage);
        if (chunk == kChunks) continue;
        ++failures;
      }
    }
#pragma unroll 1
    for (; chunk < kChunks; ++chunk) {
      if (step.begin + chunk * C.chunk > row_high + diagonals_.high) break;
      safe_chunk(step, stage, chunk, masked);
    }
    bool set = true;
#pragma unroll
    for (int mi = 0; mi < kM; ++mi) set = set && maximum_[mi][0] != -INFINITY && maximum_[mi][1] != -INFINITY;
    ready = __all_sync(kWarp, set);
  }
  if constexpr (kAsync) ptx::wait_copies<0>();
  __syncthreads();  // the copies of Q, too, when there was no step
}

// Whether every accumulated value of this warp is.
template <ForwardConfig C>
__device__ __forceinline__ bool ForwardTile<C>::finite() const {
  float trace = 0;  // stays 0
#pragma unroll
  for (int mi = 0; mi < kM; ++mi) {
#pragma unroll
    for (int j = 0; j < kD; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) trace = fmaf(o_[mi][j][e], 0.0F, trace);
    }
  }
  return trace == 0;
}

// Normalises and stores O, through the memory of Q so that rows are written in whole lines, and LSE.
template <ForwardConfig C>
__device__ __forceinline__ void ForwardTile<C>::finalize(bool careful) {
  const core::Problem& p = a_.p;
  std::uint16_t* const out_rows = later().out;
  float* const lse_rows = later().lse;
  const int rows = later().end - begin_, columns = static_cast<int>(p.v_dim);
  const float c = exponent_scale();
#pragma unroll
  for (int mi = 0; mi < kM; ++mi) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = sum_[mi][half];
      sum += __shfl_xor_sync(kWarp, sum, 1);
      sum += __shfl_xor_sync(kWarp, sum, 2);
      if (lse_rows != nullptr && lane_ % 4 == 0 && row(mi, half) < rows) {
        lse_rows[row(mi, half) * p.lse.row_stride] =
            sum == 0 ? -INFINITY : (maximum_[mi][half] * c + log2f(sum)) * kLn2;
      }
      const float normaliser = sum == 0 ? 0 : a_.features.keep_scale / sum;
#pragma unroll
      for (int j = 0; j < kD; ++j) {
        ptx::store_shared(
            shared_ + Tile::offset(row(mi, half), j) + lane_ % 4 * 4,
            ptx::pack<C.type>(o_[mi][j][2 * half] * normaliser, o_[mi][j][2 * half + 1] * normaliser));
      }
    }
  }
  __syncwarp();
  if (careful) reach_visible_rows();
#pragma unroll 4
  for (int i = lane_; i < 16 * kM * Tile::kChunks; i += 32) {
    const int r = warp_row_ + i / Tile::kChunks, chunk = i % Tile::kChunks;
    if (r >= rows || chunk * 8 >= columns) continue;
    const uint4 numbers = ptx::load_shared(shared_ + Tile::offset(r, chunk));
    std::uint16_t* out = out_rows + r * p.out.row_stride + chunk * 8;
    if (!kFeatured || a_.out_aligned) {
      *reinterpret_cast<uint4*>(out) = numbers;
    } else {
      const std::uint32_t words[4] = {numbers.x, numbers.y, numbers.z, numbers.w};
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        if (chunk * 8 + e < columns) out[e] = static_cast<std::uint16_t>(words[e / 2] >> (e % 2 * 16));
      }
    }
  }
}

// False: the tile has values that are not finite, and must be computed again with care.
template <ForwardConfig C>
__device__ __forceinline__ bool ForwardTile<C>::compute(bool careful) {
  clear();
  walk_keys(careful);
  if (__syncthreads_or(!finite()) && !careful) return false;
  finalize(careful);
  return true;
}

template <typename Config>
__global__ void __launch_bounds__(Config::value.threads(), Config::value.blocks_per_sm)
    flash2_forward_kernel(const __grid_constant__ ForwardArguments arguments) {
#pragma unroll 1
  for (bool careful = false;; careful = true) {
    ForwardTile<Config::value> tile(arguments);
    if (tile.empty() || tile.compute(careful)) return;
  }
}

// The instances of a table of configs.
template <const auto& Configs>
constexpr auto forward_instances() {
  return []<std::size_t... I>(std::index_sequence<I...>) {
    return std::array{ForwardInstance{Configs[I], flash2_forward_kernel<Use<Configs[I]>>}...};
  }
  (std::make_index_sequence<Configs.size()>());
}

}  // namespace tessera::cuda
