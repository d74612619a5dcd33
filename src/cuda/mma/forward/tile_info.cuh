// What a thread block of the forward kernels knows about its tile, and how its rows of output are
// stored.
#pragma once

#include <cstdint>

#include "core/task_order.h"
#include "core/visibility.h"
#include "cuda/common/features.cuh"
#include "cuda/common/step_cursor.h"
#include "cuda/common/tile/shared_tile.cuh"
#include "cuda/mma/forward/config.h"

namespace tessera::cuda::mma::forward {

// Steps that begin in [low, high] are visible to all of some rows of a tile as a whole.
struct WholeSteps {
  int low, high;
};

// The tile of a thread block. It lives in shared memory, not in registers, because most of it is
// needed seldom or only at the end. Each warp has a copy of its own, so that no thread waits for
// another one at the start.
struct alignas(16) TileInfo {
  core::DropoutStream dropout;
  const ptx::HalfBits *k, *v;  // the first row of the sequence
  ptx::HalfBits* out;          // the first row of the tile
  float* lse;
  std::int64_t bias;  // offset of the first row of the head
  int diagonal;       // where ALiBi's distances are 0
  float slope;
  int begin, end;    // the tile's rows
  int keys;          // of the sequence
  int failures;      // of speculation; below 0: speculation is off
  WholeSteps whole;  // of the warp's rows
  Diagonals diagonals;
  VisibleColumns visible;
  bool careful;  // see walk_keys; the plain kernels do not use it

  // A sequence of a packed batch may be shorter than the longest one.
  __device__ bool empty() const { return begin >= end; }
  __device__ bool sees(int row, int key) const {
    return key >= begin + row + diagonals.low && key <= begin + row + diagonals.high;
  }
};

static_assert(sizeof(TileInfo) * kMostWarps <= kStaticBytes);

// The same in registers at the start of a thread block, where the first copies come before
// everything else.
class TileLocation {
 public:
  __device__ TileLocation(const Arguments& a, int block_q) : a_(a), task_(a.order[blockIdx.x]) {
    const core::Problem& p = a.p;
    sequence_ = short_sequence(p, static_cast<int>(task_.sequence));
    begin_ = static_cast<int>(task_.tile) * block_q, end_ = min(begin_ + block_q, sequence_.q_length);
    if (p.blocks) {
      const core::Interval rows = core::Tiling{sequence_.q_length, block_q, p.blocks.block_q}[task_.tile];
      begin_ = static_cast<int>(rows.begin), end_ = static_cast<int>(rows.end);
    }
    diagonals_ = a.diagonals(sequence_);
    visible_ = visible_keys(p, diagonals_, sequence_.k_length, head(), begin_, end_);
  }

  __device__ bool empty() const { return begin_ >= end_; }
  __device__ int rows() const { return end_ - begin_; }
  __device__ int keys() const { return sequence_.k_length; }
  __device__ KeyWalk walk(int width) const { return KeyWalk(visible_, width); }

  __device__ RowSource q() const {
    return source(a_.p.q, head(), sequence_.q_begin + begin_, a_.p.qk_dim, a_.q_aligned);
  }
  __device__ RowSource k() const {
    return source(a_.p.k, kv_head(), sequence_.k_begin, a_.p.qk_dim, a_.k_aligned);
  }
  __device__ RowSource v() const {
    return source(a_.p.v, kv_head(), sequence_.k_begin, a_.p.v_dim, a_.v_aligned);
  }

  // Copies what is needed later to `info`. By one warp.
  template <Variant V>
  __device__ __forceinline__ void remember(TileInfo& info) const {
    const core::Problem& p = a_.p;
    if (threadIdx.x % 32 == 0) {
      const int row = sequence_.q_begin + begin_;
      info.k = k().data, info.v = v().data;
      info.out = p.out.row<ptx::HalfBits>(sequence_.tensor_batch, head(), row);
      info.lse = p.lse.data == nullptr ? nullptr : p.lse.row<float>(sequence_.tensor_batch, head(), row);
      info.begin = begin_, info.end = end_;
      info.keys = keys();
      info.failures = 0;
      info.diagonals = diagonals_;
      info.visible = visible_;
      if constexpr (V != Variant::plain) {
        const auto index = static_cast<std::int64_t>(task_.sequence);
        info.bias = index * p.bias.batch_stride + head() * p.bias.head_stride;
        info.diagonal = a_.diagonals.alibi_diagonal(sequence_);
        info.slope = a_.features.has_alibi ? alibi_slope(p, index, head()) : 0;
        if constexpr (V == Variant::dropout) info.dropout = core::dropout_stream(p, index, head());
      }
    }
    __syncwarp();
  }

 private:
  __device__ int head() const { return static_cast<int>(task_.head); }
  __device__ int kv_head() const { return static_cast<int>(a_.group.quotient(task_.head)); }
  __device__ RowSource source(const core::View& view, int head, int row, std::int64_t columns,
                              bool aligned) const {
    return {view.row<const ptx::HalfBits>(sequence_.tensor_batch, head, row), view.row_stride,
            static_cast<int>(columns), aligned};
  }

