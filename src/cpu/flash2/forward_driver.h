// The forward schedule of cpu.flash2, the same for every engine: a task is a few tiles of queries
// of one head, and a worker keeps K and V of the head for the tasks of the same head that follow.
//
// Ops is what an engine does for one element type:
//
//   struct Memory                 of a worker; Memory(Arena&, p, plan) takes it
//   static tile_rows()            queries per tile
//   Ops(p, plan, memory)
//   load_keys(head, cached)       K and V of the head; `cached`: the memory has their copies
//   run_tile(head, rows, block_k, skip_zeros)
//                                 writes out and LSE of a tile; returns whether the output is
//                                 finite
//
// A non-finite output is computed again: a NaN or an infinity among the values may have reached a
// row that does not see it, as 0 * NaN. With `skip_zeros` products skip the terms in which P is 0.
//
// Nothing here is compiled for an instruction set: the calls into Ops are too rare to matter.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/base/float16.h"
#include "core/tiling.h"
#include "cpu/flash2/forward_plan.h"
#include "cpu/head_view.h"
#include "cpu/machine/arena.h"

namespace tessera::cpu {

template <typename Ops>
struct ForwardDriver {
  // The memory of a worker.
  struct Memory {
    std::int64_t* cached_head_plus_1;  // the head whose K and V the memory has; first, for it must start as 0
    typename Ops::Memory ops;

    Memory(Arena& arena, const core::Problem& p, const ForwardPlan& plan)
        : cached_head_plus_1(arena.take<std::int64_t>(1)), ops(arena, p, plan) {}
  };

  static std::size_t worker_bytes(const core::Problem& p, const ForwardPlan& plan) {
    Arena arena;
    const Memory counted(arena, p, plan);
    return arena.used();
  }

  static void run_task(const core::Problem& p, const ForwardPlan& plan, std::int64_t task, std::byte* bytes) {
    Arena arena(bytes);
    const Memory memory(arena, p, plan);
    const ForwardTask own = task_of(plan, p.batch * p.q_heads, task);
    const HeadView head(p, own.head / p.q_heads, own.head % p.q_heads);
    const std::int64_t kv_head_plus_1 = head.s.index * p.kv_heads + head.kv_head + 1;
    Ops ops(p, plan, memory.ops);
    ops.load_keys(head, *memory.cached_head_plus_1 == kv_head_plus_1);
    *memory.cached_head_plus_1 = kv_head_plus_1;
    const core::Tiling tiling{head.s.q_length, plan.tile_rows, p.blocks ? p.blocks.block_q : 0};
    const std::int64_t block_k = plan.keys_per_step(head.s.k_length);
    for (std::int64_t t = own.first_tile; t < std::min(own.end_tile, tiling.count()); ++t) {
      if (!ops.run_tile(head, tiling[t], block_k, false)) ops.run_tile(head, tiling[t], block_k, true);
    }
  }
};

// An engine's table, from its Ops for each element type.
template <template <typename> class OpsOf>
constexpr ForwardOps forward_ops() {
  return {.tile_rows =
              [](DType dtype) {
                return core::with_type(dtype, []<typename T>() { return OpsOf<T>::tile_rows(); });
              },
          .worker_bytes =
              [](const core::Problem& p, const ForwardPlan& plan) {
                return core::with_type(
                    p.dtype, [&]<typename T>() { return ForwardDriver<OpsOf<T>>::worker_bytes(p, plan); });
              },
          .run_task =
              [](const core::Problem& p, const ForwardPlan& plan, std::int64_t task, std::byte* memory) {
                core::with_type(
                    p.dtype, [&]<typename T>() { ForwardDriver<OpsOf<T>>::run_task(p, plan, task, memory); });
              }};
}

}  // namespace tessera::cpu
