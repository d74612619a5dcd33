// dQ as a tree of sums over chunks of keys: within a task, and over the partial dQ of several. Included once
// per target.
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "cpu/head.h"
#include "cpu/simd/flash2_backward.h"
#include "cpu/simd/vector-inl.h"

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

// The sum over `chunks` chunks of `chunk_keys` keys as a binary tree, into `to`: `size` accumulators, behind
// which is room for the levels of the tree. visit(first_key, to) computes one chunk; it returns false, and
// writes nothing, when no row sees it, and so does this.
template <typename A, typename Visit>
bool sum_chunks(std::int64_t first_key, std::int64_t chunks, std::int64_t chunk_keys, std::int64_t size,
                A* to, const Visit& visit) {
  if (chunks == 1) return visit(first_key, to);
  const std::int64_t half = chunks / 2;
  const bool left = sum_chunks(first_key, half, chunk_keys, size, to, visit);
  const bool right =
      sum_chunks(first_key + half * chunk_keys, half, chunk_keys, size, left ? to + size : to, visit);
  if (left && right) add_to(to + size, size, to);
  return left || right;
}

// BackwardEngine::reduce.
template <typename T>
void reduce_partials(const core::Problem& p, const BackwardPlan& plan, std::int64_t head,
                     std::int64_t group_head, const core::Tile& rows, core::Accumulator<T>* partial) {
  using A = core::Accumulator<T>;
  const Head query(p, head / p.kv_heads, head % p.kv_heads * p.group() + group_head);
  const std::int64_t end = std::min(rows.end, query.s.q_length);
  if (rows.begin >= end) return;
  const std::int64_t count = (end - rows.begin) * p.qk_dim;
  auto at = [&](std::int64_t split) {
    return partial + partial_row(p, plan, head, split, group_head, rows.begin);
  };
  for (std::int64_t step = 1; step < plan.splits; step *= 2) {
    for (std::int64_t split = 0; split < plan.splits; split += 2 * step) {
      add_to(at(split + step), count, at(split));
    }
  }
  for (std::int64_t i = rows.begin; i < end; ++i) {
    store_row(at(0) + (i - rows.begin) * p.qk_dim, p.qk_dim, static_cast<A>(p.scale),
              query.query_row<T>(p.grad_q, i));
  }
}

inline void reduce_grad_q(const core::Problem& p, const BackwardPlan& plan, std::int64_t head,
                          std::int64_t group_head, const core::Tile& rows, void* partial) {
  core::with_type(p.dtype, [&]<typename T>() HWY_ATTR {
    reduce_partials<T>(p, plan, head, group_head, rows, static_cast<core::Accumulator<T>*>(partial));
  });
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target include guard
