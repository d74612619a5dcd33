// cuda.flash1 forward: algorithm 1 of the FlashAttention paper, with keys in the outer loop.
//
//   for each block of keys:               load K and V to shared memory
//     for each tile of queries that sees it:
//       load Q, O, m, l  ->  issue_qk -> finish_score -> apply_mask -> online_softmax -> dropout
//                        ->  issue_pv
//       O = diag(l_new)^-1 (diag(l) e^(m - m_new) O + P V),  m = m_new,  l = l_new:  store O, m, l
//
// Parallelism
//   One thread block per head of a sequence, as in the original; there is none within a head. A
//   warp owns 16 rows of every tile. A thread reads only the elements of O that it has written
//   itself, so that the state in global memory needs no barriers.
//
// Precision
//   As in the paper, O is normalised after every block. It lives in global memory in fp32 (the
//   original's o_tmp): rounded to 16 bits after every block, it would lose a digit per hundred
//   blocks.
//
// Traffic
//   K and V once per query head. Per block of keys, Q is read, and O, m and l are read and written.
#pragma once

#include "core/online_softmax.h"
#include "core/visibility.h"
#include "cuda/baselines/flash1/scores.cuh"
#include "cuda/common/instances.h"
#include "cuda/common/ptx/shared_memory.cuh"

namespace tessera::cuda::flash1 {

struct ForwardConfig {
  Engine engine = Engine::sm80_fp16;
  Variant variant = Variant::plain;
  int head_dim = 64;
  int warps = 8;
  int splits = 1;   // warps that share rows: each sums a part of the columns of O
  int step_k = 64;  // keys of one product; a block has whole steps
  int stages = 2;   // tiles of Q: with two, the next is copied during this one

  constexpr int groups() const { return warps / splits; }  // of 16 rows
  constexpr int columns() const { return head_dim / splits; }
  constexpr int block_q() const { return groups() * 16; }
  constexpr int threads() const { return warps * 32; }
  constexpr int score_width() const { return is_fp32(engine) ? step_k : 64; }
};

template <ForwardConfig C>
struct ForwardShared {
  using Rows = EngineTile<C.engine, C.head_dim>;
  using Scores = EngineTile<C.engine, C.score_width()>;
  static constexpr int kQ = 0;
  static constexpr int kScores = kQ + C.stages * Rows::bytes(C.block_q());  // 16 rows for each warp
  static constexpr int kOptions = kScores + C.warps * Scores::bytes(16);
  static constexpr int kKeys =
      (kOptions + static_cast<int>(sizeof(Options)) + 1023) / 1024 * 1024;  // K, then V
  static constexpr int kBytesPerKey = 2 * Rows::kRowBytes;
};

// The state of a thread for a tile of queries: two of its warp's 16 rows, each shared by four
// lanes.
template <ForwardConfig C>
struct RowState {
  static constexpr int N = C.columns() / 8;
  float o[N][4];
  float maximum[2], sum[2];

  // The place of row `row` of the call and of this lane's columns.
  static __device__ __forceinline__ float2* place(const Arguments& a, std::int64_t row, int n) {
    const int column = warp_index() / C.groups() * C.columns() + lane_index() % 4 * 2;
    return reinterpret_cast<float2*>(a.sums + row * C.head_dim + column + 8 * n);
  }
  // The same for m and l. Every split has its own, so that none reads what another one writes.
  static __device__ __forceinline__ std::int64_t own(const Arguments& a, std::int64_t row) {
    return row + warp_index() / C.groups() * (a.problem.batch * a.problem.q_heads * a.problem.q_length);
  }

  __device__ __forceinline__ void load(const Arguments& a, const std::int64_t (&row)[2],
                                       const bool (&live)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      maximum[h] = live[h] ? a.maxima[own(a, row[h])] : core::kMinusInfinity<float>;
      sum[h] = live[h] ? a.normalisers[own(a, row[h])] : 0;
    }
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float2 x = live[h] ? *place(a, row[h], n) : float2{};
        o[n][2 * h] = x.x * sum[h], o[n][2 * h + 1] = x.y * sum[h];
      }
    }
  }

  __device__ __forceinline__ void store(const Arguments& a, const std::int64_t (&row)[2],
                                        const bool (&live)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (!live[h]) continue;
      const float normaliser = sum[h] == 0 ? 0 : 1 / sum[h];
      if (lane_index() % 4 == 0)
        a.maxima[own(a, row[h])] = maximum[h], a.normalisers[own(a, row[h])] = sum[h];
#pragma unroll
      for (int n = 0; n < N; ++n)
        *place(a, row[h], n) = {o[n][2 * h] * normaliser, o[n][2 * h + 1] * normaliser};
    }
  }
};

