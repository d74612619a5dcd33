// Attention backward in fp32, all gradients in one pass: 5 products. For plain problems on GPUs
// with enough shared memory.
//
// Schedule
//   A thread block owns 16 * groups keys with their values and streams the queries that see them,
//   32 a step:
//
//     S^T = K Q^T, dP^T = V dO^T;  P, dS     each warp its 16 keys; dS goes to shared memory
//     dV += P^T dO, dK += dS^T Q             P and dS are left operands as they lie in registers
//     barrier; the copies of the next Q and dO are issued
//     dQ = dS K                              each warp some columns, for all queries and keys
//     the next Q and dO are split into halves; barrier
//
//   At head_dim 256, dK and dV of 16 keys do not fit into the registers of a warp. Then two warps
//   share the keys (parts). Each computes the scores of half of the queries and the gradients of
//   half of the columns, and P also goes through shared memory:
//
//     scores; barrier; dV; barrier, the next dO is copied; dK; barrier, the next Q is copied; dQ
//
// Reproducibility
//   dQ is added by reductions in memory, which must be cleared before. Its last bits depend on the
//   order in which thread blocks run.
//
// Precision
//   Products are those of halves.cuh. dS is split twice, for dK and for dQ, because it meets rows
//   of Q and of K, whose powers of two are multiplied into it: with powers for each key and part of
//   the queries (dK), and for each query and 16 keys (dQ). A sum ends where the powers change.
//
// Traffic of a thread block
//   K, V, dK and dV once. Q and dO once, and dQ added once, per query and head of the group.
#pragma once

#include <cstdint>

#include "cuda/common/ptx/memory.cuh"
#include "cuda/common/ptx/shared_memory.cuh"
#include "cuda/fp32/backward_kernel.cuh"
#include "cuda/fp32/exchange.cuh"

namespace tessera::cuda::fp32 {

// Adds two neighbouring numbers to memory, at once where the GPU can.
__device__ __forceinline__ void add_to_memory(float* to, float x, float y) {
#if TESSERA_CUDA_ARCH >= 900
  ptx::add_two(to, x, y);
#else
  atomicAdd(to, x);
  atomicAdd(to + 1, y);
#endif
}

template <FusedConfig C>
struct FusedBackward : FusedExchange<C> {
  using Base = FusedExchange<C>;
  using Base::add_exchanged, Base::multiply_keys, Base::store_for_keys, Base::store_for_queries;
  using Base::k, Base::v, Base::q, Base::grad_out, Base::lse, Base::delta, Base::group, Base::part;
  using Base::kBlock, Base::kColumns, Base::kNTiles, Base::kQueries, Base::kQueryTiles, Base::kRows,
      Base::kSliceTiles, Base::kThreads;
  using typename Base::Scores, typename Base::Tile, typename Base::Totals;

  // The source of a head's queries. In shared memory, because registers are scarce.
  struct Queries {
    RowSource32 q, grad_out;
    const float *lse, *delta;
    std::int64_t lse_stride;
    int limit;
  };

  const BackwardArguments& arguments;
  const core::Problem& p;
  Queries& from;
  int own;  // this group's first key
  Totals key_gradient = {}, value_gradient = {};

  using Walk = QueryWalk;
  struct Step {
    int begin;
    Visible visible;
  };
  static __device__ __forceinline__ Step step_of(const Walk& walk, const Diagonals& band) {
    return {walk.begin(), {band, walk.first(), walk.last()}};
  }
  static __device__ __forceinline__ bool all_visible(const Step& step, int key, int keys) {
    const int end = step.begin + kBlock;
    return step.visible.first == step.begin && step.visible.last == end &&
           all_in_band(step.visible.band, step.begin, end, key, key + keys);
  }
  static __device__ __forceinline__ bool none_visible(const Step& step, int key) {
    return none_in_band(step.visible.band, step.begin, step.begin + kBlock, key, key + 16);
  }

