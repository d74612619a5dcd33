// Attention forward in fp32.
//
// A thread block owns a tile of queries and walks over the keys and values that they see, from the
// last to the first, in steps of block_k. Statistics and output stay in registers and are written
// once.
//
// Shared memory holds Q and one step of K and of V. V of a step arrives while its scores are
// computed, and K of the next step while its values are added; this takes two barriers a step. The
// threads that copied rows split them into halves (halves.cuh) before the barrier that publishes
// them.
//
// Traffic: Q, O and LSE once; K and V once per tile of queries and head.
#pragma once

#include <cstdint>

#include "core/visibility.h"
#include "cuda/common/instances.h"
#include "cuda/common/ptx/shared_memory.cuh"
#include "cuda/common/step_cursor.h"
#include "cuda/fp32/config.h"
#include "cuda/fp32/products.cuh"
#include "cuda/fp32/scores.cuh"

namespace tessera::cuda::fp32 {

// The running maximum and this lane's part of the sum, for rows lane / 4 + 8 h of tile m.
template <int MTiles>
struct RowStatistics {
  float maximum[MTiles][2];
  float sum[MTiles][2];

  __device__ __forceinline__ RowStatistics() {
#pragma unroll
    for (int m = 0; m < MTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) maximum[m][h] = -kInfinity, sum[m][h] = 0;
    }
  }
};

// Over the four lanes that share a row.
__device__ __forceinline__ float sum_of_row(float x) {
  x += __shfl_xor_sync(0xFFFFFFFFU, x, 1);
  return x + __shfl_xor_sync(0xFFFFFFFFU, x, 2);
}
__device__ __forceinline__ float maximum_of_row(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFU, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xFFFFFFFFU, x, 2));
}

// Turns scores into exp(score - maximum). `rescale` is the factor for earlier sums. fmaxf ignores
// NaN, but the exponential of a NaN score is NaN, so it reaches the sum.
template <int MTiles, int NTiles>
__device__ __forceinline__ void online_softmax(float (&s)[MTiles][NTiles][4], RowStatistics<MTiles>& rows,
                                               float (&rescale)[MTiles][2]) {
#pragma unroll
  for (int m = 0; m < MTiles; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float maximum = rows.maximum[m][h];
#pragma unroll
      for (int n = 0; n < NTiles; ++n) maximum = fmaxf(maximum, fmaxf(s[m][n][2 * h], s[m][n][2 * h + 1]));
      maximum = maximum_of_row(maximum);
      // A row that has seen no key yet takes 0.
      const float reference = maximum == -kInfinity ? 0.0F : maximum;
      rescale[m][h] = exp_difference(rows.maximum[m][h], reference);
      rows.maximum[m][h] = maximum;
      float sum = 0;
#pragma unroll
      for (int n = 0; n < NTiles; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& x = s[m][n][2 * h + c];
          x = exp_difference(x, reference);
          sum += x;
        }
      }
      rows.sum[m][h] = fmaf(rows.sum[m][h], rescale[m][h], sum);
    }
  }
}

// The queries that a thread block owns.
struct QueryTile {
  core::Sequence s;
  int head;
  int begin, end;
};

template <ForwardConfig C>
__device__ __forceinline__ QueryTile query_tile(const ForwardArguments& a) {
  const core::Problem& p = a.problem;
  const core::BasicTask<std::uint32_t> task = a.order[ptx::block_index()];
  const core::Sequence s = core::sequence(p, task.sequence);
  const core::Interval tile =
      core::Tiling{s.q_length, C.block_q(), p.blocks ? p.blocks.block_q : 0}[task.tile];
  return {s, static_cast<int>(task.head), static_cast<int>(tile.begin), static_cast<int>(tile.end)};
}

// The keys and values that a thread block walks over. In shared memory where registers are scarce.
struct KeySource {
  RowSource32 k, v;
  VisibleColumns columns;
  Diagonals band;
  int keys;     // of the sequence
  int queries;  // the end of the thread block's queries
};

template <ForwardConfig C>
struct Forward {
  static constexpr int kMTiles = C.m_tiles, kNTiles = C.block_k / 8, kThreads = C.threads();
  using Tile = SharedTile32<C.head_dim>;
  using Scores = float[kMTiles][kNTiles][4];
  static constexpr bool kSharedSource = C.multiply == Multiply::halves;

  const ForwardArguments& arguments;
  const core::Problem& p;
  int own;  // this warp's first query
  const Tile q, k, v;
  KeySource& source;
  RowStatistics<kMTiles> rows{};
  float out[kMTiles][C.head_dim / 8][4] = {};

