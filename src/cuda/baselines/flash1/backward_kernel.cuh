// cuda.flash1 backward: algorithm 4 of the FlashAttention paper, with keys in the outer loop.
//
//   for each block of keys:               load K and V to shared memory; dK = dV = 0, in registers
//     for each query head of the group, for each tile of queries that sees the block:
//       load Q, dO, LSE, delta  ->  issue_qk, issue_dp -> finish_score -> apply_mask -> P, dS
//       dV += P^T dO,  dK += dS^T Q,  dQ += dS K
//     store dK and dV
//
// Parallelism
//   One thread block per key/value head of a sequence, so that every sum has one owner: there are
//   no atomics, and results are bitwise reproducible. dQ lives in global memory in fp32 (the
//   original's dq_tmp) until all blocks are done; a thread reads only what it has written itself. P
//   and dS pass through shared memory in the type of the tensors: a warp computes 16 rows by a part
//   of the keys, and then sums 16 keys (or queries) by a part of the columns.
//
// Traffic
//   K and V read, and dK and dV written, once. Per block of keys, Q, dO, LSE and delta are read,
//   and dQ is read and written.
#pragma once

#include "core/online_softmax.h"
#include "core/visibility.h"
#include "cuda/baselines/flash1/scores.cuh"
#include "cuda/common/instances.h"
#include "cuda/common/ptx/shared_memory.cuh"

namespace tessera::cuda::flash1 {

struct BackwardConfig {
  Engine engine = Engine::sm80_fp16;
  Variant variant = Variant::plain;
  int head_dim = 64;
  int block = 64;  // queries and keys
  int splits = 2;  // warps that share 16 rows
  int stages = 2;  // tiles of Q and dO: with two, the next is copied during this one

  constexpr int groups() const { return block / 16; }  // of rows
  constexpr int threads() const { return groups() * splits * 32; }
  constexpr int columns() const { return head_dim / splits; }  // of a warp's sums
  // Of a warp's scores; with few keys some warps have none.
  constexpr int keys() const { return block / splits < 16 ? 16 : block / splits; }
  constexpr int score_width() const { return is_fp32(engine) ? block : 64; }
};

template <BackwardConfig C>
struct BackwardShared {
  using Rows = EngineTile<C.engine, C.head_dim>;
  using Scores = EngineTile<C.engine, C.score_width()>;
  static constexpr int kK = 0;
  static constexpr int kV = kK + Rows::bytes(C.block);
  static constexpr int kQ = kV + Rows::bytes(C.block);
  static constexpr int kGradOut = kQ + C.stages * Rows::bytes(C.block);
  static constexpr int kP = kGradOut + C.stages * Rows::bytes(C.block);
  static constexpr int kGradScores = kP + Scores::bytes(C.block);
  static constexpr int kOptions = kGradScores + Scores::bytes(C.block);
  static constexpr int kBytes = kOptions + static_cast<int>(sizeof(Options));
};

// The gradient that is computed: that of the products, or that of the scores to which the bias was
// added, which lies behind the softcap.
enum class Gradient : int { products, scores };

// Turns the products of two rows of queries into P (in `s`) and dS (in `dp`).
template <BackwardConfig C, Gradient Of, int N>
__device__ __forceinline__ void differentiate(float (&s)[N][4], float (&dp)[N][4], const Options& options,
                                              const Step& step, int row, int key, bool masked,
                                              const float (&lse)[2], const float (&delta)[2]) {
  constexpr Engine E = C.engine;
  constexpr Variant V = C.variant;
  const int lane = lane_index();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int i = row + lane / 4 + 8 * h;
    const Seen seen = step.seen(i);
    const bool exists = lse[h] != core::kMinusInfinity<float>;  // otherwise the row saw no key
    std::uint32_t kept = ~0U;
    if constexpr (V == Variant::featured) {
      if (options.dropout) kept = kept_bits<N>(options, i, key, lane % 4);
    }
#pragma unroll
    for (int e = 0; e < 2 * N; ++e) {
      const int j = key + e / 2 * 8 + lane % 4 * 2 + e % 2;
      float &score = s[e / 2][2 * h + e % 2], &grad = dp[e / 2][2 * h + e % 2];
      bool visible = exists && (!masked || seen(j));
      const bool keep = kept >> e & 1;
      float derivative;
      const float finished = finish_score<E, V>(options, score, i, j, visible, derivative);
      if (V == Variant::featured && finished == core::kMinusInfinity<float>)
        visible = false;  // hidden by its bias
      const float p = exp_difference(finished, lse[h]);
      if constexpr (V == Variant::featured) {
        grad = keep ? grad * options.keep_scale : 0;
        score = keep ? p * options.keep_scale : 0;
      } else {
        score = p;
      }
      grad = p * (grad - delta[h]) * (Of == Gradient::products ? derivative : 1);
      if (!visible) score = grad = 0;
    }
  }
}

