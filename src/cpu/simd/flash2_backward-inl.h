// cpu.flash2, backward, for every vector instruction set: the five products of a tile from natural layouts.
//
//   S^T = K Q^T,  dP^T = V dO^T          rows of queries in lanes, scalars of K and V broadcast
//   P^T = exp(S^T - LSE),  dS^T = P^T o (dropout(dP^T) - delta)
//   dQ^T += K^T dS^T                     rows of queries in lanes
//   dV += P^T dO,  dK += dS^T Q          head_dim in lanes, scalars of P^T and dS^T broadcast
//
// so that only Q and dO are transposed, once per tile of queries, and dQ^T back. A task owns a range of keys of
// one key/value head: it keeps their dK and dV while it walks over the tiles of queries of every head of the
// group. Where heads do not suffice for all workers their keys are split: partial dQ are then summed in an order
// that is always the same (see BackwardPlan), and no result depends on the number of threads.
//
// Traffic: K, V, dK, dV of the range once per tile of queries, from the cache where they fit; Q, dO, O, dQ once
// per split. Memory per worker: the tiles, dK and dV of a range, and copies of its K and V where their rows are
// not contiguous accumulators.
//
// Included once per target.
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cpu/arena.h"
#include "cpu/head.h"
#include "cpu/simd/flash2_backward.h"
#include "cpu/simd/gradient_tile-inl.h"
#include "cpu/simd/reduce-inl.h"

// clang-format off
#if defined(TESSERA_CPU_SIMD_FLASH2_BACKWARD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_SIMD_FLASH2_BACKWARD_INL_H
#undef TESSERA_CPU_SIMD_FLASH2_BACKWARD_INL_H
#else
#define TESSERA_CPU_SIMD_FLASH2_BACKWARD_INL_H
#endif
// clang-format on

#if HWY_TARGET != HWY_SCALAR  // the portable kernel serves there
HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

// The memory of one worker.
template <typename A>
struct BackwardScratch {
  GradientMemory<A> tile;
  A* grad_q_t;         // d_qk x tile rows, for every level of the tree of sums
  A *k, *v;            // the range of keys, when copied; else null
  A *grad_k, *grad_v;  // the range of keys x whole vectors of head_dim

  BackwardScratch(Arena& arena, const core::Problem& p, const BackwardPlan& plan)
      : tile(arena, p, plan.block_k) {
    const std::int64_t keys = task_of(plan, p.batch * p.kv_heads, 0).range(plan, p.k_length).end;
    grad_q_t = arena.take<A>(tree_levels(plan.chunks) * p.qk_dim * gradient_tile_rows<A>());
    k = plan.copy_k ? arena.take<A>(keys * p.qk_dim) : nullptr;
    v = plan.copy_v ? arena.take<A>(keys * p.v_dim) : nullptr;
    grad_k = arena.take<A>(keys * whole_vectors<A>(p.qk_dim));
    grad_v = arena.take<A>(keys * whole_vectors<A>(p.v_dim));
  }
};

// One tile of queries against the task's keys: adds to dK and dV. Returns rows of dQ without gaps, not yet
// scaled.
template <typename T, typename A = core::Accumulator<T>>
const A* backward_tile(const Head& head, const core::Tile& rows, const KeyBlock<A>& keys,
                       const BackwardScratch<A>& t, const BackwardPlan& plan, const BackwardTask& own) {
  const core::Problem& p = head.p;
  GradientTile<A> tile(head, rows, keys, t.tile);
  tile.template load_queries<T>();
  const std::int64_t size = p.qk_dim * tile.width();
  auto visit = [&](std::int64_t first_key, A* grad_q_t) HWY_ATTR {
    bool visited = false;
    const core::Tile chunk{first_key, std::min(first_key + plan.chunk_keys, head.s.k_length)};
    if (chunk.begin >= chunk.end) return visited;
    core::for_each_key_tile_within(p, head.s, head.q_head, rows.begin, rows.end, chunk, plan.block_k,
                                   [&](const core::Tile& part) HWY_ATTR {
                                     if (!visited) std::fill_n(grad_q_t, size, A{0});
                                     visited = true;
                                     tile.recompute(part, false);
                                     tile.issue_dq(part, grad_q_t);
                                     tile.issue_dkv(part, t.grad_k, t.grad_v);
                                   });
    return visited;
  };
  if (!sum_chunks(own.first_key, own.chunks, plan.chunk_keys, size, t.grad_q_t, visit)) {
    std::fill_n(t.grad_q_t, size, A{0});
  }
  transpose(t.grad_q_t, tile.width(), p.qk_dim, tile.width(), t.tile.q,
            p.qk_dim);  // q is not needed any more
  return t.tile.q;
}

