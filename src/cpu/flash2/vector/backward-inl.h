// cpu.flash2, backward, for every vector instruction set: the five products of a tile from natural layouts.
//
//   S^T = K Q^T,  dP^T = V dO^T          rows of queries in lanes, scalars of K and V broadcast
//   P^T = exp(S^T - LSE),  dS^T = P^T o (dropout(dP^T) - delta)
//   dQ^T += K^T dS^T                     rows of queries in lanes
//   dV += P^T dO,  dK += dS^T Q          head_dim in lanes, scalars of P^T and dS^T broadcast
//
// so that only Q and dO are transposed, once per tile of queries, and dQ^T back. A task owns a range of keys of
// one key/value head: it keeps their dK and dV while it walks over the tiles of queries of every head of the
// group. Where heads do not suffice for all workers their keys are split: tiles of queries are then packed before,
// once for all splits, and partial dQ^T are summed after, in an order that is always the same (see BackwardPlan), so
// that no result depends on the number of threads. A tile that sees nothing of a range costs nothing there.
//
// Traffic: K, V, dK, dV of the range once per tile of queries, from the cache where they fit; Q, dO, O, dQ once, and
// of split heads packed Q and dO and partial dQ^T once per tile and split that see each other. Memory per worker: the
// tiles, dK and dV of a range, and copies of its K and V where their rows are not contiguous accumulators.
//
// Included once per target.
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cpu/flash2/backward_plan.h"
#include "cpu/flash2/vector/backward_tile-inl.h"
#include "cpu/flash2/vector/reduce-inl.h"
#include "cpu/head.h"
#include "cpu/machine/arena.h"

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
      : tile(arena, p, plan.block_k, plan.whole > 0 ? gradient_tile_rows<A>() : 0) {
    const TaskKeys largest = largest_task(p, plan);
    const std::int64_t keys = largest.range.end;
    grad_q_t = arena.take<A>(tree_levels(largest.chunks) * p.qk_dim * gradient_tile_rows<A>());
    k = plan.copy_k ? arena.take<A>(keys * p.qk_dim) : nullptr;
    v = plan.copy_v ? arena.take<A>(keys * p.v_dim) : nullptr;
    grad_k = arena.take<A>(keys * whole_vectors<A>(p.qk_dim));
    grad_v = arena.take<A>(keys * whole_vectors<A>(p.v_dim));
  }
};

