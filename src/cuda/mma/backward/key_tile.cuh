// What a thread block that owns a tile of keys knows about it, and its plan of shared memory.
#pragma once

#include <cstdint>

#include "core/visibility.h"
#include "cuda/common/head_options.cuh"
#include "cuda/common/ptx/opaque.cuh"
#include "cuda/common/visible.h"
#include "cuda/mma/backward/config.h"

namespace tessera::cuda::mma::backward {

// A tile of keys [begin, end) of a sequence.
struct KeyRange {
  int sequence, kv_head, begin, end;
};

// A run of steps over the queries of one head. Head -1: there is none.
struct QueryRun {
  int head;
  int begin, first, last;
};

// The runs of queries that see a tile of keys, one query head of the group after the other.
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
    runs_ = Runs(visible_queries(p, core::sequence(p, keys.sequence), head_, keys.begin, keys.end));
  }

  int head_;
  Runs runs_;
};

// A step: its first query, which of the tile's two runs it belongs to, and the stage that holds its
// rows.
struct QueryStep {
  int begin, which, stage;
};

// What a thread block knows about its tile and the current query head. In shared memory, because
// registers are full.
struct KeyTile {
  KeyRange keys;
  int q_begin, k_begin, q_length;  // of the sequence
  Diagonals band;
  QueryRuns runs;
  QueryRun run[2];  // the current one and the one before or after, with the options of their heads
  HeadOptions options[2];
  std::uint32_t ticket;  // deterministic mode: the number of this task,
  std::uint32_t* turn;   // and the turn that thread 0 has yet to pass on
};

// Offsets in shared memory: K, V; per stage Q, dO; dS and, with splits, P; per stage the statistics
// (LSE, then delta); what is known of the tile; and, if there is one and it fits, a tile of the
// bias.
template <KeysConfig C>
struct KeysMemory {
  static constexpr int kV = C.key_tile_bytes();
  static constexpr int kStages = 2 * C.key_tile_bytes();
  static constexpr int kStageBytes = 2 * C.query_tile_bytes();
  static constexpr int kGradScores = kStages + C.stages * kStageBytes;
  static constexpr int kScores = kGradScores + C.score_tile_bytes();
  static constexpr int kStatistics = kScores + (C.splits > 1 ? C.score_tile_bytes() : 0);
  static constexpr int kStatisticsBytes = 2 * C.block_q * static_cast<int>(sizeof(float));
  static constexpr int kTile = kStatistics + C.stages * kStatisticsBytes;
  static_assert(kTile == C.tile_bytes());
  static constexpr int kBytes = (kTile + static_cast<int>(sizeof(KeyTile)) + 127) / 128 * 128;
  static constexpr int kBias = kBytes;
  static constexpr int kBiasBytes = C.stages_bias() ? C.score_tile_bytes() : 0;
};

// The place of a thread, computed again wherever it is needed (ptx/opaque.cuh).
template <KeysConfig C>
struct Place {
  int lane, warp, group, split;

  __device__ __forceinline__ Place() {
    const int thread = ptx::opaque(static_cast<int>(threadIdx.x));
    lane = thread % 32, warp = thread / 32;
    group = C.splits == 1 ? warp : warp % C.key_groups, split = C.splits == 1 ? 0 : warp / C.key_groups;
  }
};

}  // namespace tessera::cuda::mma::backward
