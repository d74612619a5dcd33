// What kernel.cuh computes with: its configuration, what a thread block knows and keeps in shared memory, the walk over
// the queries that see a tile of keys, and the step from scores to P and dS.
#pragma once

#include "cuda/common/backward_steps.cuh"

namespace tessera::cuda::flash2 {

struct BackwardConfig {
  Engine engine = Engine::sm80_bf16;
  Variant variant = Variant::plain;
  int head_dim = 64;
  int key_groups = 4;  // of 32 keys
  int splits = 1;
  int block_q = 64;
  int stages = 2;
  int thread_blocks = 1;  // per multiprocessor, for the register allocation
  bool in_turns = true;   // serves deterministic mode too, which costs registers

  constexpr int block_k() const { return key_groups * 32; }
  // Queries whose scores a warp computes: all, or its share; with few queries not every warp gets one.
  constexpr int width() const { return block_q / splits < 16 ? 16 : block_q / splits; }
  // Queries whose scores a warp holds at a time. Options take registers.
  constexpr int chunk() const {
    const int most = variant == Variant::plain && stages > 1 ? 32 : 16;
    return width() < most ? width() : most;
  }
  // Without cp.async the next step's rows wait in registers until their place is free; options need those registers.
  constexpr bool through_registers() const { return !copies_async(engine) && variant == Variant::plain; }
  // Whether the next step is fetched during this one.
  constexpr bool fetches_early() const { return stages > 1 || through_registers(); }
  // Whether there is code for a bias in shared memory.
  constexpr bool stages_bias() const { return copies_async(engine) && variant != Variant::plain; }
  // Whether its tile is copied later than the next step's other rows.
  constexpr bool bias_later() const { return splits == 1 && fetches_early(); }
  // Whether steps with and without masks share their code: where registers do not suffice for more.
  constexpr bool one_copy() const { return stages == 1 && !through_registers(); }
  constexpr int warps() const { return key_groups * splits; }
  constexpr int threads() const { return warps() * 32; }
  constexpr int key_tile_bytes() const { return block_k() * head_dim * 2; }
  constexpr int query_tile_bytes() const { return block_q * head_dim * 2; }
  constexpr int score_tile_bytes() const { return block_k() * block_q * 2; }
};

// A tile of keys [begin, end) of a sequence.
struct KeyRange {
  int sequence, kv_head, begin, end;
};

// A run of blocks of queries of one head. A head of -1: no more.
struct QueryRun {
  int head;
  int begin, first, last;
};

// The runs of queries that see a tile of keys, for one query head of the group after the other.
class QueryRuns {
 public:
  QueryRuns() = default;
  __device__ QueryRuns(const core::Problem& p, const KeyRange& keys)
      : head_(keys.kv_head * static_cast<int>(p.group())) {
    enter_head(p, keys);
  }

  // The next run, whose steps begin at multiples of `width`.
  __device__ QueryRun next(const core::Problem& p, const KeyRange& keys, int width) {
    const int last_head = (keys.kv_head + 1) * static_cast<int>(p.group()) - 1;
    while (true) {
      const Run run = runs_.next(width);
      if (run.first < run.last) return {head_, run.begin, run.first, run.last};
      if (head_ == last_head) return {-1, 0, 0, 0};
      ++head_;
      enter_head(p, keys);
    }
  }

 private:
  __device__ void enter_head(const core::Problem& p, const KeyRange& keys) {
    runs_ = Runs(core::visible_queries(p, core::sequence(p, keys.sequence), head_, keys.begin, keys.end));
  }