// Turns scores into P and rescales O, m and l to the new maximum. The four lanes of a row hold the
// same m and l.
template <ForwardConfig C, int N>
__device__ __forceinline__ void online_softmax(float (&s)[N][4], RowState<C>& state) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float maximum = state.maximum[h];
#pragma unroll
    for (int n = 0; n < N; ++n) maximum = fmaxf(maximum, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
    maximum = fmaxf(maximum, __shfl_xor_sync(~0U, maximum, 1));
    maximum = fmaxf(maximum, __shfl_xor_sync(~0U, maximum, 2));
    // A row that has seen no key takes 0: -inf - -inf is NaN.
    const float reference = maximum == core::kMinusInfinity<float> ? 0 : maximum;
    const float factor = exp_difference(state.maximum[h], reference);
    float sum = 0;
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        s[n][2 * h + x] = exp_difference(s[n][2 * h + x], reference);
        sum += s[n][2 * h + x];
      }
    }
    sum += __shfl_xor_sync(~0U, sum, 1);
    sum += __shfl_xor_sync(~0U, sum, 2);
    state.sum[h] = state.sum[h] * factor + sum;
    state.maximum[h] = maximum;
#pragma unroll
    for (int n = 0; n < RowState<C>::N; ++n) state.o[n][2 * h] *= factor, state.o[n][2 * h + 1] *= factor;
  }
}

// O += P V. The tensor cores take P from registers.
template <ForwardConfig C, int N>
__device__ __forceinline__ void issue_pv(float (&o)[RowState<C>::N][4], const float (&p)[N][4],
                                         unsigned char* scores, const unsigned char* v, bool careful) {
  constexpr Engine E = C.engine;
  constexpr int D = C.head_dim;
  const int column = warp_index() / C.groups() * C.columns();
  if (is_fp32(E) || careful) {
    __syncwarp();  // all lanes have read the scores before
    store_scores<E, C.score_width()>(scores, 0, 0, p);
    __syncwarp();
    multiply_scores<E, Layout::rows, C.score_width(), D, C.step_k>(o, scores, 0, 0, v, column, careful);
    return;
  }
  if constexpr (!is_fp32(E)) {
    const MatrixAddress by_row = row_operand(ptx::lane_index());
    const std::uint32_t v_lane =
        ptx::shared_address(v) + SharedTile<D>::offset(by_row.row, by_row.chunk) + column * element_bytes(E);
#pragma unroll
    for (int step = 0; step < N / 2; ++step) {
      const float(&left)[4] = p[2 * step], (&right)[4] = p[2 * step + 1];
      const std::uint32_t a[4] = {
          ptx::pack<type_of(E)>(left[0], left[1]), ptx::pack<type_of(E)>(left[2], left[3]),
          ptx::pack<type_of(E)>(right[0], right[1]), ptx::pack<type_of(E)>(right[2], right[3])};
#pragma unroll
      for (int n = 0; n < RowState<C>::N; n += 2) {
        std::uint32_t b[4];
        ptx::load_matrix_transposed(b, SharedTile<D>::at(v_lane, 16 * step, n / 2));
        ptx::mma<mma_of(E), type_of(E)>(o[n], a, b[0], b[1]);
        ptx::mma<mma_of(E), type_of(E)>(o[n + 1], a, b[2], b[3]);
      }
    }
  }
}

// The work of a thread block: the loops over one query head of a sequence.
template <ForwardConfig C>
struct Forward {
  static constexpr Engine E = C.engine;
  static constexpr Variant V = C.variant;
  static constexpr int D = C.head_dim, kBlockQ = C.block_q(), kStep = C.step_k, N = kStep / 8;
  using Shared = ForwardShared<C>;
  using Rows = typename Shared::Rows;
  using Walk = QueryWalk;

  __device__ __forceinline__ Forward(const Arguments& arguments, unsigned char* memory)
      : a(arguments),
        p(arguments.problem),
        shared(memory),
        options(*reinterpret_cast<Options*>(memory + Shared::kOptions)),
        sequence(static_cast<int>(blockIdx.x / static_cast<unsigned>(p.q_heads))),
        head(static_cast<int>(blockIdx.x % static_cast<unsigned>(p.q_heads))),
        q_length(static_cast<int>(sequence_of().q_length)),
        lane(lane_index()),
        warp(warp_index()),
        group(warp % C.groups()),
        kv_head(static_cast<int>(p.kv_head(head))),
        first_row(static_cast<std::int64_t>(blockIdx.x) * p.q_length),
        keys(memory + Shared::kKeys),
        values(keys + a.block_k * Rows::kRowBytes),
        scores(memory + Shared::kScores + warp * Shared::Scores::bytes(16)) {}

