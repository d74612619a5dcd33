// dQ as a tree of sums over chunks of keys: within a task, and over the partial dQ of several. Included once
// per target.
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "cpu/flash2/backward_plan.h"
#include "cpu/flash2/vector/vector-inl.h"
#include "cpu/head.h"
#include "cpu/machine/arena.h"

// clang-format off
#if defined(TESSERA_CPU_SIMD_REDUCE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_SIMD_REDUCE_INL_H
#undef TESSERA_CPU_SIMD_REDUCE_INL_H
#else
#define TESSERA_CPU_SIMD_REDUCE_INL_H
#endif
// clang-format on

#if HWY_TARGET != HWY_SCALAR  // the portable kernel serves there
HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

// to[0 .. count) += from[0 .. count)
template <typename A>
HWY_INLINE void add_to(const A* HWY_RESTRICT from, std::int64_t count, A* HWY_RESTRICT to) {
  const Tag<A> d;
  std::int64_t c = 0;
  for (; c + lanes<A>() <= count; c += lanes<A>()) {
    hn::StoreU(hn::Add(hn::LoadU(d, to + c), hn::LoadU(d, from + c)), d, to + c);
  }
  for (; c < count; ++c) to[c] += from[c];
}

// The sum over `chunks` chunks of `chunk_keys` keys as a binary tree, into `to`: `size` accumulators; at `spare` is
// room for the levels of the tree below. visit(first_key, to) computes one chunk; it returns false, and
// writes nothing, when no row sees it, and so does this.
template <typename A, typename Visit>
bool sum_chunks(std::int64_t first_key, std::int64_t chunks, std::int64_t chunk_keys, std::int64_t size,
                A* to, A* spare, const Visit& visit) {
  if (chunks == 1) return visit(first_key, to);
  const std::int64_t half = chunks / 2, middle = first_key + half * chunk_keys;
  if (!sum_chunks(first_key, half, chunk_keys, size, to, spare, visit)) {
    return sum_chunks(middle, half, chunk_keys, size, to, spare, visit);
  }
  if (sum_chunks(middle, half, chunk_keys, size, spare, spare + size, visit)) add_to(spare, size, to);
  return true;
}

// Rows of a part of a tile.
inline std::int64_t reduce_rows(const BackwardPlan& plan) { return plan.tile_rows / kReduceParts; }

// The memory of a worker that sums partial dQ^T.
template <typename A>
struct ReduceScratch {
  std::int64_t size;  // of a part
  A* sums;            // d_qk x rows of a part, for every level of the tree
  A* grad_q;          // rows of a part x d_qk

  ReduceScratch(Arena& arena, const core::Problem& p, const BackwardPlan& plan)
      : size(p.qk_dim * reduce_rows(plan)),
        sums(arena.take<A>(tree_levels(plan.splits) * size)),
        grad_q(arena.take<A>(size)) {}
};

// A part of dQ^T: d_qk lines, `stride` apart; null: nothing was seen.
template <typename A>
struct PartialSum {
  const A* data = nullptr;
  std::int64_t stride = 0;
};

// The sum of `splits` partial dQ^T from `first` on, as the same tree as within a task: one of them where it lies, or in
// `to`, behind which is room for more. partial_of(split) gives a part of one.
template <typename A, typename PartialOf>
PartialSum<A> sum_splits(std::int64_t first, std::int64_t splits, std::int64_t lines, std::int64_t width,
                         A* to, const PartialOf& partial_of) {
  if (splits == 1) return partial_of(first);
  const std::int64_t half = splits / 2;
  const PartialSum<A> left = sum_splits(first, half, lines, width, to, partial_of);
  A* free = left.data == to ? to + lines * width : to;
  const PartialSum<A> right = sum_splits(first + half, half, lines, width, free, partial_of);
  if (left.data == nullptr) return right;
  if (right.data == nullptr) return left;
  const Tag<A> d;
  for (std::int64_t line = 0; line < lines; ++line) {
    const A *a = left.data + line * left.stride, *b = right.data + line * right.stride;
    A* sum = to + line * width;
    for (std::int64_t c = 0; c < width; c += lanes<A>()) {
      hn::StoreU(hn::Add(hn::LoadU(d, a + c), hn::LoadU(d, b + c)), d, sum + c);
    }
  }
  return {to, width};
}

// BackwardEngine::reduce. Lines of dQ^T are as long as the tile in whole vectors of `step` rows.
template <typename T>
void reduce_part(const core::Problem& p, const BackwardPlan& plan, std::int64_t query_head, std::int64_t tile,
                 std::int64_t part, std::byte* memory, const SplitSlots& slots, std::int64_t step) {
  using A = core::Accumulator<T>;
  const std::int64_t head_of_all = plan.whole * p.group() + query_head;
  const Head head(p, head_of_all / p.q_heads, head_of_all % p.q_heads);
  const core::Tiling tiling = query_tiling(p, plan, head.s.q_length);
  if (tile >= tiling.count()) return;  // a shorter one of packed sequences
  const core::Tile rows = tiling[tile];
  const std::int64_t stride = (rows.end - rows.begin + step - 1) / step * step;
  const std::int64_t first = part * reduce_rows(plan);
  const std::int64_t count = std::min(reduce_rows(plan), rows.end - rows.begin - first);
  if (count <= 0) return;
  const std::int64_t width = (count + lanes<A>() - 1) / lanes<A>() * lanes<A>();

  Arena arena(memory);
  const ReduceScratch<A> t(arena, p, plan);
  std::int64_t before = 0;  // the splits are asked for one after the other
  auto partial_of = [&](std::int64_t split) HWY_ATTR {
    const core::Tile seeing = seeing_tiles(p, plan, split);
    const std::int64_t slot = before + tile - seeing.begin;
    before += seeing.end - seeing.begin;
    const core::Tile keys = task_keys(plan, split, plan.splits, head.s.k_length).range;
    if (!core::sees(p, head.s, head.q_head, rows.begin, rows.end, keys)) return PartialSum<A>{};
    return PartialSum<A>{reinterpret_cast<const A*>(slots.grad_q_of(query_head, slot)) + first, stride};
  };
  const PartialSum<A> sum = sum_splits<A>(0, plan.splits, p.qk_dim, width, t.sums, partial_of);
  if (sum.data == nullptr) {
    std::fill_n(t.grad_q, count * p.qk_dim, A{0});
  } else {
    transpose(sum.data, sum.stride, p.qk_dim, width, t.grad_q, p.qk_dim);
  }
  for (std::int64_t r = 0; r < count; ++r) {
    store_row(t.grad_q + r * p.qk_dim, p.qk_dim, static_cast<A>(p.scale),
              head.query_row<T>(p.grad_q, rows.begin + first + r));
  }
}

inline void reduce_grad_q(const core::Problem& p, const BackwardPlan& plan, std::int64_t query_head,
                          std::int64_t tile, std::int64_t part, std::byte* memory, const SplitSlots& slots) {
  core::with_type(p.dtype, [&]<typename T>() HWY_ATTR {
    reduce_part<T>(p, plan, query_head, tile, part, memory, slots, lanes<core::Accumulator<T>>());
  });
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target include guard
