// The backward kernels as the host sees them: what an instance is, what it is given, and how the workspace is laid out.
#pragma once

#include <cstdint>
#include <span>

#include "core/problem.h"
#include "core/task_order.h"
#include "core/visibility.h"
#include "cuda/common/features.h"

namespace tessera::cuda::flash2 {

// Statistics and sums of dQ are kept in blocks of so many queries of one head and sequence.
inline constexpr int kQueryBlock = 64;
// In deterministic mode tiles of keys take turns at so many queries: the smallest step of a kernel.
inline constexpr int kTurnQueries = 16;
inline constexpr int kTurnsPerBlock = kQueryBlock / kTurnQueries;

// Where the blocks of queries of a sequence lie among those of a head. With packed sequences every sequence gets
// room for one more block than its share, so that the place follows from where its rows begin.
struct QueryBlocks {
  std::int64_t per_head = 0;  // blocks of one head over all sequences

  static TESSERA_HD std::int64_t count(const core::Problem& p) {
    if (p.packed) return p.q_tokens / kQueryBlock + p.batch;
    return p.batch * ((p.q_length + kQueryBlock - 1) / kQueryBlock);
  }

  // The first block of a sequence.
  static TESSERA_HD std::int64_t first(const core::Problem& p, const core::Sequence& s) {
    if (p.packed) return s.q_begin / kQueryBlock + s.index;
    return s.index * ((p.q_length + kQueryBlock - 1) / kQueryBlock);
  }
};

// What every kernel of one backward call is given.
struct BackwardArguments {
  core::Problem problem{};
  core::BasicTaskOrder<std::uint32_t> order{};  // of this kernel's tiles
  QueryBlocks blocks{};
  ScoreFeatures features{};
  // Per head and block of queries: 64 LSE in units of log2 (+inf for a row without gradients), then 64 delta. What dropout
  // keeps is to be scaled, P and dP alike: all gradients are sums over keep_scale, which comes in at the end, so delta is
  // divided by it.
  float* statistics = nullptr;
  // Per head and block of queries: 64 x head_dim sums of dQ, unscaled, in the order of the accumulators. Null: dQ is not
  // asked for, or has a kernel of its own.
  float* grad_q_sums = nullptr;
  int head_dim = 0;  // of the sums' rows
  // Deterministic mode: per head and block of queries, for every 16 of them, how many tiles of keys have added to the sums.
  // Null: in any order.
  std::uint32_t* turns = nullptr;
  std::uint32_t* ticket = nullptr;  // the tasks given out so far; null: a task is that of its thread block
  bool bias_staged = false;         // the bias comes through shared memory

  // Of sums of dS K and dS^T Q.
  TESSERA_HD float gradient_scale() const { return static_cast<float>(problem.scale) * features.keep_scale; }
};

static_assert(sizeof(BackwardArguments) < 4096, "the parameters of a kernel");

// An instance of a kernel that walks over tiles.
struct BackwardKernel {
  void (*kernel)(BackwardArguments) = nullptr;
  int head_dim = 0;  // serves head_dim up to this
  Variant variant = Variant::plain;
  int block_q = 0, block_k = 0;
  int threads = 0;
  int shared_memory = 0;
  bool in_turns = false;  // tiles of keys: adds to dQ in turns when asked to
  int thread_blocks = 1;  // that shall share a multiprocessor
  int bias_bytes = 0;     // of shared memory, besides, for a tile of a 16-bit bias; 0: it takes none
};

inline constexpr int kPrepareThreads = 256;
inline constexpr int kFinishThreads = 128;

// The instances for one head_dim, in the order of preference.
struct BackwardTable {
  std::span<const BackwardKernel> keys;     // tiles of keys: dK, dV and, by reductions, dQ
  std::span<const BackwardKernel> queries;  // tiles of queries: dQ without reductions
};

// The instances for one element type on one path.
struct BackwardFamily {
  BackwardTable tables[3];                       // head_dim 64, 128, 256
  std::span<const BackwardKernel> bias;          // tiles of the bias: its gradient, for any head_dim
  void (*prepare)(BackwardArguments) = nullptr;  // kPrepareThreads threads for 64 queries of a head
  void (*finish)(BackwardArguments) = nullptr;   // kFinishThreads threads, likewise
  // The same for sums of dQ as cuda.hopper's kernel leaves them. Null on Turing's path.
  void (*finish_hopper)(BackwardArguments) = nullptr;
};

// What the instance files compile.
template <int HeadDim>
BackwardTable backward_table_fp16();
template <int HeadDim>
BackwardTable backward_table_bf16();
template <int HeadDim>
BackwardTable backward_table_sm75();
BackwardFamily backward_family_fp16();
BackwardFamily backward_family_bf16();
BackwardFamily backward_family_sm75();

}  // namespace tessera::cuda::flash2
