// flash2 forward on mma.sync: exact attention for 16-bit types on every GPU from Turing on.
//
// A thread block owns block_q queries of one head and walks over the keys they see, from the last to the first. A warp
// owns 16 * m_tiles of the rows, with all columns of their output in registers. Per step of block_k keys:
//
//     copies of the next K and V tile are issued    (cp.async, two stages; on Turing plain loads)
//     for each chunk of the step:  S = Q K^T  ->  P = 2^(S c - m c)  ->  O += P V
//
// Speculation. The first steps, and those that a mask cuts, search each row's maximum m (search_chunk). The others
// exponentiate against the m known so far: without a search the exponentials of one chunk stand between the products
// of its neighbours (speculative_step), and a step is one run of instructions without a branch. At its end a vote over
// its row sums tells whether a score outgrew m too far for P's type. Then what the step added is subtracted again - the
// error of that is scaled away, because the maximum has grown by as much - and the step is done with a search. A warp
// in which that happens kMostFailures times stops speculating. What is decided depends on the tile's rows alone:
// results stay reproducible and independent of the rest of the batch.
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
  // The largest sum over the columns of a step that a lane holds of a row: no P is larger.
  static constexpr float kSpeculationLimit = C.type == ptx::Half16::bf16 ? 1e18F : 3e4F;
  // Where registers allow, and where there is a neighbour to stand between.
  static constexpr bool kSpeculate = kChunks > 1 && (C.variant == Variant::plain ||
                                                     (C.variant == Variant::featured && C.head_dim == 64));
  // Behind the first products, which hide its arithmetic, where registers allow.
  static constexpr bool kCopyLate = C.head_dim == 64 && C.variant == Variant::plain;
  static constexpr float kLargestExponent = 15.99F;
  static constexpr int kMostFailures = 4;
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
  __device__ void load_step(int begin, int limit, int stage);
  __device__ void walk_keys(bool careful);
  __device__ void issue_qk(Scores& s, int stage, int chunk, int k_step);
  __device__ void issue_pv(const Probabilities& p, int stage, int chunk, int k_step, int d_tile);
  __device__ void issue_pv(const Probabilities& p, int stage, int chunk);
  __device__ void modify(Scores& s, const Step& step, int stage, int chunk);
  __device__ void apply_mask(Scores& s, const Step& step, int chunk);
  __device__ void online_softmax(const Scores& s, Probabilities& p, int column);
  template <typename CopyNext>
  __device__ bool speculative_step(const Step& step, int stage, CopyNext&& copy_next);
  __device__ void undo_chunk(const Step& step, int stage, int chunk);
  __device__ void search_chunk(const Step& step, int stage, int chunk, bool masked);
  __device__ void hide_spoiled_values(int stage);
  __device__ void reach_visible_rows();
  __device__ bool finite() const;
  __device__ void finalize(bool careful);

  __device__ int row(int mi, int half) const {
    return warp_row_ + mi * 16 + lane_ / 4 + half * 8;
  }  // within the tile
  // 2^(score - reference) of two scores, for speculation; on Turing, which cannot convert with saturation, at most what
  // P's type holds.
  __device__ __forceinline__ float2 exponentials(float x, float y, float reference) const {
    const float c = exponent_scale();
    x = kFeatured ? x - reference : fmaf(x, c, -reference);
    y = kFeatured ? y - reference : fmaf(y, c, -reference);
    if constexpr (C.mma == ptx::Mma::k8) x = fminf(x, kLargestExponent), y = fminf(y, kLargestExponent);
    return {ptx::exp2(x), ptx::exp2(y)};
  }

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

  // What is needed at the end only, or seldom, waits in shared memory, not in registers; each warp has its own, so that
  // no thread waits for another one at the start.
  struct alignas(16) Later {
    core::DropoutStream dropout;
    void* pointers[4];  // the first row of the sequence in K and V, of the tile in O and LSE
    std::int64_t bias;  // offset of the head's first row
    int diagonal;       // ALiBi counts from it
    float slope;
    int end;   // of the tile's rows
    int keys;  // of the sequence
    core::Diagonals diagonals;
    core::VisibleColumns visible;
  };
  __device__ static const std::uint16_t* keys() {
    return static_cast<const std::uint16_t*>(later().pointers[0]);
  }
  __device__ static const std::uint16_t* values() {
    return static_cast<const std::uint16_t*>(later().pointers[1]);
  }
  __device__ static Later& later() {
    __shared__ Later memory[C.warps];
    return memory[threadIdx.x / 32];
  }

  const ForwardArguments& a_;
  const std::uint32_t shared_;
  const int lane_, warp_row_;
  int begin_;  // the tile's first row
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
  const int head = static_cast<int>(task.head);
  const core::ShortSequence sequence = core::short_sequence(p, static_cast<int>(task.sequence));
  begin_ = static_cast<int>(task.tile) * C.block_q();
  int end = min(begin_ + C.block_q(), sequence.q_length);
  if (p.blocks) {
    const core::Tile rows = core::Tiling{sequence.q_length, C.block_q(), p.blocks.block_q}[task.tile];
    begin_ = static_cast<int>(rows.begin), end = static_cast<int>(rows.end);
  }
  const core::Diagonals diagonals = a_.diagonals(sequence);
  const RowSource q{p.q.row<const std::uint16_t>(sequence.tensor_batch, head, sequence.q_begin),
                    p.q.row_stride, static_cast<int>(p.qk_dim), a_.q_aligned};
  if (begin_ < end)
    load_rows<C.head_dim, C.block_q(), C.threads(), kAsync, kFeatured, kDropout>(Tile{shared_}, q, begin_,
                                                                                 end);

  const MatrixAddress by_row = row_operand(lane_), by_column = column_operand(lane_);
  q_lane_ = shared_ + Tile::offset(warp_row_ + by_row.row, by_row.chunk);
  k_lane_ = Tile::offset(by_column.row, by_column.chunk);
  v_lane_ = Tile::offset(by_row.row, by_row.chunk);
  // Four lanes work out the four pointers, so that the copies of K can start soon.
  Later& l = later();
  if (lane_ < 4) {
    const bool keys = lane_ < 2;
    const core::View& view = lane_ == 0 ? p.k : lane_ == 1 ? p.v : lane_ == 2 ? p.out : p.lse;
    const int view_head = keys ? static_cast<int>(a_.group.quotient(task.head)) : head;
    const int first = keys ? sequence.k_begin : sequence.q_begin + begin_;
    const std::int64_t offset =
        sequence.tensor_batch * view.batch_stride + view_head * view.head_stride + first * view.row_stride;
    char* data = static_cast<char*>(view.data);
    l.pointers[lane_] = data == nullptr ? nullptr : data + offset * (lane_ == 3 ? 4 : 2);
  }
  if (lane_ == 0) {
    l.end = end;
    l.keys = sequence.k_length;
    l.diagonals = diagonals;
    l.visible = core::visible_keys(p, diagonals, sequence.k_length, head, begin_, end);
    if constexpr (kFeatured) {
      const auto index = static_cast<std::int64_t>(task.sequence);
      l.bias = index * p.bias.batch_stride + head * p.bias.head_stride;
      l.diagonal = a_.diagonals.alibi_diagonal(sequence);
      l.slope = a_.features.has_alibi ? alibi_slope(p, index, head) : 0;
      if constexpr (kDropout) l.dropout = core::dropout_stream(p, index, head);
    }
  }
  __syncwarp();
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