  int head_;
  Runs runs_;
};

// A step of the walk: its first query, which of the tile's two runs it belongs to, and the stage that holds its rows.
struct QueryStep {
  int begin, which, stage;
};

// What a thread block knows about its tile and the query head at hand. In shared memory: registers are full.
struct KeyTile {
  KeyRange keys;
  int q_begin, k_begin, q_length;  // of the sequence
  core::Diagonals band;
  QueryRuns runs;
  QueryRun run[2];  // the one at hand and the one before or after, and their heads' options
  HeadOptions options[2];
  std::uint32_t ticket;  // deterministic mode: the number of this task
  std::uint32_t* turn;   // and the turn to be passed on; thread 0's
};

// Shared memory: K, V; per stage Q, dO; dS and, with splits, P; per stage the statistics; the
// tile's facts; and, if there is one and it fits, a tile of the bias.
template <BackwardConfig C>
struct BackwardShared {
  static constexpr int kV = C.key_tile_bytes();
  static constexpr int kStages = 2 * C.key_tile_bytes();
  static constexpr int kStageBytes = 2 * C.query_tile_bytes();
  static constexpr int kGradScores = kStages + C.stages * kStageBytes;
  static constexpr int kScores = kGradScores + C.score_tile_bytes();
  static constexpr int kStatistics = kScores + (C.splits > 1 ? C.score_tile_bytes() : 0);
  static constexpr int kStatisticsBytes = 2 * C.block_q * 4;
  static constexpr int kTile = kStatistics + C.stages * kStatisticsBytes;
  static constexpr int kBytes = (kTile + static_cast<int>(sizeof(KeyTile)) + 127) / 128 * 128;
  static constexpr int kBias = kBytes;
  static constexpr int kBiasBytes = C.stages_bias() ? C.score_tile_bytes() : 0;
};

// The place of a thread, worked out wherever it is needed: see opaque.
template <BackwardConfig C>
struct Place {
  int lane, warp, group, split;

