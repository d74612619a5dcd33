// cpu.flash2, forward, for every vector instruction set: rows of queries in the lanes.
//
//   S^T = K Q^T            scalars of K broadcast against vectors of rows; maximum in the epilogue
//   P^T = exp(S^T - max)   lane by lane: no horizontal reduction anywhere
//   O^T += V^T P^T         scalars of V broadcast
//
// A task is a few tiles of queries of one head. Q is transposed once per tile, scaled; O is
// transposed back once. K and V are read where they lie when their rows are contiguous accumulators; otherwise
// a worker copies the head's K and V once (4 KiB row strides alias in the caches, 16-bit elements are
// converted), and keeps them for the tasks of the same head that follow.
//
// Per tile of queries, over the keys they see:  issue_qk -> finish_scores (only if needed) -> online_softmax ->
// apply_dropout -> issue_pv (with rescale).  Masked squares around the diagonal are taken one vector of rows at
// a time, so that only a triangle of one vector is wasted.
//
// Traffic: Q and O once; K and V once per tile of queries, from the cache where a head fits. Memory per worker:
// the tiles, and at most one copy of a head's K and V.
//
// Included once per target.
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "cpu/flash2/forward_plan.h"
#include "cpu/flash2/vector/forward_tile-inl.h"
#include "cpu/head.h"
#include "cpu/machine/arena.h"
#include "cpu/machine/parallel_for.h"

// clang-format off
#if defined(TESSERA_CPU_SIMD_FLASH2_FORWARD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_SIMD_FLASH2_FORWARD_INL_H
#undef TESSERA_CPU_SIMD_FLASH2_FORWARD_INL_H
#else
#define TESSERA_CPU_SIMD_FLASH2_FORWARD_INL_H
#endif
// clang-format on

#if HWY_TARGET != HWY_SCALAR  // the portable kernel serves there
HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

// The memory of one worker.
template <typename A>
struct ForwardScratch {
  std::int64_t* held;  // which head k and v hold, counted from 1; first, for it must start as 0
  ForwardMemory<A> tile;
  QueryState<A> state;
  A* k;  // k_length x d_qk, when copied; else null
  A* v;  // k_length x d_v, likewise

  ForwardScratch(Arena& arena, const core::Problem& p, const ForwardPlan& plan)
      : held(arena.take<std::int64_t>(1)),
        tile(arena, p, plan.block_k),
        state(arena, p),
        k(plan.copy_k ? arena.take<A>(p.k_length * p.qk_dim) : nullptr),
        v(plan.copy_v ? arena.take<A>(p.k_length * p.v_dim) : nullptr) {}
};

// Fills out and LSE of one tile of queries. Returns false when the output is not finite: a NaN or infinity among
// the values may then have reached a row that does not see it, as 0 * NaN; `careful` keeps to what each row sees.
template <typename T, typename A = core::Accumulator<T>>
bool forward_tile(const Head& head, const core::Tile& rows, const KeyBlock<A>& keys,
                  const ForwardScratch<A>& scratch, std::int64_t block_k, bool careful) {
  QueryTile<A> tile(head, rows, scratch.tile, scratch.state);
  tile.template load_queries<T>();
  tile.template ask_ahead<T>();
  tile.clear();
  core::for_each_key_tile(head.p, head.s, head.q_head, rows.begin, rows.end, block_k,
                          [&](const core::Tile& part) HWY_ATTR { tile.visit(part, keys, careful); });
  return tile.template finalize<T>(false);
}

template <typename T>
void forward_task(const core::Problem& p, const ForwardPlan& plan, std::int64_t task, std::byte* memory) {
  using A = core::Accumulator<T>;
  Arena arena(memory);
  const ForwardScratch<A> scratch(arena, p, plan);
  const ForwardTask own = task_of(plan, p.batch * p.q_heads, task);
  const Head head(p, own.head / p.q_heads, own.head % p.q_heads);
  const std::int64_t kv_index = head.s.index * p.kv_heads + head.kv_head;
  const KeyBlock<A> keys =
      key_block<T>(head, core::Tile{0, head.s.k_length}, scratch.k, scratch.v, *scratch.held == kv_index + 1);
  *scratch.held = kv_index + 1;

  const core::Tiling tiling{head.s.q_length, query_rows<A>(), p.blocks ? p.blocks.block_q : 0};
  for (std::int64_t t = own.first_tile; t < std::min(own.end_tile, tiling.count()); ++t) {
    auto run = [&](bool careful) HWY_ATTR {
      return forward_tile<T>(head, tiling[t], keys, scratch, plan.keys_per_step(head.s.k_length), careful);
    };
    if (!run(false)) run(true);
  }
}

void run_forward_task(const core::Problem& p, const ForwardPlan& plan, std::int64_t task, std::byte* memory) {
  core::with_type(p.dtype, [&]<typename T>() HWY_ATTR { forward_task<T>(p, plan, task, memory); });
}

std::int64_t forward_tile_rows(bool fp64) { return fp64 ? query_rows<double>() : query_rows<float>(); }

std::size_t forward_worker_bytes(const core::Problem& p, const ForwardPlan& plan) {
  Arena arena;
  if (p.dtype == DType::fp64) {
    ForwardScratch<double>(arena, p, plan);
  } else {
    ForwardScratch<float>(arena, p, plan);
  }
  return arena.used();
}

inline constexpr ForwardEngine kForwardEngine{forward_tile_rows, forward_worker_bytes, run_forward_task};

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target include guard