  __device__ __forceinline__ void run() {
    // Read after the first barrier.
    if (threadIdx.x == 0) options = options_of<E, V>(p, sequence_of(), head);
    clear();
    const core::Tiling blocks{sequence_of().k_length, a.block_k, p.blocks ? p.blocks.block_k : 0};
    for (std::int64_t b = 0; b < blocks.count(); ++b) walk_queries(blocks[b]);
    finalize();
  }

  // Derived again wherever it is needed: kept, it would cost the main loop twenty registers.
  __device__ __forceinline__ core::Sequence sequence_of() const { return core::sequence(p, sequence); }

  // The two rows of this thread (h is 0 or 1) in the tile that begins at `begin`.
  __device__ __forceinline__ int own_row(int begin, int h) const {
    return begin + group * 16 + lane / 4 + 8 * h;
  }

  __device__ __forceinline__ const unsigned char* queries(int stage) const {
    return shared + Shared::kQ + stage * Rows::bytes(kBlockQ);
  }

  // O = 0, m = -inf, l = 0, for all rows.
  __device__ __forceinline__ void clear() const {
    for (int begin = 0; begin < q_length; begin += kBlockQ) {
      RowState<C> state{};
      state.maximum[0] = state.maximum[1] = core::kMinusInfinity<float>;
      const std::int64_t row[2] = {first_row + own_row(begin, 0), first_row + own_row(begin, 1)};
      const bool live[2] = {own_row(begin, 0) < q_length, own_row(begin, 1) < q_length};
      state.store(a, row, live);
    }
  }

  __device__ __forceinline__ void load_queries(int begin, int stage) const {
    const core::Sequence s = sequence_of();
    load_tile<E, V, D, kBlockQ, C.threads()>(shared + Shared::kQ + stage * Rows::bytes(kBlockQ),
                                             rows_of<E>(p.q, s.tensor_batch, head, s.q_begin, p.qk_dim),
                                             begin, q_length);
  }

  // K and V of a block, a step at a time.
  __device__ __forceinline__ void load_keys(const Step& step, const core::Sequence& s) const {
    for (int key = 0; key < step.key_end - step.key_begin; key += kStep) {
      load_tile<E, V, D, kStep, C.threads()>(keys + Rows::bytes(key),
                                             rows_of<E>(p.k, s.tensor_batch, kv_head, s.k_begin, p.qk_dim),
                                             step.key_begin + key, step.key_end);
      load_tile<E, V, D, kStep, C.threads()>(values + Rows::bytes(key),
                                             rows_of<E>(p.v, s.tensor_batch, kv_head, s.k_begin, p.v_dim),
                                             step.key_begin + key, step.key_end);
    }
  }

  // The outer loop's body: a block of keys, and all tiles of queries that see it.
  __device__ __forceinline__ void walk_queries(const core::Interval& block) const {
    const core::Sequence s = sequence_of();
    Step step{.key_begin = static_cast<int>(block.begin),
              .key_end = static_cast<int>(block.end),
              .band = diagonals(s.band)};
    Walk walk = query_walk(p, s, head, step.key_begin, step.key_end, kBlockQ);
    if (walk.done()) return;

    __syncthreads();  // no thread reads the block before any more
    load_keys(step, s);
    load_queries(walk.begin(), 0);
    finish_copies<E>();
    __syncthreads();
    const bool non_finite =
        __syncthreads_or(finds_non_finite<E, D, C.threads()>(values, step.key_end - step.key_begin)) != 0;

    for (int stage = 0; !walk.done(); stage = (stage + 1) % C.stages) {
      step.begin = walk.begin(), step.first = walk.first(), step.last = walk.last();
      walk.next();
      if constexpr (C.stages == 2) {
        if (!walk.done()) load_queries(walk.begin(), 1 - stage);
      }
      if (step.any(step.begin + group * 16, 16, step.key_begin, step.key_end - step.key_begin))
        update_rows(step, queries(stage), non_finite);
      if constexpr (C.stages == 1) {
        __syncthreads();
        if (!walk.done()) load_queries(walk.begin(), 0);
      }
      finish_copies<E>();
      __syncthreads();
    }
  }