  __device__ __forceinline__ Place() {
    const int thread = opaque(static_cast<int>(threadIdx.x));
    lane = thread % 32, warp = thread / 32;
    group = C.splits == 1 ? warp : warp % C.key_groups, split = C.splits == 1 ? 0 : warp / C.key_groups;
  }
};

// Scores of 32 keys x 8 * Blocks queries become P (in `s`) and dS (in `dp`). `column` is the first of these queries in
// the step that begins with query `begin`; `bias` the tile of the bias, if that is staged. `kept`: what dropout leaves, bit
// kept_bit(x, j, r) for the key r * 8 below the lane's first and column x of block j. Masked: some are not seen; returns then
// whether anything was not finite.
template <BackwardConfig C, bool Masked, int Blocks>
__device__ __forceinline__ bool differentiate(float (&s)[2][Blocks][4], float (&dp)[2][Blocks][4],
                                              const BackwardArguments& a, const float* statistics, int column,
                                              int begin, const QueryRun& run, const HeadOptions& options,
                                              const KeyTile& tile, int first_key, std::uint32_t kept,
                                              std::uint32_t bias) {
  constexpr bool kFeatured = C.variant != Variant::plain, kDropout = C.variant == Variant::dropout;
  const int lane = opaque(static_cast<int>(threadIdx.x)) % 32, key = first_key + lane / 4;
  const ScoreFeatures& features = a.features;
  auto pair_at = [&](const float* from, int j) {
    return *reinterpret_cast<const float2*>(from + column + j * 8 + lane % 4 * 2);
  };
  // Which queries of the step see the key r * 8 below the lane's first.
  auto range_of = [&](int r) {
    const int below = key + 8 * r;
    const int first = max(run.first, below - tile.band.high), last = min(run.last, below - tile.band.low + 1);
    return seen_range(first - begin, (below < tile.keys.end ? last : first) - begin);
  };
  // change(score, gradient, r, j, x) for all elements: that key, and column x of block j.
  auto each = [&](auto&& change) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int j = 0; j < Blocks; ++j) {
#pragma unroll
        for (int x = 0; x < 2; ++x) change(s[r / 2][j][r % 2 * 2 + x], dp[r / 2][j][r % 2 * 2 + x], r, j, x);
      }
    }
  };
  float check = 0;  // stays 0 while everything is finite
  if constexpr (Masked) {
    each([&](float& score, float grad, int, int, int) {
      const float poison = grad * 0.0F;  // NaN if dO or V is not finite here: dV must show it
      check = fmaf(score, 0.0F, check + poison);
      score += poison;
    });
  }
  if constexpr (kDropout) {
#pragma unroll
    for (int j = 0; j < Blocks; ++j) {
      const float2 delta = pair_at(statistics + C.block_q, j);
#pragma unroll
      for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int x = 0; x < 2; ++x) {
          float& grad = dp[r / 2][j][r % 2 * 2 + x];
          grad = kept >> kept_bit(x, j, r) & 1 ? grad : -(x == 0 ? delta.x : delta.y);
        }
      }
    }
  }
  if constexpr (kFeatured) {
    scale_scores(features, s, dp);
    if (features.has_alibi) {
      const float distance = static_cast<float>(begin + column + lane % 4 * 2 + options.diagonal - key);
      each([&](float& score, float, int r, int j, int x) {
        score = fmaf(-options.slope, fabsf(distance + static_cast<float>(8 * j + x - 8 * r)), score);
      });
    }
    if (C.stages_bias() && a.bias_staged) {
      using Bias = SharedTile<C.block_k()>;
      const int chunk = (first_key - tile.keys.begin) / 8 + lane / 8;
#pragma unroll
      for (int j = 0; j < Blocks; ++j) {  // rows of the bias are queries: turned round, like the scores
        std::uint32_t pairs[4];
        ptx::load_matrix_transposed(pairs, bias + Bias::offset(column + j * 8 + lane % 8, chunk));
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          float* score = &s[r / 2][j][r % 2 * 2];
          const float2 pair = ptx::unpack<type_of(C.engine)>(pairs[r]);
          score[0] = biased_score<Masked>(score[0], pair.x);
          score[1] = biased_score<Masked>(score[1], pair.y);
        }
      }
    } else if (features.has_bias) {  // four keys of one query after the other: one address for each
      auto add_bias = [&](auto zero) {
#pragma unroll
        for (int jx = 0; jx < 2 * Blocks; ++jx) {
          keep_apart();
          const int at = opaque(column + lane % 4 * 2) + jx / 2 * 8 + jx % 2;
          const auto* row = static_cast<const decltype(zero)*>(a.problem.bias.data) + options.bias +
                            (begin + at) * a.problem.bias.row_stride + key;
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            float& score = s[r / 2][jx / 2][r % 2 * 2 + jx % 2];
            if (!Masked || range_of(r)(at))
              score = biased_score<Masked>(score, bias_number<type_of(C.engine)>(__ldg(row + 8 * r)));
          }
        }
      };
      if (a.problem.bias_dtype == DType::fp32) add_bias(float{});
      else add_bias(std::uint16_t{});
    }
  }
  // P, and dS = P o (dP - delta).
  auto finish = [&](int r, int j, float2 lse, const SeenRange& range) {
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      float &score = s[r / 2][j][r % 2 * 2 + x], &grad = dp[r / 2][j][r % 2 * 2 + x];
      const float reference = x == 0 ? lse.x : lse.y;
      const bool hidden = kFeatured && Masked && score == -INFINITY;  // by its bias
      score = ptx::exp2(kFeatured ? score - reference : fmaf(score, features.scale_log2, -reference));
      grad *= score;
      if constexpr (kDropout) score = kept >> kept_bit(x, j, r) & 1 ? score : 0.0F;
      if constexpr (Masked) {
        const bool seen = range(column + j * 8 + lane % 4 * 2 + x) && !hidden;
        score = seen ? score : 0.0F;
        grad = seen ? grad : 0.0F;
      }
    }
  };
  if constexpr (Masked) {  // key by key: what it is seen by is two numbers
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const SeenRange range = range_of(r);
#pragma unroll
      for (int j = 0; j < Blocks; ++j) finish(r, j, pair_at(statistics, j), range);
    }
  } else {
#pragma unroll
    for (int j = 0; j < Blocks; ++j) {
      const float2 lse = pair_at(statistics, j);
#pragma unroll
      for (int r = 0; r < 4; ++r) finish(r, j, lse, {});
    }
  }
  return Masked && !(check == 0);
}

}  // namespace tessera::cuda::flash2