// dQ^T (not yet scaled) of a tile of queries with respect to the task's keys, which some of them see, into `to`; the
// levels of the tree of sums lie at `spare`. Adds to dK and dV.
template <typename A>
void backward_tile(const Head& head, const core::Tile& rows, GradientTile<A>& tile,
                   const BackwardScratch<A>& t, const BackwardPlan& plan, const TaskKeys& own, A* to,
                   A* spare) {
  const core::Problem& p = head.p;
  const std::int64_t size = p.qk_dim * tile.width();
  auto visit = [&](std::int64_t first_key, A* grad_q_t) HWY_ATTR {
    bool visited = false;
    const core::Tile chunk{first_key, std::min(first_key + own.chunk_keys, head.s.k_length)};
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
  sum_chunks(own.range.begin, own.chunks, own.chunk_keys, size, to, spare, visit);
}

// A tile of a head that is not split: writes its dQ.
template <typename T, typename A = core::Accumulator<T>>
void whole_tile(const Head& head, const core::Tile& rows, const KeyBlock<A>& range,
                const BackwardScratch<A>& t, const BackwardPlan& plan, const TaskKeys& own) {
  const core::Problem& p = head.p;
  auto grad_q = [&](std::int64_t r) HWY_ATTR { return head.query_row<T>(p.grad_q, rows.begin + r); };
  const std::int64_t count = rows.end - rows.begin;
  if (!core::sees(p, head.s, head.q_head, rows.begin, rows.end, range.keys)) {
    for (std::int64_t r = 0; r < count && p.has_grad_q; ++r) std::fill_n(grad_q(r), p.qk_dim, T{});
    return;
  }
  GradientTile<A> tile(head, rows, range, t.tile);
  tile.template load_queries<T>();
  const std::int64_t size = p.qk_dim * tile.width();
  backward_tile<A>(head, rows, tile, t, plan, own, t.grad_q_t, t.grad_q_t + size);
  if (!p.has_grad_q) return;
  A* rows_of_dq = t.tile.q;  // q is not needed any more
  transpose(t.grad_q_t, tile.width(), p.qk_dim, tile.width(), rows_of_dq, p.qk_dim);
  for_each_row(
      count, [&](std::int64_t r) HWY_ATTR { prefetch_row(grad_q(r), p.qk_dim); },
      [&](std::int64_t r)
          HWY_ATTR { store_row(rows_of_dq + r * p.qk_dim, p.qk_dim, static_cast<A>(p.scale), grad_q(r)); });
}

// A tile of a split head, from its slot: leaves dQ^T in `grad_q`.
template <typename A>
void split_tile(const Head& head, const core::Tile& rows, const KeyBlock<A>& range,
                const BackwardScratch<A>& t, const BackwardPlan& plan, const TaskKeys& own,
                std::byte* queries, std::byte* grad_q) {
  const core::Problem& p = head.p;
  if (!core::sees(p, head.s, head.q_head, rows.begin, rows.end, range.keys)) return;
  Arena slot(queries);
  const GradientMemory<A> memory = t.tile.with(QueryMemory<A>(slot, p, plan.slot_rows));
  GradientTile<A> tile(head, rows, range, memory);
  tile.use_queries();
  A* to = p.has_grad_q ? reinterpret_cast<A*>(grad_q) : t.grad_q_t;
  A* spare = p.has_grad_q ? t.grad_q_t : t.grad_q_t + p.qk_dim * tile.width();
  backward_tile<A>(head, rows, tile, t, plan, own, to, spare);
}

template <typename T>
void backward_task(const core::Problem& p, const BackwardPlan& plan, std::int64_t task, std::byte* memory,
                   const SplitSlots& slots) {
  using A = core::Accumulator<T>;
  Arena arena(memory);
  const BackwardScratch<A> t(arena, p, plan);
  const BackwardTask own = task_of(plan, p.batch * p.kv_heads, task);
  const std::int64_t first_head = own.head % p.kv_heads * p.group();
  const Head owner(p, own.head / p.kv_heads, first_head);
  const TaskKeys own_keys = task_keys(plan, own.split, own.splits, owner.s.k_length);
  KeyBlock<A> range = key_block<T>(owner, own_keys.range, t.k, t.v);
  range.finite = all_finite(range, p);
  const std::int64_t keys = range.keys.end - range.keys.begin;
  const std::int64_t q_row = whole_vectors<A>(p.qk_dim), out_row = whole_vectors<A>(p.v_dim);
  std::memset(t.grad_k, 0, static_cast<std::size_t>(keys * q_row) * sizeof(A));
  std::memset(t.grad_v, 0, static_cast<std::size_t>(keys * out_row) * sizeof(A));

  const core::Tiling tiling = query_tiling(p, plan, owner.s.q_length);
  const std::int64_t first_slot = own.splits == 1 ? 0 : first_grad_q_slot(p, plan, own.split);
  for (std::int64_t g = 0; g < p.group(); ++g) {
    const Head head(p, owner.s.index, first_head + g);
    const std::int64_t query_head = (own.head - plan.whole) * p.group() + g;
    for (std::int64_t i = 0; i < tiling.count(); ++i) {
      if (own.splits == 1) {
        whole_tile<T>(head, tiling[i], range, t, plan, own_keys);
      } else {
        split_tile<A>(head, tiling[i], range, t, plan, own_keys, slots.queries_of(query_head, i),
                      slots.grad_q_of(query_head, first_slot + i));
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
                       const SplitSlots& slots) {
  core::with_type(p.dtype, [&]<typename T>() HWY_ATTR { backward_task<T>(p, plan, task, memory, slots); });
}

template <typename T>
void pack_query_tile(const core::Problem& p, const BackwardPlan& plan, std::int64_t query_head,
                     std::int64_t tile, const SplitSlots& slots) {
  using A = core::Accumulator<T>;
  const std::int64_t head_of_all = plan.whole * p.group() + query_head;
  const Head head(p, head_of_all / p.q_heads, head_of_all % p.q_heads);
  const core::Tiling tiling = query_tiling(p, plan, head.s.q_length);
  if (tile >= tiling.count()) return;  // a shorter one of packed sequences
  Arena counted, slot(slots.queries_of(query_head, tile));
  const GradientMemory<A> memory =
      GradientMemory<A>(counted, p, 0, 0).with(QueryMemory<A>(slot, p, plan.slot_rows));
  const KeyBlock<A> no_keys{{}, nullptr, 0, nullptr, 0, true};
  GradientTile<A>(head, tiling[tile], no_keys, memory).template load_queries<T>();
}

void pack_queries(const core::Problem& p, const BackwardPlan& plan, std::int64_t query_head,
                  std::int64_t tile, const SplitSlots& slots) {
  core::with_type(p.dtype,
                  [&]<typename T>() HWY_ATTR { pack_query_tile<T>(p, plan, query_head, tile, slots); });
}

std::int64_t backward_tile_rows(bool fp64) {
  return fp64 ? gradient_tile_rows<double>() : gradient_tile_rows<float>();
}

template <typename A>
std::size_t backward_worker_bytes_of(const core::Problem& p, const BackwardPlan& plan) {
  Arena tasks, sums;
  const BackwardScratch<A> scratch(tasks, p, plan);
  const ReduceScratch<A> reduce(sums, p, plan);
  return std::max(tasks.used(), sums.used());
}

std::size_t backward_worker_bytes(const core::Problem& p, const BackwardPlan& plan) {
  return p.dtype == DType::fp64 ? backward_worker_bytes_of<double>(p, plan)
                                : backward_worker_bytes_of<float>(p, plan);
}

template <typename A>
SplitSlots slot_sizes_of(const core::Problem& p, const BackwardPlan& plan) {
  Arena queries, grad_q;
  const QueryMemory<A> counted(queries, p, plan.slot_rows);
  grad_q.take<A>(p.qk_dim * plan.slot_rows);
  return {.query_bytes = queries.used(), .grad_q_bytes = grad_q.used()};
}

SplitSlots slot_sizes(const core::Problem& p, const BackwardPlan& plan) {
  return p.dtype == DType::fp64 ? slot_sizes_of<double>(p, plan) : slot_sizes_of<float>(p, plan);
}

inline constexpr BackwardEngine kBackwardEngine{backward_tile_rows, backward_worker_bytes, slot_sizes,
                                                pack_queries,       run_backward_task,     reduce_grad_q};

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target include guard