  __device__ __forceinline__ void load_grad_out(int query) const {
    load_rows<C.head_dim, kBlock, kThreads, true, false>(grad_out(), from.grad_out, query, from.limit);
  }
  __device__ __forceinline__ void load_queries(int query) const {
    load_rows<C.head_dim, kBlock, kThreads, true, false>(q(), from.q, query, from.limit);
    const int row = query + static_cast<int>(threadIdx.x % kBlock);
    const bool inside = static_cast<unsigned>(row) < static_cast<unsigned>(from.limit);
    const std::uint32_t to = threadIdx.x % kBlock * 4;
    if (threadIdx.x < kBlock) {
      ptx::copy_async_word(lse() + to, from.lse + row * from.lse_stride, inside);
    } else if (threadIdx.x < 2 * kBlock) {
      ptx::copy_async_word(delta() + to, from.delta + row, inside);
    }
    ptx::commit_copies();
  }
  // Waits for the queries of a step and publishes them. Returns whether they hold a non-finite
  // value that some key may not see.
  __device__ __forceinline__ bool receive(const Step& step, int begin) const {
    const bool partial = !all_visible(step, begin, kRows);
    ptx::wait_copies<0>();
    bool found = prepare_rows<Multiply::halves, kBlock, kThreads>(q(), partial);
    if (prepare_rows<Multiply::halves, kBlock, kThreads>(grad_out(), partial)) found = true;
    if (partial) return __syncthreads_or(found);
    __syncthreads();
    return false;
  }

