// The backward schedule of cpu.flash2, the same for every engine.
//
// A task owns a range of keys of one key/value head: it keeps their dK and dV while it goes over
// the tiles of queries of every head of the group. Where heads do not suffice for all workers their
// keys are split: tiles of queries are then packed before, once for all splits, and partial dQ are
// summed after. A dQ is always the same tree of sums over chunks of keys (backward_plan.h), so no
// result depends on the number of threads. A tile that sees nothing of a range costs nothing there.
//
// Ops is what an engine does for one element type. Its layout of dQ is its own; the driver adds and
// moves it as grad_q_size accumulators.
//
//   using Accumulator
//   struct Memory                        of a worker, without dQ; Memory(Arena&, p, plan) takes it
//   static tile_rows()                   queries per tile
//   static take_queries(arena, p, rows)  takes the slot of a packed tile of so many rows
//   static grad_q_size(p, rows)          accumulators of dQ of so many rows, in whole vectors
//   static pack(head, rows, slot, plan)  packs a tile of queries into a slot
//   static add(from, count, to)          to += from
//   Ops(p, plan, memory)
//   load_keys(owner, keys)               K and V of the task; dK = dV = 0
//   store_grad_kv(owner)                 writes dK and dV
//   class Tile                           a tile of queries that meets the task's keys:
//     Tile(ops, head, rows)              packs it in the worker's memory
//     Tile(ops, head, rows, slot)        uses what was packed before
//     grad_q_size()
//     step(keys, grad_q, first)          P and dS; adds to dK, dV and dQ, which the first step sets
//     store_grad_q(grad_q)               writes dQ
// and for partial sums
//   static part_of(p, tile_rows, first, count)
//                                        where rows [first, first + count) of a tile lie in its dQ
//   static add_lines(a, b, part, to)     to = a + b, without gaps
//   static store_part(head, first_row, count, sum, memory)
//                                        writes dQ of rows; a null sum is 0
//
// Nothing here is compiled for an instruction set: the calls into Ops are too rare to matter.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/base/float16.h"
#include "core/visibility.h"
#include "cpu/flash2/backward_plan.h"
#include "cpu/head_view.h"
#include "cpu/machine/arena.h"

namespace tessera::cpu {

// Some rows of a tile's dQ in memory: lines of `width` accumulators, `stride` apart.
struct GradQPart {
  std::int64_t offset = 0;  // from the tile's first accumulator
  std::int64_t lines = 0;
  std::int64_t width = 0;
  std::int64_t stride = 0;
};

// Lines of a sum; null: nothing was visible, the sum is 0.
template <typename A>
struct GradQLines {
  const A* data = nullptr;
  std::int64_t stride = 0;
};

template <typename Ops>
class BackwardDriver {
  using A = typename Ops::Accumulator;

 public:
  static std::size_t worker_bytes(const core::Problem& p, const BackwardPlan& plan) {
    Arena tasks, sums;
    const TaskMemory task_memory(tasks, p, plan);
    const ReduceMemory reduce_memory(sums, p, plan);
    return std::max(tasks.used(), sums.used());
  }

  static SplitSlots slot_sizes(const core::Problem& p, const BackwardPlan& plan) {
    Arena queries, grad_q;
    Ops::take_queries(queries, p, plan.slot_rows);
    grad_q.take<A>(Ops::grad_q_size(p, plan.slot_rows));
    return {.query_bytes = queries.used(), .grad_q_bytes = grad_q.used()};
  }

  static void pack_queries(const core::Problem& p, const BackwardPlan& plan, std::int64_t query_head,
                           std::int64_t tile, const SplitSlots& slots) {
    const HeadView head = split_head(p, plan, query_head);
    const core::Tiling tiling = query_tiling(p, plan, head.s.q_length);
    if (tile >= tiling.count()) return;  // a shorter one of packed sequences
    Ops::pack(head, tiling[tile], slots.queries_of(query_head, tile), plan);
  }

  static void run_task(const core::Problem& p, const BackwardPlan& plan, std::int64_t task, std::byte* bytes,
                       const SplitSlots& slots) {
    Arena arena(bytes);
    const TaskMemory memory(arena, p, plan);
    const BackwardTask own = task_of(plan, p.batch * p.kv_heads, task);
    const std::int64_t first_head = own.head % p.kv_heads * p.group();
    const HeadView owner(p, own.head / p.kv_heads, first_head);
    const TaskKeys keys = task_keys(plan, own.split, own.splits, owner.s.k_length);
    Ops ops(p, plan, memory.ops);
    ops.load_keys(owner, keys);
    const core::Tiling tiling = query_tiling(p, plan, owner.s.q_length);
    const std::int64_t first_slot = own.splits == 1 ? 0 : first_grad_q_slot(p, plan, own.split);
    for (std::int64_t g = 0; g < p.group(); ++g) {
      const HeadView head(p, owner.s.index, first_head + g);
      const std::int64_t query_head = (own.head - plan.unsplit_heads) * p.group() + g;
      for (std::int64_t i = 0; i < tiling.count(); ++i) {
        const Step step{p, plan, head, tiling[i], keys, memory.grad_q};
        if (own.splits == 1) {
          step.whole(ops);
        } else {
          step.split(ops, slots.queries_of(query_head, i), slots.grad_q_of(query_head, first_slot + i));
        }
      }
    }
    ops.store_grad_kv(owner);
  }