template <typename T>
void backward_task(const core::Problem& p, const BackwardPlan& plan, std::int64_t task, std::byte* memory,
                   void* partial) {
  using A = core::Accumulator<T>;
  Arena arena(memory);
  const BackwardScratch<A> t(arena, p, plan);
  const BackwardTask own = task_of(plan, p.batch * p.kv_heads, task);
  const std::int64_t first_head = own.head % p.kv_heads * p.group();
  const Head owner(p, own.head / p.kv_heads, first_head);
  KeyBlock<A> range = key_block<T>(owner, own.range(plan, owner.s.k_length), t.k, t.v);
  range.finite = all_finite(range, p);
  const std::int64_t keys = range.keys.end - range.keys.begin;
  const std::int64_t q_row = whole_vectors<A>(p.qk_dim), out_row = whole_vectors<A>(p.v_dim);
  std::memset(t.grad_k, 0, static_cast<std::size_t>(keys * q_row) * sizeof(A));
  std::memset(t.grad_v, 0, static_cast<std::size_t>(keys * out_row) * sizeof(A));

  const core::Tiling tiling{owner.s.q_length, gradient_tile_rows<A>(), p.blocks ? p.blocks.block_q : 0};
  const std::int64_t tiles = tiling.count();
  for (std::int64_t h = first_head; h < first_head + p.group(); ++h) {
    const Head head(p, owner.s.index, h);
    for (std::int64_t i = 0; i < tiles; ++i) {
      const core::Tile rows = tiling[i];
      const A* computed = backward_tile<T>(head, rows, range, t, plan, own);
      if (!p.has_grad_q) continue;
      auto grad_q = [&](std::int64_t r) HWY_ATTR { return head.query_row<T>(p.grad_q, rows.begin + r); };
      auto partial_grad_q = [&](std::int64_t r) HWY_ATTR {
        return static_cast<A*>(partial) +
               partial_row(p, plan, own.head, own.split, h - first_head, rows.begin + r);
      };
      const std::int64_t count = rows.end - rows.begin;
      if (own.splits == 1) {
        for_each_row(
            count, [&](std::int64_t r) HWY_ATTR { prefetch_row(grad_q(r), p.qk_dim); },
            [&](std::int64_t r) HWY_ATTR {
              store_row(computed + r * p.qk_dim, p.qk_dim, static_cast<A>(p.scale), grad_q(r));
            });
      } else {
        for (std::int64_t r = 0; r < count; ++r) {
          std::copy_n(computed + r * p.qk_dim, p.qk_dim, partial_grad_q(r));
        }
      }
    }
  }
  // q came scaled: dK needs no further factor.
  auto store = [&](const core::View& view, const A* from, std::int64_t row, std::int64_t dim) HWY_ATTR {
    auto to = [&](std::int64_t j) HWY_ATTR { return owner.key_row<T>(view, range.keys.begin + j); };
    for_each_row(
        keys, [&](std::int64_t j) HWY_ATTR { prefetch_row(to(j), dim); },
        [&](std::int64_t j) HWY_ATTR { store_row(from + j * row, dim, A{1}, to(j)); });
  };
  if (p.has_grad_k) store(p.grad_k, t.grad_k, q_row, p.qk_dim);
  if (p.has_grad_v) store(p.grad_v, t.grad_v, out_row, p.v_dim);
}

void run_backward_task(const core::Problem& p, const BackwardPlan& plan, std::int64_t task, std::byte* memory,
                       void* partial) {
  core::with_type(p.dtype, [&]<typename T>() HWY_ATTR { backward_task<T>(p, plan, task, memory, partial); });
}

std::int64_t backward_tile_rows(bool fp64) {
  return fp64 ? gradient_tile_rows<double>() : gradient_tile_rows<float>();
}

std::size_t backward_worker_bytes(const core::Problem& p, const BackwardPlan& plan) {
  Arena arena;
  if (p.dtype == DType::fp64) {
    BackwardScratch<double>(arena, p, plan);
  } else {
    BackwardScratch<float>(arena, p, plan);
  }
  return arena.used();
}

inline constexpr BackwardEngine kBackwardEngine{backward_tile_rows, backward_worker_bytes, run_backward_task,
                                                reduce_grad_q};

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target include guard
