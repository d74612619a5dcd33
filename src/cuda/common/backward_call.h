// What every kernel of one backward call is given, and how its workspace is laid out: blocks of
// queries.
#pragma once

#include <cstdint>

#include "core/problem.h"
#include "core/task_order.h"
#include "core/visibility.h"
#include "cuda/common/features.h"

namespace tessera::cuda {

// The queries of a block: statistics and sums of dQ are stored by blocks of one head and sequence.
inline constexpr int kQueryBlock = 64;
// In deterministic mode tiles of keys take turns to add to the sums of so many queries: the
// smallest step of a kernel.
inline constexpr int kTurnQueries = 16;
inline constexpr int kTurnsPerBlock = kQueryBlock / kTurnQueries;

// Threads of a block of the kernels that come before and after the tiles (prepare.cuh).
inline constexpr int kPrepareThreads = 256;
inline constexpr int kFinishThreads = 128;

// The first block of a sequence among those of a head; Index is wide enough for the result. With
// packed sequences every sequence gets room for one more block than its share, so that the place
// follows from where its rows begin.
template <typename Index, typename Length>
TESSERA_HD constexpr Index first_query_block(bool packed, Length q_begin, Length q_length, Length sequence) {
  return packed ? static_cast<Index>(q_begin / kQueryBlock + sequence)
                : sequence * static_cast<Index>((q_length + kQueryBlock - 1) / kQueryBlock);
}

// Where the blocks of queries lie in the workspace.
struct QueryBlocks {
  std::int64_t per_head = 0;  // blocks of one head over all sequences

  static TESSERA_HD std::int64_t count(const core::Problem& p) {
    if (p.packed) return p.q_tokens / kQueryBlock + p.batch;
    return p.batch * ((p.q_length + kQueryBlock - 1) / kQueryBlock);
  }

  // The first block of a sequence among those of a head.
  static TESSERA_HD std::int64_t first(const core::Problem& p, const core::Sequence& s) {
    return first_query_block<std::int64_t>(p.packed, s.q_begin, p.q_length, s.index);
  }
};

struct BackwardCall {
  core::Problem problem{};
  core::BasicTaskOrder<std::uint32_t> order{};  // of this kernel's tiles
  QueryBlocks blocks{};
  ScoreFeatures features{};
  // Per head and block of queries: 64 LSE in base-2 logarithms (+inf for a row without gradients),
  // then 64 delta. With dropout, P and dP of what is kept carry the same factor keep_scale, which
  // is applied to the sums at the end. So delta is divided by it here.
  float* statistics = nullptr;
  // Per head and block of queries: sums of dQ (dq_sums.cuh). Null: dQ is not requested or has a
  // kernel of its own.
  float* grad_q_sums = nullptr;
  int head_dim = 0;  // columns of the sums
  // Deterministic mode: per head and block of queries, for every 16 of them, how many tiles of keys
  // have added to the sums. Null: tiles add in any order.
  std::uint32_t* turns = nullptr;
  std::uint32_t* ticket = nullptr;  // tasks handed out so far; null: the index of a thread block is its task
  bool bias_staged = false;         // the bias comes through shared memory

  // The factor of the sums of dS K and dS^T Q.
  TESSERA_HD float gradient_scale() const { return static_cast<float>(problem.scale) * features.keep_scale; }
};

static_assert(sizeof(BackwardCall) < 4096, "the parameters of a kernel");

using BackwardKernel = void (*)(BackwardCall);

// The kernels before and after the tiles (prepare.cuh).
struct BackwardEnds {
  BackwardKernel prepare = nullptr;  // kPrepareThreads threads for 64 queries of a head
  BackwardKernel finish = nullptr;   // kFinishThreads threads, likewise
};

// Those for sums of dQ as cuda.hopper's kernel leaves them. The files of cuda.flash2 compile them.
BackwardEnds hopper_ends_fp16();
BackwardEnds hopper_ends_bf16();

}  // namespace tessera::cuda