// Stores the sums of 16 rows, times `factor`. Rows [0, count) exist.
template <BackwardConfig C, int N>
__device__ __forceinline__ void store_sums(const core::View& view, std::int64_t batch, int head,
                                           std::int64_t first_row, int count, int column, int columns,
                                           const float (&sums)[N][4], float factor) {
  const int lane = lane_index();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = lane / 4 + 8 * h;
    if (r >= count) continue;
    auto* row = view.row<Element<C.engine>>(batch, head, first_row + r);
#pragma unroll
    for (int e = 0; e < 2 * N; ++e) {
      const int c = column + e / 2 * 8 + lane % 4 * 2 + e % 2;
      if (c < columns) row[c] = to_element<C.engine>(sums[e / 2][2 * h + e % 2] * factor);
    }
  }
}

// The work of a thread block: the loops over one key/value head of a sequence.
template <BackwardConfig C>
struct Backward {
  static constexpr Engine E = C.engine;
  static constexpr Variant V = C.variant;
  static constexpr int D = C.head_dim, kBlock = C.block, kKeys = C.keys(), W = C.score_width();
  static constexpr int N = C.columns() / 8;
  using Shared = BackwardShared<C>;
  using Rows = typename Shared::Rows;
  using Sums = float[N][4];  // 16 rows by this warp's columns

  __device__ __forceinline__ Backward(const Arguments& arguments, unsigned char* memory)
      : a(arguments),
        p(arguments.problem),
        shared(memory),
        options(*reinterpret_cast<Options*>(memory + Shared::kOptions)),
        sequence(static_cast<int>(blockIdx.x / static_cast<unsigned>(p.kv_heads))),
        kv_head(static_cast<int>(blockIdx.x % static_cast<unsigned>(p.kv_heads))),
        q_length(static_cast<int>(sequence_of().q_length)),
        lane(lane_index()),
        group(warp_index() % C.groups()),
        split(warp_index() / C.groups()),
        column(split * C.columns()) {}

  __device__ __forceinline__ void run() const {
    if (p.has_grad_q) clear_grad_q();
    const core::Tiling blocks{sequence_of().k_length, kBlock, p.blocks ? p.blocks.block_k : 0};
    for (std::int64_t b = 0; b < blocks.count(); ++b) walk_heads(blocks[b]);
    if (p.has_grad_q) store_grad_q();
  }

  // LSE and delta of this thread's two rows of a tile.
  struct Statistics {
    float lse[2], delta[2];
  };

  // Both are derived wherever they are needed: kept, they would cost the main loop twenty
  // registers.
  __device__ __forceinline__ int first_head() const {
    return ptx::opaque(kv_head) * static_cast<int>(p.group());
  }
  __device__ __forceinline__ core::Sequence sequence_of() const { return core::sequence(p, sequence); }

  __device__ __forceinline__ std::int64_t first_row(int head) const {
    return (static_cast<std::int64_t>(sequence) * p.q_heads + head) * p.q_length;
  }

  // ---- dQ, which lives in global memory until all blocks of keys are done ----

  // The place of fragment n in row i of a head.
  __device__ __forceinline__ float2* grad_q_at(int head, int i, int n) const {
    return reinterpret_cast<float2*>(a.sums + (first_row(head) + i) * D + column + 8 * n + lane % 4 * 2);
  }

  // visit(head, i) for the rows of all heads that this thread reads and writes.
  template <typename Visit>
  __device__ __forceinline__ void for_each_grad_q_row(Visit&& visit) const {
    for (int head = first_head(), end = head + static_cast<int>(p.group()); head < end; ++head) {
      for (int i = group * 16 + lane / 4; i < q_length; i += i % 16 < 8 ? 8 : kBlock - 8) visit(head, i);
    }
  }

  __device__ __forceinline__ void clear_grad_q() const {
    for_each_grad_q_row([&](int head, int i) {
#pragma unroll
      for (int n = 0; n < N; ++n) *grad_q_at(head, i, n) = {};
    });
  }

  // The sums so far of this thread's rows of a tile; 0 where the step adds nothing.
  __device__ __forceinline__ void load_grad_q(Sums& grad_q, const Step& step, int head, bool adds) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int i = step.begin + group * 16 + lane / 4 + 8 * h;
#pragma unroll
      for (int n = 0; n < N; ++n) {
        float2 before{};
        if (adds && i >= step.first && i < step.last) before = *grad_q_at(head, i, n);
        grad_q[n][2 * h] = before.x, grad_q[n][2 * h + 1] = before.y;
      }
    }
  }

  __device__ __forceinline__ void put_grad_q(const Sums& grad_q, const Step& step, int head) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int i = step.begin + group * 16 + lane / 4 + 8 * h;
      if (i < step.first || i >= step.last) continue;