  // Turns `x` into P and `y` into dS, for this warp's keys and queries.
  __device__ __forceinline__ void scores(Scores& x, Scores& y, const Step& step) const {
    const int lane = lane_index();
    auto of_warp = [&](Tile tile) -> Tile {
      return {tile.base + part * kQueries * Tile::kRowBytes, tile.factors + part * kQueries * 4};
    };
    multiply_split_rows(x, k(), 16 * group, of_warp(q()), lines_of(p.qk_dim), lane);
    multiply_split_rows(y, v(), 16 * group, of_warp(grad_out()), lines_of(p.v_dim), lane);
#pragma unroll
    for (int n = 0; n < kNTiles; ++n) {
      const int column = part * kQueries + 8 * n + lane % 4 * 2;
      const float2 column_lse = load_float2(lse() + column * 4);
      const float2 column_delta = load_float2(delta() + column * 4);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float reference = usable_lse(e % 2 == 0 ? column_lse.x : column_lse.y);
        x[0][n][e] = exp_difference(x[0][n][e] * arguments.constants.scale, reference);
        y[0][n][e] = x[0][n][e] * (y[0][n][e] - (e % 2 == 0 ? column_delta.x : column_delta.y));
      }
    }
    if (all_visible(step, own, 16)) return;
#pragma unroll
    for (int n = 0; n < kNTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = own + lane / 4 + e / 2 * 8;
        const int query = step.begin + part * kQueries + 8 * n + lane % 4 * 2 + e % 2;
        if (!step.visible.query(query, key)) x[0][n][e] = y[0][n][e] = 0;
      }
    }
  }

  // dQ of the step: this warp's queries and columns, over all keys.
  __device__ __forceinline__ void add_query_gradient(const Step& step, int head, int begin) const {
    const int lane = lane_index(), first_column = Base::slice() * kSliceTiles * 8;
    if (first_column >= p.qk_dim) return;
    typename Base::QuerySums sum;
    multiply_keys(sum, [&](int keys) { return none_visible(step, begin + 16 * keys); });
    const core::Sequence s = owned_tile(arguments).s;
#pragma unroll
    for (int i = 0; i < 2 * kQueryTiles; ++i) {
      const int query = step.begin + Base::first_query() + 16 * (i / 2) + lane / 4 + 8 * (i % 2);
      if (static_cast<unsigned>(query) >= static_cast<unsigned>(s.q_length)) continue;
      float* to = p.grad_q.row<float>(s.tensor_batch, head, s.q_begin + query);
#pragma unroll
      for (int n = 0; n < kSliceTiles; ++n) {
        const int column = first_column + 8 * n + lane % 4 * 2;
        const float x = sum[i / 2][n][i % 2 * 2] * arguments.constants.scale;
        const float y = sum[i / 2][n][i % 2 * 2 + 1] * arguments.constants.scale;
        if (column + 2 <= p.qk_dim) {
          add_to_memory(to + column, x, y);
        } else if (column < p.qk_dim) {
          atomicAdd(to + column, x);
        }
      }
    }
  }

  // Removes the non-finite values of the queries of a step. Its scores have been computed with
  // them, so dS carries them to the keys that see them; the gradient of values gets them here.
  __device__ __forceinline__ void clean(const Step& step) {
    add_non_finite<Multiply::halves, kBlock>(
        value_gradient, Tile{grad_out().base + part * kColumns * 4},
        [&](int row, int column) { return step.visible.query(step.begin + column, own + row); });
    __syncthreads();
    clean_rows<Multiply::halves, kBlock, kThreads>(grad_out());
    clean_rows<Multiply::halves, kBlock, kThreads>(q());
    __syncthreads();
  }

  // dV and dK of a step, by warps that have keys of their own.
  __device__ __forceinline__ void add_key_gradients(const Step& step, bool non_finite) {
    const bool works = !none_visible(step, own);
    Scores x, y;
    if (works) {
      scores(x, y, step);
      store_for_queries(y);
    }
    if (non_finite) {
      __syncthreads();
      clean(step);
    }
    if (!works) return;
    accumulate<Multiply::halves>(value_gradient, x, grad_out(), lines_of(p.v_dim));
    accumulate<Multiply::halves>(key_gradient, y, q(), lines_of(p.qk_dim));
  }

  // dV and dK of a step, by warps that share keys.
  template <typename Load>
  __device__ __forceinline__ void exchange_key_gradients(const Step& step, bool non_finite,
                                                         Load&& load_next_grad_out) {
    const bool works = !none_visible(step, own);
    if (works) {
      Scores x, y;
      scores(x, y, step);
      store_for_keys(x, Base::kProbabilities, grad_out().factors);
      store_for_keys(y, Base::kScoresForKeys, q().factors);
      store_for_queries(y);
    }
    __syncthreads();
    if (non_finite) clean(step);
    if (works) add_exchanged(value_gradient, Base::kProbabilities, grad_out(), lines_of(p.v_dim));
    __syncthreads();  // no thread reads dO any more
    load_next_grad_out();
    if (works) add_exchanged(key_gradient, Base::kScoresForKeys, q(), lines_of(p.qk_dim));
  }

  static __device__ __forceinline__ OwnedTile owned_tile(const BackwardArguments& a) {
    const core::Problem& p = a.problem;
    const core::BasicTask<std::uint32_t> task = a.order[ptx::block_index()];
    const core::Sequence s = core::sequence(p, task.sequence);
    const core::Interval tile = core::Tiling{s.k_length, kRows, p.blocks ? p.blocks.block_k : 0}[task.tile];
    return {s, static_cast<int>(task.head), static_cast<int>(tile.begin), static_cast<int>(tile.end)};
  }

  // Whether the keys hold a non-finite value.
  __device__ __forceinline__ bool load_keys() const {
    const auto [s, head, begin, end] = owned_tile(arguments);
    load_rows<C.head_dim, kRows, kThreads, true, false>(
        k(), rows_of(p.k, s.tensor_batch, head, s.k_begin, p.qk_dim, true), begin, end);
    ptx::commit_copies();
    ptx::wait_copies<0>();
    return __syncthreads_or(prepare_rows<Multiply::halves, kRows, kThreads>(k(), true));
  }

  __device__ __forceinline__ void run_head(int head, bool non_finite_keys) {
    const auto [s, kv_head, begin, end] = owned_tile(arguments);
    if (threadIdx.x == 0) {
      from.q = rows_of(p.q, s.tensor_batch, head, s.q_begin, p.qk_dim, true);
      from.grad_out = rows_of(p.grad_out, s.tensor_batch, head, s.q_begin, p.v_dim, true);
      from.lse = p.lse.row<const float>(s.tensor_batch, head, s.q_begin);
      from.delta = arguments.delta + delta_offset(p, s, head);
      from.lse_stride = p.lse.row_stride;
      from.limit = static_cast<int>(s.q_length);
    }
    __syncthreads();
    const Diagonals band = diagonals(s.band);
    Walk walk = query_walk(p, s, head, begin, end, kBlock);
    if (walk.done()) return;
    load_grad_out(walk.begin());
    load_queries(walk.begin());
    bool non_finite = receive(step_of(walk, band), begin);
    while (true) {
      const Step step = step_of(walk, band);
      walk.next();
      auto load_next_grad_out = [&] {
        if (!walk.done()) load_grad_out(walk.begin());
      };
      if constexpr (C.parts == 1) {
        add_key_gradients(step, non_finite);
        __syncthreads();  // dS is complete, and no thread reads Q and dO any more
        load_next_grad_out();
      } else {
        exchange_key_gradients(step, non_finite, load_next_grad_out);
        __syncthreads();  // no thread reads Q any more
      }
      if (!walk.done()) load_queries(walk.begin());
      if (non_finite_keys) {  // dS carries their non-finite values to the queries that see them
        clean_rows<Multiply::halves, kRows, kThreads>(k());
        __syncthreads();
      }
      add_query_gradient(step, head, begin);
      if (non_finite_keys) {
        __syncthreads();
        load_keys();
      }
      if (walk.done()) break;
      non_finite = receive(step_of(walk, band), begin);
    }
  }

  __device__ __forceinline__ void run() {
    const auto [s, head, begin, end] = owned_tile(arguments);
    if (begin >= end) return;
    own = begin + 16 * group;
    load_rows<C.head_dim, kRows, kThreads, true, false>(
        v(), rows_of(p.v, s.tensor_batch, head, s.k_begin, p.v_dim, true), begin, end);
    const bool non_finite_keys = load_keys();
    prepare_rows<Multiply::halves, kRows, kThreads>(v(), false);
    const int group_size =
        static_cast<int>(static_cast<unsigned>(p.q_heads) / static_cast<unsigned>(p.kv_heads));
#pragma unroll 1
    for (int member = 0; member < group_size; ++member) {
      if (member > 0) __syncthreads();  // no thread reads the last head's steps any more
      run_head(head * group_size + member, non_finite_keys);
    }
    finalize();
  }

  __device__ __forceinline__ void finalize() const {
    const OwnedTile tile = owned_tile(arguments);
    auto store = [&](const Totals& gradient, const core::View& to, float scale, std::int64_t columns) {
      const float factor[2] = {scale, scale};
      store_rows<Multiply::halves>(
          gradient, 0, factor, static_cast<int>(columns) - part * kColumns, true, [&](int h) -> float* {
            const int row = own + lane_index() / 4 + 8 * h;
            if (row >= tile.end) return nullptr;
            return to.row<float>(tile.s.tensor_batch, tile.head, tile.s.k_begin + row) + part * kColumns;
          });
    };
    store(value_gradient, p.grad_v, 1.0F, p.v_dim);
    store(key_gradient, p.grad_k, arguments.constants.scale, p.qk_dim);
  }
};

template <typename Config>
__global__ void __launch_bounds__(Config::value.threads(), 1)
    fused_backward_kernel(const __grid_constant__ BackwardArguments a) {
  constexpr FusedConfig C = Config::value;
  if constexpr (ptx::kBefore90 && C.shared_memory() > kSharedMemoryBefore90) {
    __trap();  // the host does not choose this instance for such a GPU
    return;
  }
  using Queries = typename FusedBackward<C>::Queries;
  FusedBackward<C> backward{
      {ptx::dynamic_shared_address<128>(), warp_index() / C.parts, warp_index() % C.parts},
      a,
      a.problem,
      ptx::static_shared<Queries, Config, 16>()};
  backward.run();
}

}  // namespace tessera::cuda::fp32
