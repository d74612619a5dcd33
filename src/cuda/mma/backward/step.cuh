// What a thread block computes in one step: the scores of its tile of keys and a block of queries,
// and from them what it adds to dK, dV and dQ.
#pragma once

#include <type_traits>

#include "cuda/common/dq_sums.cuh"
#include "cuda/common/non_finite.cuh"
#include "cuda/common/ptx/shared_memory.cuh"
#include "cuda/mma/backward/products.cuh"
#include "cuda/mma/backward/schedule.cuh"
#include "cuda/mma/backward/scores.cuh"

namespace tessera::cuda::mma::backward {

// The keys of a tile that some query of a step sees, in units of 16.
struct LiveKeys {
  int begin, end;
};

// The sums of dK and dV are in registers. They belong to the kernel, so that the compiler keeps
// them apart from everything else.
template <KeysConfig C>
struct KeyTileStep {
  static constexpr Engine E = C.engine;
  static constexpr ptx::Half16 kType = type_of(E);
  static constexpr int D = C.head_dim, kBlockQ = C.block_q, kWidth = C.width(), kColumns = D / C.splits;
  static constexpr int kChunk = C.chunk();
  static constexpr bool kTight = C.splits == 1 || C.stages == 1 || ptx::kBefore90;  // see keep_apart
  // Dropout draws for so many queries at a time.
  static constexpr int kDrawn = kWidth < 32 ? kWidth : 32;
  // dQ: a warp computes up to 32 queries x kDqColumns columns of a step.
  static constexpr int kDqTiles = kBlockQ >= 32 ? 2 : 1, kDqAcross = kBlockQ / (16 * kDqTiles);
  static constexpr int kDqColumns = D * kDqAcross / C.warps();
  static constexpr int kDqPart = kDqColumns > 32 ? 32 : kDqColumns;  // at a time
  static_assert(C.splits == 1 || kColumns % 64 == 0, "the columns of a split are whole groups of chunks");
  static_assert(kWidth % 16 == 0);
  static_assert(kDqColumns % 16 == 0 && kDqColumns <= 64);
  using Shared = KeysMemory<C>;
  using Tile = SharedTile<D>;
  using Scores = SharedTile<kBlockQ>;
  using Packed = std::uint32_t[2][kChunk / 16][4];
  using Sums = float[2][kColumns / 8][4];

  const BackwardCall& a;
  KeyTile& tile;
  std::uint32_t base;  // of shared memory
  KeyTileWalk<C>& walk;
  Sums &grad_k, &grad_v;
  const bool& full;  // every query of the step sees every key of the tile

  std::uint32_t stage = 0;  // where the step's rows are, in bytes from the first stage

  __device__ __forceinline__ std::uint32_t grad_scores() const { return base + Shared::kGradScores; }
  __device__ __forceinline__ std::uint32_t queries() const { return base + Shared::kStages + stage; }

  // What dropout keeps of the queries from `column` on. Drawn before the scores, while registers
  // are free.
  __device__ __forceinline__ void draw(int column, std::uint32_t& kept) const {
    if (C.variant == Variant::dropout && a.features.dropout_threshold != 0) {
      kept = kept_of_keys<kDrawn / 8>(tile.options[walk.step.which], a.features, walk.step.begin + column,
                                      tile.keys.begin + Place<C>().group * 32);
    }
  }