#pragma unroll
      for (int n = 0; n < N; ++n) *grad_q_at(head, i, n) = {grad_q[n][2 * h], grad_q[n][2 * h + 1]};
    }
  }

  // The tensor dQ from the sums.
  __device__ __forceinline__ void store_grad_q() const {
    const core::Sequence s = sequence_of();
    const auto scale = static_cast<float>(p.scale);
    for_each_grad_q_row([&](int head, int i) {
      auto* to = p.grad_q.row<Element<E>>(s.tensor_batch, head, s.q_begin + i);
      for (int n = 0; n < N; ++n) {
        const float2 x = *grad_q_at(head, i, n);
        const int c = column + 8 * n + lane % 4 * 2;
        if (c < p.qk_dim) to[c] = to_element<E>(x.x * scale);
        if (c + 1 < p.qk_dim) to[c + 1] = to_element<E>(x.y * scale);
      }
    });
  }

  // ---- the loops ----

  __device__ __forceinline__ void load_keys(const Step& step, const core::Sequence& s) const {
    load_tile<E, V, D, kBlock, C.threads()>(shared + Shared::kK,
                                            rows_of<E>(p.k, s.tensor_batch, kv_head, s.k_begin, p.qk_dim),
                                            step.key_begin, step.key_end);
    load_tile<E, V, D, kBlock, C.threads()>(shared + Shared::kV,
                                            rows_of<E>(p.v, s.tensor_batch, kv_head, s.k_begin, p.v_dim),
                                            step.key_begin, step.key_end);
  }

  // Q and dO of a tile, and what this thread needs of their rows.
  __device__ __forceinline__ void load_queries(int head, int begin, int stage, Statistics& next) const {
    const core::Sequence s = sequence_of();
    load_tile<E, V, D, kBlock, C.threads()>(shared + Shared::kQ + stage * Rows::bytes(kBlock),
                                            rows_of<E>(p.q, s.tensor_batch, head, s.q_begin, p.qk_dim), begin,
                                            q_length);
    load_tile<E, V, D, kBlock, C.threads()>(shared + Shared::kGradOut + stage * Rows::bytes(kBlock),
                                            rows_of<E>(p.grad_out, s.tensor_batch, head, s.q_begin, p.v_dim),
                                            begin, q_length);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int i = begin + group * 16 + lane / 4 + 8 * h;
      const bool live = i < q_length;
      next.lse[h] =
          live ? *p.lse.row<const float>(s.tensor_batch, head, s.q_begin + i) : core::kMinusInfinity<float>;
      next.delta[h] = live ? a.delta[first_row(head) + i] : 0;
    }
  }

  // The outer loop's body: a block of keys, and the query heads that share them.
  __device__ __forceinline__ void walk_heads(const core::Interval& block) const {
    Step step{.key_begin = static_cast<int>(block.begin), .key_end = static_cast<int>(block.end)};
    {
      const core::Sequence s = sequence_of();
      step.band = diagonals(s.band);
      __syncthreads();  // no thread reads the block before any more
      load_keys(step, s);
    }
    finish_copies<E>();
    __syncthreads();
    const bool keys_non_finite =
        __syncthreads_or(finds_non_finite<E, D, C.threads()>(shared + Shared::kK, kBlock)) != 0;

    Sums grad_k = {}, grad_v = {};
    for (int head = first_head(), end = head + static_cast<int>(p.group()); head < end; ++head)
      walk_queries(step, head, keys_non_finite, grad_k, grad_v);

    const core::Sequence s = sequence_of();
    const int key = step.key_begin + group * 16, count = step.key_end - key;
    if (p.has_grad_k) {
      store_sums<C>(p.grad_k, s.tensor_batch, kv_head, s.k_begin + key, count, column,
                    static_cast<int>(p.qk_dim), grad_k, static_cast<float>(p.scale));
    }
    if (p.has_grad_v) {
      store_sums<C>(p.grad_v, s.tensor_batch, kv_head, s.k_begin + key, count, column,
                    static_cast<int>(p.v_dim), grad_v, 1);
    }
  }

  // The inner loop: the tiles of queries of one head that see the block of keys.
  __device__ __forceinline__ void walk_queries(Step& step, int head, bool keys_non_finite, Sums& grad_k,
                                               Sums& grad_v) const {
    QueryWalk walk = query_walk(p, sequence_of(), head, step.key_begin, step.key_end, kBlock);
    if (walk.done()) return;
    if (threadIdx.x == 0) options = options_of<E, V>(p, sequence_of(), head);
    Statistics next;
    load_queries(head, walk.begin(), 0, next);
    finish_copies<E>();
    __syncthreads();
    for (int stage = 0; !walk.done(); stage = (stage + 1) % C.stages) {
      step.begin = walk.begin(), step.first = walk.first(), step.last = walk.last();
      walk.next();
      const Statistics own = next;
      if constexpr (C.stages == 2) {
        if (!walk.done()) load_queries(head, walk.begin(), 1 - stage, next);
      }
      add_step(step, head, stage, own, keys_non_finite, grad_k, grad_v);
      if constexpr (C.stages == 1) {
        __syncthreads();
        if (!walk.done()) load_queries(head, walk.begin(), 0, next);
      }
      finish_copies<E>();
      __syncthreads();
    }
  }

  // ---- a step ----

  // What a tile of queries adds to the gradients of the block of keys, and to its own.
  __device__ __forceinline__ void add_step(const Step& step, int head, int stage, const Statistics& own,
                                           bool keys_non_finite, Sums& grad_k, Sums& grad_v) const {
    const unsigned char* const q = shared + Shared::kQ + stage * Rows::bytes(kBlock);
    const unsigned char* const grad_out = shared + Shared::kGradOut + stage * Rows::bytes(kBlock);
    if (split * kKeys < kBlock) share_scores(step, q, grad_out, own);
    // dQ is loaded while dV and dK are summed.
    const bool adds = p.has_grad_q && step.any(step.begin + group * 16, 16, step.key_begin, kBlock);
    Sums grad_q;
    load_grad_q(grad_q, step, head, adds);
    // P and dS are 0 for masked pairs and where a bias hides the key. There the 0 must not meet a
    // non-finite value.
    bool careful = false;
    const bool hides = V == Variant::featured && options.bias != nullptr;
    if (hides || !step.all(step.begin, kBlock, step.key_begin, kBlock)) {
      careful = keys_non_finite || finds_non_finite<E, D, C.threads()>(q, kBlock) ||
                finds_non_finite<E, D, C.threads()>(grad_out, kBlock);
    }
    careful = __syncthreads_or(careful) != 0;
    multiply_scores<E, Layout::columns, W, D, kBlock>(grad_v, shared + Shared::kP, group * 16, 0, grad_out,
                                                      column, careful);
    multiply_scores<E, Layout::columns, W, D, kBlock>(grad_k, shared + Shared::kGradScores, group * 16, 0, q,
                                                      column, careful);
    if (adds) {
      multiply_scores<E, Layout::rows, W, D, kBlock>(grad_q, shared + Shared::kGradScores, group * 16, 0,
                                                     shared + Shared::kK, column, careful);
      put_grad_q(grad_q, step, head);
    }
  }

  // P and dS of this warp's 16 rows and its part of the keys, to shared memory.
  __device__ __forceinline__ void share_scores(const Step& step, const unsigned char* q,
                                               const unsigned char* grad_out, const Statistics& own) const {
    const int row = step.begin + group * 16, key = step.key_begin + split * kKeys;
    float s[kKeys / 8][4] = {}, dp[kKeys / 8][4] = {};
    if (step.any(row, 16, key, kKeys)) {
      // issue_qk, issue_dp
      multiply_rows<E, D>(s, q, group * 16, shared + Shared::kK, split * kKeys);
      multiply_rows<E, D>(dp, grad_out, group * 16, shared + Shared::kV, split * kKeys);
      differentiate<C, Gradient::products>(s, dp, options, step, row, key, !step.all(row, 16, key, kKeys),
                                           own.lse, own.delta);
    }
    store_scores<E, W>(shared + Shared::kP, group * 16, split * kKeys, s);
    store_scores<E, W>(shared + Shared::kGradScores, group * 16, split * kKeys, dp);
  }

  const Arguments& a;
  const core::Problem& p;
  unsigned char* const shared;
  Options& options;
  const int sequence, kv_head, q_length;
  const int lane;
  const int group;   // which 16 rows of a tile are this warp's,
  const int split;   // and which part of the keys and columns
  const int column;  // the first of its columns
};

template <typename Used>
__global__ void __launch_bounds__(Used::value.threads(), 1)
    flash1_backward_kernel(const __grid_constant__ Arguments arguments) {
  TESSERA_DYNAMIC_SHARED(unsigned char, 1024, shared);
  Backward<Used::value>(arguments, shared).run();
}

template <BackwardConfig C>
constexpr Instance backward_instance() {
  return {flash1_backward_kernel<Use<C>>, C.head_dim, C.block, C.block, C.threads(), C.splits,
          BackwardShared<C>::kBytes,      0};
}

}  // namespace tessera::cuda::flash1