  const Arguments& a_;
  core::BasicTask<std::uint32_t> task_;
  ShortSequence sequence_;
  int begin_, end_;
  Diagonals diagonals_;
  VisibleColumns visible_;
};

// The steps that rows [first, last] see as a whole.
__device__ __forceinline__ WholeSteps whole_steps(const TileInfo& info, int first, int last, int width) {
  return {max(0, info.begin + last + info.diagonals.low),
          min(info.keys, info.begin + first + info.diagonals.high + 1) - width};
}

// Whether all accumulated values of a thread are finite.
template <int Tiles, int Blocks>
__device__ __forceinline__ bool all_finite(const float (&x)[Tiles][Blocks][4]) {
  float trace = 0;  // stays 0 as long as all values are finite
#pragma unroll
  for (int i = 0; i < Tiles * Blocks * 4; ++i)
    trace = fmaf(x[i / (Blocks * 4)][i / 4 % Blocks][i % 4], 0.0F, trace);
  return trace == 0;
}

// The LSE of a row from its maximum and its sum, both in base-2 logarithms.
__device__ __forceinline__ float row_lse(float maximum, float sum) {
  return sum == 0 ? -INFINITY : (maximum + log2f(sum)) * kLn2;
}

__device__ __forceinline__ bool non_finite(float x) { return !(fabsf(x) < INFINITY); }

// Non-finite values of V must not reach rows that do not see them, but 0 times infinity is NaN.
// This replaces them by 0 in the tile, by all threads; reach_visible_rows adds them to the rows
// that see them.
template <ptx::Half16 Type, int Threads>
__device__ __forceinline__ void hide_non_finite_values(std::uint32_t tile, int bytes) {
  for (int i = static_cast<int>(threadIdx.x) * 4; i < bytes; i += Threads * 4) {
    const std::uint32_t at = tile + static_cast<std::uint32_t>(i);
    float2 v = ptx::unpack<Type>(ptx::load_shared_word(at));
    if (!non_finite(v.x) && !non_finite(v.y)) continue;
    ptx::store_shared(at, ptx::pack<Type>(non_finite(v.x) ? 0 : v.x, non_finite(v.y) ? 0 : v.y));
  }
  __syncthreads();
}

// Whether the bias of a row of the tile hides a key: it is -inf.
__device__ __forceinline__ bool hidden_by_bias(const core::Problem& p, const TileInfo& info, int row,
                                               int key) {
  return load_bias(p, info.bias + (info.begin + row) * p.bias.row_stride + key) == -INFINITY;
}

// Adds every non-finite value of V to those of the staged output's rows [first, last) that see its
// key. By one warp.
template <ptx::Half16 Type, bool Bias, int HeadDim>
__device__ __forceinline__ void reach_visible_rows(SharedTile<HeadDim> staged, const TileInfo& info,
                                                   const core::Problem& p, int first, int last) {
  constexpr int kWidth = 64;
  const int lane = static_cast<int>(threadIdx.x) % 32, columns = static_cast<int>(p.v_dim);
  using Walk = StepWalk<WalkOrder::descending, const VisibleColumns&>;
  for (Walk walk(info.visible, kWidth); !walk.done(); walk.next()) {
    for (int key = walk.first(); key < walk.last(); ++key) {
      for (int d = lane; d < columns; d += 32) {
        const float v = ptx::unpack<Type>(info.v[key * p.v.row_stride + d]).x;
        if (!non_finite(v)) continue;
        for (int r = first; r < last; ++r) {
          if (!info.sees(r, key) || info.begin + r >= info.end) continue;
          if (Bias && p.has_bias && hidden_by_bias(p, info, r, key)) continue;
          const std::uint32_t at =
              staged.base + SharedTile<HeadDim>::offset(r, d / 8) + d % 8 * ptx::element_bytes(Type);
          const float out = ptx::unpack<Type>(ptx::load_shared_half(at)).x;
          ptx::store_shared(at, static_cast<ptx::HalfBits>(ptx::pack<Type>(out + v, 0)));
        }
      }
    }
  }
  __syncwarp();
}

// Stores the staged output's rows [first, first + Rows) in whole lines. By one warp.
template <int HeadDim, int Rows, bool Unaligned>
__device__ __forceinline__ void store_output(SharedTile<HeadDim> staged, const TileInfo& info,
                                             const core::Problem& p, int first, bool aligned) {
  using Tile = SharedTile<HeadDim>;
  const int rows = info.end - info.begin, columns = static_cast<int>(p.v_dim);
  ptx::HalfBits* const out_rows = info.out;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x) % 32; i < Rows * Tile::kChunks; i += 32) {
    const int r = first + i / Tile::kChunks, chunk = i % Tile::kChunks;
    if (r >= rows || chunk * 8 >= columns) continue;
    const uint4 numbers = ptx::load_shared(staged.base + Tile::offset(r, chunk));
    ptx::HalfBits* out = out_rows + r * p.out.row_stride + chunk * 8;
    if (!Unaligned || aligned) {
      *reinterpret_cast<uint4*>(out) = numbers;
    } else {
      const std::uint32_t words[4] = {numbers.x, numbers.y, numbers.z, numbers.w};
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        if (chunk * 8 + e < columns) out[e] = static_cast<ptx::HalfBits>(words[e / 2] >> (e % 2 * 16));
      }
    }
  }
}

}  // namespace tessera::cuda::mma::forward