  // Updates O, m and l of this warp's 16 rows of a tile by a block of keys.
  __device__ __forceinline__ void update_rows(const Step& step, const unsigned char* q,
                                              bool non_finite) const {
    const int warp_row = step.begin + group * 16;
    const std::int64_t row[2] = {first_row + own_row(step.begin, 0), first_row + own_row(step.begin, 1)};
    const bool hides = V == Variant::featured && options.bias != nullptr;  // by a bias of -inf
    const Seen seen[2] = {step.seen(own_row(step.begin, 0)), step.seen(own_row(step.begin, 1))};
    const bool live[2] = {seen[0].begin < seen[0].end, seen[1].begin < seen[1].end};
    RowState<C> state;
    state.load(a, row, live);
#pragma unroll 1
    for (int key = step.key_begin; key < step.key_end; key += kStep) {
      if (!step.any(warp_row, 16, key, kStep)) continue;
      const bool masked = !step.all(warp_row, 16, key, kStep);
      float x[N][4] = {};
      multiply_rows<E, D>(x, q, group * 16, keys, key - step.key_begin);  // issue_qk
      apply_mask(x, step, seen, key, masked);
      online_softmax<C>(x, state);
      if constexpr (V == Variant::featured) {
        if (options.dropout) apply_dropout(x, step.begin, key);
      }
      issue_pv<C>(state.o, x, scores, values + Rows::bytes(key - step.key_begin),
                  (masked || hides) && non_finite);
    }
    state.store(a, row, live);
  }

  // Turns products into scores; those of masked pairs become -inf.
  __device__ __forceinline__ void apply_mask(float (&x)[N][4], const Step& step, const Seen (&seen)[2],
                                             int key, bool masked) const {
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int j = key + 8 * n + lane % 4 * 2 + e % 2;
        const bool visible = !masked || seen[e / 2](j);
        float unused;
        const float score =
            finish_score<E, V>(options, x[n][e], own_row(step.begin, e / 2), j, visible, unused);
        x[n][e] = visible ? score : core::kMinusInfinity<float>;
      }
    }
  }

  __device__ __forceinline__ void apply_dropout(float (&x)[N][4], int begin, int key) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const std::uint32_t kept = kept_bits<N>(options, own_row(begin, h), key, lane % 4);
#pragma unroll
      for (int e = 0; e < 2 * N; ++e) {
        float& value = x[e / 2][2 * h + e % 2];
        value = kept >> e & 1 ? value * options.keep_scale : 0;
      }
    }
  }

  // Out and the LSE from O, m and l.
  __device__ __forceinline__ void finalize() const {
    const core::Sequence s = sequence_of();
    for (int begin = 0; begin < q_length; begin += kBlockQ) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int i = own_row(begin, h);
        if (i >= q_length) continue;
        auto* out = p.out.row<Element<E>>(s.tensor_batch, head, s.q_begin + i);
        for (int n = 0; n < RowState<C>::N; ++n) {
          const float2 x = *RowState<C>::place(a, first_row + i, n);
          const int column = warp / C.groups() * C.columns() + 8 * n + lane % 4 * 2;
          if (column < p.v_dim) out[column] = to_element<E>(x.x);
          if (column + 1 < p.v_dim) out[column + 1] = to_element<E>(x.y);
        }
        if (p.has_lse && warp < C.groups() && lane % 4 == 0) {
          const float sum = a.normalisers[first_row + i];
          *p.lse.row<float>(s.tensor_batch, head, s.q_begin + i) =
              sum == 0 ? core::kMinusInfinity<float> : a.maxima[first_row + i] + logf(sum);
        }
      }
    }
  }

  const Arguments& a;
  const core::Problem& p;
  unsigned char* const shared;
  Options& options;
  const int sequence, head, q_length;
  const int lane, warp, group;  // group: which 16 rows of a tile are this warp's
  const int kv_head;
  const std::int64_t first_row;  // of this head, in the statistics and sums
  unsigned char *const keys, *const values;
  unsigned char* const scores;  // where P of this warp's rows passes through
};

template <typename Used>
__global__ void __launch_bounds__(Used::value.threads(), 1)
    flash1_forward_kernel(const __grid_constant__ Arguments arguments) {
  TESSERA_DYNAMIC_SHARED(unsigned char, 1024, shared);
  Forward<Used::value>(arguments, shared).run();
}

template <ForwardConfig C>
constexpr Instance forward_instance() {
  using Shared = ForwardShared<C>;
  return {
      flash1_forward_kernel<Use<C>>, C.head_dim, C.block_q(), C.step_k, C.threads(), C.splits, Shared::kKeys,
      Shared::kBytesPerKey};
}

}  // namespace tessera::cuda::flash1