  template <int Rows>
  __device__ __forceinline__ void load(Tile to, const RowSource32& from, int row, int limit) const {
    load_rows<C.head_dim, Rows, kThreads, C.async(), C.featured()>(to, from, row, limit);
    if constexpr (C.async()) ptx::commit_copies();
  }

  __device__ __forceinline__ void wait() const {
    if constexpr (C.async()) ptx::wait_copies<0>();
  }

  __device__ __forceinline__ int query(int m, int h) const { return own + 16 * m + lane_index() / 4 + 8 * h; }

  // Turns products into scores; those of masked pairs become -inf.
  __device__ __forceinline__ void apply_mask(Scores& x, const ScoreTerms<C.featured()>& terms, int key,
                                             const Visible& visible, bool masked) const {
    for_each_score([&](int m, int n, int e, int row, int column) {
      float derivative;
      x[m][n][e] = terms.score(x[m][n][e], row, key + column, derivative);
    });
    if (!masked) return;  // a second loop: in one loop the compiler compares in every step
    for_each_score([&](int m, int n, int e, int row, int column) {
      if (!visible.key(row, key + column)) x[m][n][e] = -kInfinity;
    });
  }

  template <typename Visit>
  __device__ __forceinline__ void for_each_score(Visit&& visit) const {
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kNTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          visit(m, n, e, query(m, e / 2), 8 * n + AccumulatorFragment::column(lane_index(), e));
        }
      }
    }
  }

  // The random stream is derived in every step: seven rounds of a generator save ten registers.
  __device__ __forceinline__ void apply_dropout(Scores& x, int key) const {
    const QueryTile tile = query_tile<C>(arguments);
    const Dropout dropout(p, tile.s, tile.head);
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        dropout.along_row<kNTiles>(query(m, h), key, lane_index(), [&](int n, int c, bool kept) {
          if (!kept) x[m][n][2 * h + c] = 0;
        });
      }
    }
  }

  __device__ __forceinline__ void run() {
    const auto [s, head, begin, end] = query_tile<C>(arguments);
    if (begin >= end) return;
    own = begin + warp_index() * 16 * kMTiles;
    if (!kSharedSource || threadIdx.x == 0) {
      const int kv_head = kv_head_of(p, head);
      source.k = rows_of(p.k, s.tensor_batch, kv_head, s.k_begin, p.qk_dim, arguments.constants.aligned);
      source.v = rows_of(p.v, s.tensor_batch, kv_head, s.k_begin, p.v_dim, arguments.constants.aligned);
      source.columns = visible_keys(p, s, head, begin, end);
      source.band = diagonals(s.band);
      source.keys = static_cast<int>(s.k_length);
      source.queries = end;
    }
    if constexpr (kSharedSource) __syncthreads();
    const ScoreTerms<C.featured()> terms(p, arguments.constants, s, head);
    StepWalk<WalkOrder::descending, const VisibleColumns&> walk(source.columns, C.block_k,
                                                                C.featured() ? dropout_shift(p) : 0);

    load<C.block_q()>(q, rows_of(p.q, s.tensor_batch, head, s.q_begin, p.qk_dim, arguments.constants.aligned),
                      begin, end);
    if (!walk.done()) load<C.block_k>(k, source.k, walk.begin(), source.keys);
    wait();
    prepare_rows<C.multiply, C.block_q(), kThreads>(q, false);
    while (!walk.done()) {
      const int key = walk.begin();
      const Diagonals band = source.band;
      const Visible visible{band, walk.first(), walk.last()};
      const bool whole = visible.first == key && visible.last == key + C.block_k;
      const bool masked = !whole || !all_in_band(band, own, own + 16 * kMTiles, key, key + C.block_k);
      const bool works =
          !none_in_band(band, own, own + 16 * kMTiles, key, key + C.block_k) && own < source.queries;

      wait();
      prepare_rows<C.multiply, C.block_k, kThreads>(k, false);
      __syncthreads();  // K is complete, and no thread reads the V before any more
      load<C.block_k>(v, source.v, key, source.keys);
      Scores x;
      if (works) {
        // issue_qk
        multiply_rows<C.multiply>(x, q, warp_index() * 16 * kMTiles, k, lines_of(p.qk_dim));
        apply_mask(x, terms, key, visible, masked);
        float factor[kMTiles][2];
        online_softmax(x, rows, factor);
        rescale(out, factor);
        if constexpr (C.featured()) {
          if (p.dropout) apply_dropout(x, key);
        }
      }

      wait();
      bool non_finite = false;  // V holds a non-finite value that some query may not see
      const int first = own - warp_index() * 16 * kMTiles;  // of the thread block's queries
      const bool partial = (C.featured() && p.has_bias) || !whole ||
                           !all_in_band(band, first, first + C.block_q(), key, key + C.block_k);
      const bool found = prepare_rows<C.multiply, C.block_k, kThreads>(v, partial);
      if (partial) {
        non_finite = __syncthreads_or(found);
      } else {
        __syncthreads();  // V is complete, and no thread reads this K any more
      }
      walk.next();
      if (!walk.done()) load<C.block_k>(k, source.k, walk.begin(), source.keys);
      if (non_finite) {
        add_non_finite<C.multiply, C.block_k>(out, v, [&](int row, int column) {
          if (!visible.key(own + row, key + column)) return false;
          return !C.featured() || (own + row < source.queries && !terms.hides(own + row, key + column));
        });
        __syncthreads();
        clean_rows<C.multiply, C.block_k, kThreads>(v);
        __syncthreads();
      }
      if (works) accumulate<C.multiply>(out, x, v, lines_of(p.v_dim));  // issue_pv
    }
    finalize();
  }

  __device__ __forceinline__ void finalize() {
    const auto [s, head, begin, end] = query_tile<C>(arguments);
    const bool aligned = !C.featured() || arguments.constants.aligned;
    unsigned ones = 0;  // rows whose sum is exactly 1
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
      float factor[2];
      float* to[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = query(m, h);
        const float sum = sum_of_row(rows.sum[m][h]);
        factor[h] = sum == 0 ? 0.0F : reciprocal(sum);
        if (C.featured() && p.dropout) factor[h] *= arguments.constants.keep_scale;
        to[h] = row < end ? p.out.row<float>(s.tensor_batch, head, s.q_begin + row) : nullptr;
        if (sum == 1 && row < end) ones |= 1U << (2 * m + h);
        if (row < end && p.lse && lane_index() % 4 == 0) {
          *p.lse.row<float>(s.tensor_batch, head, s.q_begin + row) =
              sum == 0 ? -kInfinity : rows.maximum[m][h] + logf(sum);
        }
      }
      store_rows<C.multiply>(out, m, factor, static_cast<int>(p.v_dim), aligned,
                             [&](int h) { return to[h]; });
    }
    if (C.multiply == Multiply::halves && !p.dropout) {
      __syncwarp();  // orders the stores of a row's lanes before copy_only_values
      if (ones != 0) copy_only_values(ones);
    }
  }

  // The only key that a row sees, or -1.
  __device__ __forceinline__ int only_key(const core::Sequence& s, int head, int row) const {
    KeyWalk walk = key_walk(p, s, head, row, row + 1, C.block_k);
    if (walk.done() || walk.last() - walk.first() != 1) return -1;
    const int key = walk.first();
    walk.next();
    return walk.done() ? key : -1;
  }

  // A row that sees one key returns its value bit for bit, which the sum of two fp16 numbers
  // cannot.
  __device__ __forceinline__ void copy_only_values(unsigned ones) const {
    const QueryTile tile = query_tile<C>(arguments);
#pragma unroll 1
    for (int i = 0; i < 2 * kMTiles; ++i) {
      if ((ones >> i & 1) == 0) continue;
      const int row = query(i / 2, i % 2), key = only_key(tile.s, tile.head, row);
      if (key < 0) continue;
      float* to = p.out.row<float>(tile.s.tensor_batch, tile.head, tile.s.q_begin + row);
      const float* from =
          p.v.row<const float>(tile.s.tensor_batch, kv_head_of(p, tile.head), tile.s.k_begin + key);
      for (int column = lane_index() % 4; column < p.v_dim; column += 4) to[column] = from[column];
    }
  }
};

template <typename Config>
__global__ void __launch_bounds__(Config::value.threads(), Config::value.thread_blocks)
    forward_kernel(const __grid_constant__ ForwardArguments a) {
  constexpr ForwardConfig C = Config::value;
  if constexpr (ptx::kBefore90 && C.shared_memory() > kSharedMemoryBefore90) {
    __trap();  // the host does not choose this instance for such a GPU
    return;
  }
  const std::uint32_t base = ptx::dynamic_shared_address<128>();
  using Tile = SharedTile32<C.head_dim>;
  constexpr std::uint32_t kFactors = C.rows() * Tile::kRowBytes;
  auto tile = [base](int row) {  // from a row of Q, K and V
    return Tile{base + row * Tile::kRowBytes, base + kFactors + row * 4};
  };
  auto run = [&](KeySource& source) {
    Forward<C> forward{a, a.problem, 0, tile(0), tile(C.block_q()), tile(C.block_q() + C.block_k), source};
    forward.run();
  };
  if constexpr (Forward<C>::kSharedSource) {
    run(ptx::static_shared<KeySource, Config>());
  } else {
    KeySource source;
    run(source);
  }
}

}  // namespace tessera::cuda::fp32