  static void reduce(const core::Problem& p, const BackwardPlan& plan, std::int64_t query_head,
                     std::int64_t tile, std::int64_t part, std::byte* bytes, const SplitSlots& slots) {
    const HeadView head = split_head(p, plan, query_head);
    const core::Tiling tiling = query_tiling(p, plan, head.s.q_length);
    if (tile >= tiling.count()) return;  // a shorter one of packed sequences
    const core::Interval rows = tiling[tile];
    const std::int64_t part_rows = plan.tile_rows / kReduceParts, first = part * part_rows;
    const std::int64_t count = std::min(part_rows, rows.length() - first);
    if (count <= 0) return;
    const GradQPart layout = Ops::part_of(p, rows.length(), first, count);
    const core::VisibleSpan span = core::visible_keys(p, head.s, head.q_head, rows);
    std::int64_t before = 0;  // slots of the splits before: partial_of is called in their order
    auto partial_of = [&](std::int64_t split) {
      const core::Interval tiles = visible_tiles(p, plan, split);
      const std::int64_t slot = before + tile - tiles.begin;
      before += tiles.length();
      const core::Interval keys = task_keys(plan, split, plan.splits_per_head, head.s.k_length).range;
      if (!core::any_visible(span, keys)) return GradQLines<A>{};
      const A* grad_q = reinterpret_cast<const A*>(slots.grad_q_of(query_head, slot));
      return GradQLines<A>{grad_q + layout.offset, layout.stride};
    };
    Arena arena(bytes);
    const ReduceMemory memory(arena, p, plan);
    const GradQLines<A> sum = sum_splits(0, plan.splits_per_head, layout, memory.sums, partial_of);
    Ops::store_part(head, rows.begin + first, count, sum, memory.rows);
  }

 private:
  struct TaskMemory {
    typename Ops::Memory ops;
    A* grad_q;  // of a tile, for every level of the tree of sums

    TaskMemory(Arena& arena, const core::Problem& p, const BackwardPlan& plan)
        : ops(arena, p, plan),
          grad_q(arena.take<A>(tree_levels(largest_task(p, plan).chunks) *
                               Ops::grad_q_size(p, Ops::tile_rows()))) {}
  };

  struct ReduceMemory {
    A* sums;  // a part of dQ, for every level of the tree
    A* rows;  // of a part x d_qk

    ReduceMemory(Arena& arena, const core::Problem& p, const BackwardPlan& plan) {
      const std::int64_t size = p.qk_dim * plan.tile_rows / kReduceParts;
      sums = arena.take<A>(tree_levels(plan.splits_per_head) * size);
      rows = arena.take<A>(size);
    }
  };

  static HeadView split_head(const core::Problem& p, const BackwardPlan& plan, std::int64_t query_head) {
    const std::int64_t head = plan.unsplit_heads * p.group() + query_head;
    return {p, head / p.q_heads, head % p.q_heads};
  }

  // One tile of queries against the keys of a task.
  struct Step {
    const core::Problem& p;
    const BackwardPlan& plan;
    const HeadView& head;
    core::Interval rows;
    const TaskKeys& keys;
    A* sums;  // of dQ: the levels of the tree

    // Of a head that is not split: writes dQ.
    void whole(Ops& ops) const {
      const core::VisibleSpan span = core::visible_keys(p, head.s, head.q_head, rows);
      if (!core::any_visible(span, keys.range)) {
        if (p.has_grad_q) clear_grad_q();
        return;
      }
      typename Ops::Tile tile(ops, head, rows);
      add_chunks(tile, span, sums, sums + tile.grad_q_size());
      if (p.has_grad_q) tile.store_grad_q(sums);
    }

    // Of a split head: leaves a partial dQ in `grad_q`.
    void split(Ops& ops, std::byte* queries, std::byte* grad_q) const {
      const core::VisibleSpan span = core::visible_keys(p, head.s, head.q_head, rows);
      if (!core::any_visible(span, keys.range)) return;
      typename Ops::Tile tile(ops, head, rows, queries);
      if (p.has_grad_q) {
        add_chunks(tile, span, reinterpret_cast<A*>(grad_q), sums);
      } else {
        add_chunks(tile, span, sums, sums + tile.grad_q_size());
      }
    }