  // P and dS of kChunk queries from `column` on, packed. Returns whether the step is masked and
  // something is not finite.
  template <bool kMasked>
  __device__ __forceinline__ bool scores_of(Packed& p_packed, Packed& ds_packed, const float* statistics,
                                            int column, std::uint32_t kept) {
    constexpr int Blocks = kChunk / 8;
    const QueryStep& step = walk.step;
    float ps[2][Blocks][4], ds[2][Blocks][4];
    const Place<C> place;
    const int lane = place.lane, first_key = tile.keys.begin + place.group * 32;
    const MatrixAddress by_row = row_operand(lane), by_column = column_operand(lane);
    const std::uint32_t own = base + Tile::offset(place.group * 32 + by_row.row, by_row.chunk);
    const std::uint32_t q = queries() + Tile::offset(column + by_column.row, by_column.chunk);
    issue_scores<E, D, true>(ps, own, q);
    // dP - delta comes out of the product when the sum begins with -delta.
#pragma unroll
    for (int j = 0; j < Blocks; ++j) {
      const float2 delta =
          *reinterpret_cast<const float2*>(statistics + kBlockQ + column + j * 8 + lane % 4 * 2);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int e = 0; e < 4; ++e) ds[m][j][e] = e % 2 == 0 ? -delta.x : -delta.y;
      }
    }
    if constexpr (kTight) ptx::keep_apart();
    if constexpr (C.splits > 1 && C.stages == 1) walk.look_for_turn();
    issue_scores<E, D, false>(ds, own + Shared::kV, q + C.query_tile_bytes());
    ScoreBlock<C, Blocks> block{.s = ps,
                                .dp = ds,
                                .a = a,
                                .tile = tile,
                                .run = tile.run[step.which],
                                .options = tile.options[step.which],
                                .statistics = statistics,
                                .begin = step.begin,
                                .column = column,
                                .first_key = first_key,
                                .kept = kept,
                                .bias = base + Shared::kBias};
    bool bad = false;
    if (kMasked && !(C.one_copy() && full)) bad = block.template differentiate<true>();
    else block.template differentiate<false>();
    pack_operands<kType>(p_packed, ps);
    pack_operands<kType>(ds_packed, ds);
    return bad;
  }

  // P or dS, packed, into their tile of shared memory.
  __device__ __forceinline__ void store_scores(std::uint32_t to, const Packed& packed, int column) const {
    const Place<C> place;
    const int lane = place.lane;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int n = 0; n < kChunk / 16; ++n) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const int row = place.group * 32 + m * 16 + lane / 4 + r % 2 * 8,
                    chunk = column / 8 + 2 * n + r / 2;
          ptx::store_shared(to + Scores::offset(row, chunk) + lane % 4 * 4, packed[m][n][r]);
        }
      }
    }
  }

  // Q and dO of these queries lose their non-finite values (non_finite.cuh). By the whole thread
  // block.
  __device__ __forceinline__ void clear_queries(int first, int last) const {
    clear_non_finite<kType, D, C.threads()>(queries(), first, last);
    clear_non_finite<kType, D, C.threads()>(queries() + C.query_tile_bytes(), first, last);
    __syncthreads();
  }

  // The lane's address in row 0 of Q, for products whose contraction runs over queries.
  __device__ __forceinline__ std::uint32_t contracted() const {
    const Place<C> place;
    const MatrixAddress by_row = row_operand(place.lane);
    return queries() + Tile::offset(by_row.row, place.split * (kColumns / 8) + by_row.chunk);
  }

  // sums += left^T right over the queries of a step, with P or dS from shared memory.
  __device__ __forceinline__ void add_rows(Sums& sums, std::uint32_t left_tile, std::uint32_t right) const {
    const Place<C> place;
    const MatrixAddress by_row = row_operand(place.lane);
    const std::uint32_t left_lane = left_tile + Scores::offset(place.group * 32 + by_row.row, by_row.chunk);
#pragma unroll
    for (int n = 0; n < kBlockQ / 16; ++n) {
      std::uint32_t left[2][1][4];
#pragma unroll
      for (int m = 0; m < 2; ++m)
        ptx::load_matrix(left[m][0], (left_lane ^ (n << 5)) + m * 16 * Scores::kRowBytes);
      issue_sums<E, D>(sums, left, right, n * 16);
    }
  }

  // Adds dQ of the live keys to the sums. Careful: K first loses its non-finite values.
  template <bool kMasked>
  __device__ __forceinline__ void issue_dq(const LiveKeys& live_keys, const bool& careful) const {
    if (careful) {
      clear_non_finite<kType, D, C.threads()>(base, 0, C.block_k());
      __syncthreads();
    }
    const QueryStep& step = walk.step;
    float* to =
        a.grad_q_sums + walk.copies.block_of(tile.run[step.which].head, step.begin) * (kQueryBlock * D);
    const Place<C> place;
    const MatrixAddress by_row = row_operand(place.lane), by_column = column_operand(place.lane);
    const int dq_row = place.warp % kDqAcross * 32;
    const std::uint32_t left_lane =
        grad_scores() + Scores::offset(by_column.row, dq_row / 8 + by_column.chunk);
#pragma unroll
    for (int part = 0; part < kDqColumns; part += kDqPart) {
      if constexpr (kDqPart < kDqColumns) ptx::keep_apart();
      const int dq_column = place.warp / kDqAcross * kDqColumns + part;
      const std::uint32_t right_lane = base + Tile::offset(by_row.row, dq_column / 8 + by_row.chunk);
      float grad_q[kDqTiles][kDqPart / 8][4] = {};
#pragma unroll
      for (int n = 0; n < C.block_k() / 16; ++n) {
        if (kMasked && C.splits == 1 && (n < live_keys.begin || n >= live_keys.end)) continue;
        if constexpr (C.through_registers()) ptx::keep_apart();
        std::uint32_t left[kDqTiles][1][4];
#pragma unroll
        for (int m = 0; m < kDqTiles; ++m)
          ptx::load_matrix_transposed(left[m][0], (left_lane ^ (m << 5)) + n * 16 * Scores::kRowBytes);
        issue_sums<E, D>(grad_q, left, right_lane, n * 16);
      }
#pragma unroll
      for (int m = 0; m < kDqTiles; ++m) {
#pragma unroll
        for (int j = 0; j < kDqPart / 8; ++j) {
          add_fragment<kOwnLayout>(
              to + fragment_offset(D, step.begin % kQueryBlock + dq_row + m * 16, dq_column + j * 8),
              grad_q[m][j]);
        }
      }
    }
  }

  // One step. Masked: some query does not see some key. Two copies of the code, so that the common
  // one stays short.
  template <bool kMasked>
  __device__ __forceinline__ void compute() {
    TESSERA_DYNAMIC_SHARED(unsigned char, 1024, shared);
    const QueryStep& step = walk.step;
    stage = step.stage * Shared::kStageBytes;
    const float* statistics =
        reinterpret_cast<const float*>(shared + Shared::kStatistics) + step.stage * 2 * kBlockQ;
    bool careful = false;
    if constexpr (C.splits == 1) compute_alone<kMasked>(statistics, careful);
    else compute_shared<kMasked>(statistics, careful);
    if (careful && a.grad_q_sums != nullptr) {  // K as it was
      __syncthreads();
      walk.copies.load_keys(base, a.problem.k, a.problem.qk_dim);
      commit_copies<E>();
    }
  }

  // The width of a warp's share of a step. With features the body of the loop over it is long, and
  // copies of it would exceed the instruction cache. A bound that the compiler does not know keeps
  // it from unrolling.
  static __device__ __forceinline__ int loop_width() {
    return C.variant == Variant::plain ? kWidth : ptx::opaque(kWidth);
  }

  template <bool kMasked>
  __device__ __forceinline__ void add_to_dq(const LiveKeys& live_keys, const bool& careful) const {
    if (a.grad_q_sums != nullptr) issue_dq<kMasked>(live_keys, careful);
  }

  // A step of warps that have their keys to themselves: P and dS go from the accumulators straight
  // into dV and dK. Sets `careful` where K has lost non-finite values.
  template <bool kMasked>
  __device__ __forceinline__ void compute_alone(const float* statistics, bool& careful) {
    const QueryStep& step = walk.step;
    const QueryRun& run = tile.run[step.which];
    const int width = loop_width();
    std::uint32_t kept = ~0U;
    LiveKeys live_keys{0, C.block_k() / 16};
    if constexpr (kMasked) {  // the warps of other keys have nothing to add, and dQ leaves those keys out
      const int first = max(run.first, step.begin), last = min(run.last, step.begin + kBlockQ);
      live_keys.begin = max(0, first + tile.band.low - tile.keys.begin) / 32 * 2;
      live_keys.end = (min(tile.keys.end, last + tile.band.high) - tile.keys.begin + 31) / 32 * 2;
    }
    const int group = static_cast<int>(threadIdx.x) / 32;
    const bool live = !kMasked || (2 * group >= live_keys.begin && 2 * group < live_keys.end);
#pragma unroll
    for (int column = 0; column < width; column += kChunk) {
      Packed p_packed, ds_packed;
      bool bad = false;
      ptx::keep_apart();
      if (live) {
        if (column % kDrawn == 0) draw(column, kept);
        bad = scores_of<kMasked>(p_packed, ds_packed, statistics, column, kept >> (column % kDrawn / 2));
      }
      if (column + kChunk == kWidth) walk.look_for_turn();
      if (kMasked && __syncthreads_or(bad)) {
        careful = true;
        clear_queries(column, column + kChunk);
      }
      if (C.fetches_early() && column == 0) walk.prefetch();
      if (!live) continue;
      if (a.grad_q_sums != nullptr) store_scores(grad_scores(), ds_packed, column);
      issue_sums<E, D>(grad_v, p_packed, contracted() + C.query_tile_bytes(), column);
      issue_sums<E, D>(grad_k, ds_packed, contracted(), column);
    }
    if (a.grad_q_sums != nullptr) walk.take_turn();
    const bool bias_follows = C.stages_bias() && C.bias_later() && a.bias_staged;
    if (a.grad_q_sums != nullptr || bias_follows) __syncthreads();
    if (bias_follows) {
      walk.copies.load_bias_tile(walk.next.which, walk.next.begin);
      commit_copies<E>();
    }
    add_to_dq<kMasked>(live_keys, careful);
  }

  // A step of warps that share their keys: each computes the scores of some queries and the sums of
  // some columns, and P and dS pass through shared memory. Sets `careful` where K has lost
  // non-finite values.
  template <bool kMasked>
  __device__ __forceinline__ void compute_shared(const float* statistics, bool& careful) {
    const int width = loop_width();
    std::uint32_t kept = ~0U;
    const LiveKeys live_keys{0, C.block_k() / 16};
    const std::uint32_t scores = base + Shared::kScores;
#pragma unroll
    for (int column = 0; column < width; column += kChunk) {
      Packed p_packed, ds_packed;
      if constexpr (kTight) ptx::keep_apart();
      const int from = Place<C>().split * kWidth + column;
      if (kWidth * C.splits > kBlockQ && from >= kBlockQ) break;
      if (column % kDrawn == 0) draw(from, kept);
      careful |= scores_of<kMasked>(p_packed, ds_packed, statistics, from, kept >> (column % kDrawn / 2));
      store_scores(scores, p_packed, from);
      store_scores(grad_scores(), ds_packed, from);
    }
    walk.take_turn();
    if constexpr (!kMasked) {
      __syncthreads();
    } else {
      careful = __syncthreads_or(careful) != 0;
      if (careful) clear_queries(0, kBlockQ);
    }
    if constexpr (C.through_registers()) {
      add_to_dq<kMasked>(live_keys, careful);
      walk.prefetch();  // into registers that dQ has left
      ptx::keep_apart();
    }
    add_rows(grad_v, scores, contracted() + C.query_tile_bytes());
    if constexpr (kTight) ptx::keep_apart();
    if constexpr (C.stages > 1 && D == 256) walk.prefetch();  // twice the bytes, half a step earlier
    add_rows(grad_k, grad_scores(), contracted());
    if constexpr (C.stages > 1 && D < 256) walk.prefetch();
    if constexpr (!C.through_registers()) add_to_dq<kMasked>(live_keys, careful);
  }
};

}  // namespace tessera::cuda::mma::backward