// K, V and the bias; keys from `limit` on arrive as zero.
template <ForwardConfig C>
__device__ __forceinline__ void ForwardTile<C>::load_step(int begin, int limit, int stage) {
  const RowSource k{keys(), a_.p.k.row_stride, static_cast<int>(a_.p.qk_dim), a_.k_aligned};
  const RowSource v{values(), a_.p.v.row_stride, static_cast<int>(a_.p.v_dim), a_.v_aligned};
  load_rows<C.head_dim, C.block_k, C.threads(), kAsync, kFeatured, kDropout>(k_tile(stage), k, begin, limit);
  load_rows<C.head_dim, C.block_k, C.threads(), kAsync, kFeatured, kDropout>(v_tile(stage), v, begin, limit);
  if constexpr (kFeatured) {
    if (a_.bias_staged) {
      const core::View& bias = a_.p.bias;
      const RowSource source{static_cast<const std::uint16_t*>(bias.data) + later().bias + begin,
                             bias.row_stride, static_cast<int>(a_.p.k_length) - begin, true};
      load_rows<C.block_k, C.block_q(), C.threads(), kAsync, false>(bias_tile(stage), source, begin_,
                                                                    limit < 0 ? 0 : later().end);
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

// O += P V for 16 keys (k_step) of a chunk and the two column tiles from d_tile on.
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

// For a whole chunk.
template <ForwardConfig C>
__device__ __forceinline__ void ForwardTile<C>::issue_pv(const Probabilities& p, int stage, int chunk) {
#pragma unroll
  for (int k_step = 0; k_step < kN / 2; ++k_step) {
#pragma unroll
    for (int d_tile = 0; d_tile < kD; d_tile += 2) issue_pv(p, stage, chunk, k_step, d_tile);
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
      const int first = max(step.first, query + later().diagonals.low) - column;
      const int last = min(step.last - 1, query + later().diagonals.high) - column;
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
// chunks c + 1 (scores) and c - 1 (output), in proportion to their count. False: a score outgrew its maximum; what was
// added to O is to be undone.
template <ForwardConfig C>
template <typename CopyNext>
__device__ __forceinline__ bool ForwardTile<C>::speculative_step(const Step& step, int stage,
                                                                 CopyNext&& copy_next) {
  constexpr int kUnits = kM * kN * 2;                            // pairs of exponentials in a chunk
  constexpr int kScoreWork = kK * kN, kValueWork = kN / 2 * kD;  // products per m16 tile and chunk
  Scores s[2];
  Probabilities p[2];
  RowValues sum = {}, reference;
  const float c = exponent_scale();
#pragma unroll
  for (int mi = 0; mi < kM; ++mi) {
    reference[mi][0] = maximum_[mi][0] * c;
    reference[mi][1] = maximum_[mi][1] * c;
  }
#pragma unroll
  for (int k_step = 0; k_step < kK; ++k_step) issue_qk(s[0], stage, 0, k_step);
  if constexpr (kCopyLate) copy_next();
  auto exponentiate = [&](int chunk, int unit) {
    // A call of the random generator serves a row; without dropout neighbours add to different sums.
    const int mi = unit / (kN * 2), half = kDropout ? unit / kN % 2 : unit % 2;
    const int j = kDropout ? unit % kN : unit / 2 % kN;
    const float2 e =
        exponentials(s[chunk & 1][mi][j][2 * half], s[chunk & 1][mi][j][2 * half + 1], reference[mi][half]);
    float x = e.x, y = e.y;
    sum[mi][half] += x + y;
    if constexpr (kDropout) drop(x, y, mi, j, half, step.begin + chunk * C.chunk);
    p[chunk & 1][mi][j / 2][j % 2 * 2 + half] = ptx::pack_finite<C.type>(x, y);
  };

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
        keep_pace(kN);
      }
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
  issue_pv(p[(kChunks - 1) & 1], stage, kChunks - 1);

  bool outgrown = false;
#pragma unroll
  for (int mi = 0; mi < kM; ++mi) {
    outgrown |= !(sum[mi][0] < kSpeculationLimit) || !(sum[mi][1] < kSpeculationLimit);  // NaN too
  }
  if (__any_sync(kWarp, outgrown)) return false;
#pragma unroll
  for (int mi = 0; mi < kM; ++mi) {
    sum_[mi][0] += sum[mi][0];
    sum_[mi][1] += sum[mi][1];
  }
  return true;
}

// Subtracts what speculative_step added for a chunk.
template <ForwardConfig C>
__device__ __forceinline__ void ForwardTile<C>::undo_chunk(const Step& step, int stage, int chunk) {
  Scores s;
  Probabilities p;
  const float c = exponent_scale();
#pragma unroll
  for (int k_step = 0; k_step < kK; ++k_step) issue_qk(s, stage, chunk, k_step);
  if constexpr (kFeatured) modify(s, step, stage, chunk);
#pragma unroll
  for (int mi = 0; mi < kM; ++mi) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        const float2 e = exponentials(s[mi][j][2 * half], s[mi][j][2 * half + 1], maximum_[mi][half] * c);
        float x = e.x, y = e.y;
        if constexpr (kDropout) drop(x, y, mi, j, half, step.begin + chunk * C.chunk);
        p[mi][j / 2][j % 2 * 2 + half] = ptx::pack_finite<C.type>(x, y) ^ 0x80008000U;
      }
    }
  }
  issue_pv(p, stage, chunk);
}

// One chunk with everything: mask, search for the maximum, rescaling.
template <ForwardConfig C>
__device__ __forceinline__ void ForwardTile<C>::search_chunk(const Step& step, int stage, int chunk,
                                                             bool masked) {
  Scores s;
  Probabilities p;
#pragma unroll
  for (int k_step = 0; k_step < kK; ++k_step) issue_qk(s, stage, chunk, k_step);
  if constexpr (kFeatured) modify(s, step, stage, chunk);
  if (masked) apply_mask(s, step, chunk);
  online_softmax(s, p, step.begin + chunk * C.chunk);
  issue_pv(p, stage, chunk);
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
  const std::uint16_t* const rows = values();
  const int columns = static_cast<int>(a_.p.v_dim);
  for (; !walk.done(); walk.next()) {
    for (int key = walk.first(); key < walk.last(); ++key) {
      for (int d = lane_; d < columns; d += 32) {
        const float v = ptx::unpack<C.type>(rows[key * a_.p.v.row_stride + d]).x;
        if (!spoiled(v)) continue;
        for (int r = warp_row_; r < warp_row_ + 16 * kM; ++r) {
          if (key < begin_ + r + later().diagonals.low || key > begin_ + r + later().diagonals.high) continue;
          const std::uint32_t at = shared_ + Tile::offset(r, d / 8) + d % 8 * 2;
          const float out = ptx::unpack<C.type>(ptx::load_shared_half(at)).x;
          ptx::store_shared(at, static_cast<std::uint16_t>(ptx::pack<C.type>(out + v, 0)));
        }
      }
    }
  }
  __syncwarp();
}

// All steps. `careful`: no speculation, and values that are not finite are kept from rows that do not see them.
template <ForwardConfig C>
__device__ __forceinline__ void ForwardTile<C>::walk_keys(bool careful) {
  static_assert(C.stages == 1 || C.stages == 2);
  Walk walk(later().visible, C.block_k, kDropout ? a_.column_shift : 0);
  // The first and the last row of this warp.
  const int row_low = begin_ + warp_row_, row_high = row_low + 16 * kM - 1;
  bool ready = false;  // every row has a maximum
  int failures = a_.speculate && !careful ? 0 : kMostFailures;

  if constexpr (C.stages == 2) {
    if (!walk.done()) load_step(walk.begin(), later().keys, 0);
    if constexpr (kAsync) ptx::commit_copies();
  }
#pragma unroll 1
  for (int i = 0; !walk.done(); ++i) {
    const Step step{walk.begin(), walk.first(), walk.last()};
    const int stage = C.stages == 2 ? i & 1 : 0;
    walk.next();
    if constexpr (C.stages == 1) {
      if (i > 0) __syncthreads();
      load_step(step.begin, later().keys, 0);
      if constexpr (kAsync) ptx::commit_copies();
    }
    if constexpr (kAsync) ptx::wait_copies<0>();
    __syncthreads();
    auto copy_next = [&] {
      if constexpr (C.stages == 2) {
        if constexpr (
            kCopyLate) {  // without a branch between the products: after the last step nothing is valid
          const int nothing = -static_cast<int>(core::kLongestWalk);
          load_step(walk.begin(), walk.done() ? nothing : later().keys, stage ^ 1);
        } else if (!walk.done()) {
          load_step(walk.begin(), later().keys, stage ^ 1);
        }
        if constexpr (kAsync) ptx::commit_copies();
      }
    };
    if constexpr (!kCopyLate) copy_next();
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
    const bool hidden =
        step.begin > row_high + later().diagonals.high || step.last <= row_low + later().diagonals.low;
    const bool masked = step.first > step.begin || step.last < step.begin + C.block_k ||
                        step.begin < row_high + later().diagonals.low ||
                        step.begin + C.block_k - 1 > row_low + later().diagonals.high;
    bool copied = !kCopyLate;
    if constexpr (kSpeculate) {
      if (!hidden && !masked && ready && failures < kMostFailures) {
        if (speculative_step(step, stage, copy_next)) continue;
        copied = true;
        ++failures;
#pragma unroll 1
        for (int chunk = 0; chunk < kChunks; ++chunk) undo_chunk(step, stage, chunk);
      }
    }
    if (!copied) copy_next();
    if (hidden) continue;
#pragma unroll 1
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      if (step.begin + chunk * C.chunk > row_high + later().diagonals.high) break;
      search_chunk(step, stage, chunk, masked);
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
  auto* const out_rows = static_cast<std::uint16_t*>(later().pointers[2]);
  auto* const lse_rows = static_cast<float*>(later().pointers[3]);
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