    void clear_grad_q() const {
      core::with_type(p.dtype, [&]<typename T>() {
        for (std::int64_t i = rows.begin; i < rows.end; ++i) {
          std::fill_n(head.query_row<T>(p.grad_q, i), p.qk_dim, T{});
        }
      });
    }

    // dQ of the task's keys, some of which the tile sees, into `to`; the levels of the tree lie at
    // `spare`. dK and dV grow.
    template <typename Tile>
    void add_chunks(Tile& tile, const core::VisibleSpan& span, A* to, A* spare) const {
      auto visit = [&](std::int64_t first_key, A* grad_q) {
        bool visited = false;
        const core::Interval chunk{first_key, std::min(first_key + keys.chunk_keys, head.s.k_length)};
        if (chunk.empty()) return visited;
        core::for_each_tile(span, chunk, plan.block_k, [&](const core::TileRange& part) {
          tile.step(part, grad_q, !visited);
          visited = true;
        });
        return visited;
      };
      sum_chunks(keys.range.begin, keys.chunks, keys.chunk_keys, tile.grad_q_size(), to, spare, visit);
    }
  };

  // The sum over `chunks` chunks of `chunk_keys` keys as a binary tree, into `to`: `size`
  // accumulators; at `spare` is room for the levels below. visit(first_key, to) computes one chunk.
  // It returns false and writes nothing when no row sees the chunk, and so does this.
  template <typename Visit>
  static bool sum_chunks(std::int64_t first_key, std::int64_t chunks, std::int64_t chunk_keys,
                         std::int64_t size, A* to, A* spare, const Visit& visit) {
    if (chunks == 1) return visit(first_key, to);
    const std::int64_t half = chunks / 2, middle = first_key + half * chunk_keys;
    if (!sum_chunks(first_key, half, chunk_keys, size, to, spare, visit)) {
      return sum_chunks(middle, half, chunk_keys, size, to, spare, visit);
    }
    if (sum_chunks(middle, half, chunk_keys, size, spare, spare + size, visit)) Ops::add(spare, size, to);
    return true;
  }

  // The sum of `splits` partial dQ from `first` on, as the same tree as within a task: one of them
  // where it lies, or in `to`, behind which is room for more. partial_of(split) gives the part of
  // one.
  template <typename PartialOf>
  static GradQLines<A> sum_splits(std::int64_t first, std::int64_t splits, const GradQPart& part, A* to,
                                  const PartialOf& partial_of) {
    if (splits == 1) return partial_of(first);
    const std::int64_t half = splits / 2;
    const GradQLines<A> left = sum_splits(first, half, part, to, partial_of);
    A* free = left.data == to ? to + part.lines * part.width : to;
    const GradQLines<A> right = sum_splits(first + half, half, part, free, partial_of);
    if (left.data == nullptr) return right;
    if (right.data == nullptr) return left;
    Ops::add_lines(left, right, part, to);
    return {to, part.width};
  }
};

// An engine's table, from its Ops for each element type.
template <template <typename> class OpsOf>
constexpr BackwardOps backward_ops() {
  return {.tile_rows =
              [](DType dtype) {
                return core::with_type(dtype, []<typename T>() { return OpsOf<T>::tile_rows(); });
              },
          .worker_bytes =
              [](const core::Problem& p, const BackwardPlan& plan) {
                return core::with_type(
                    p.dtype, [&]<typename T>() { return BackwardDriver<OpsOf<T>>::worker_bytes(p, plan); });
              },
          .slot_sizes =
              [](const core::Problem& p, const BackwardPlan& plan) {
                return core::with_type(
                    p.dtype, [&]<typename T>() { return BackwardDriver<OpsOf<T>>::slot_sizes(p, plan); });
              },
          .pack_queries =
              [](const core::Problem& p, const BackwardPlan& plan, std::int64_t query_head, std::int64_t tile,
                 const SplitSlots& slots) {
                core::with_type(p.dtype, [&]<typename T>() {
                  BackwardDriver<OpsOf<T>>::pack_queries(p, plan, query_head, tile, slots);
                });
              },
          .run_task =
              [](const core::Problem& p, const BackwardPlan& plan, std::int64_t task, std::byte* memory,
                 const SplitSlots& slots) {
                core::with_type(p.dtype, [&]<typename T>() {
                  BackwardDriver<OpsOf<T>>::run_task(p, plan, task, memory, slots);
                });
              },
          .reduce =
              [](const core::Problem& p, const BackwardPlan& plan, std::int64_t query_head, std::int64_t tile,
                 std::int64_t part, std::byte* memory, const SplitSlots& slots) {
                core::with_type(p.dtype, [&]<typename T>() {
                  BackwardDriver<OpsOf<T>>::reduce(p, plan, query_head, tile, part, memory, slots);
                });
              }};
}

}  // namespace tessera::cpu
