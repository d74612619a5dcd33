// cpu.flash1, forward, for every vector instruction set: FlashAttention's algorithm 1, keys
// outside.
//
//   for each block of keys:               load K and V
//     for each tile of queries that sees it:
//       load Q, O, m, l
//       multiply_qk -> apply_score_features -> online_softmax -> apply_dropout -> multiply_pv
//       O = diag(l_new)^-1 (diag(l) e^(m - m_new) O + P V),  m = m_new,  l = l_new:  store O, m, l
//
// with the steps of cpu.flash2 (forward_tile-inl.h): the two differ in their loops. O is normalised
// after every block, as in the paper. O, m and l of a head are arrays of accumulators in memory,
// one tile after the other and transposed like the tile itself, so that reading and writing them
// needs no transpose. Q is read from its tensor, scaled and transposed anew for every block. A task
// is one head of one sequence: as in the paper there is no parallelism within a head.
//
// Traffic: K and V once per query head; Q read, and O, m and l read and written, once per block of
// keys. Memory per worker: O, m and l of one head, a block of K and V, the tile.
//
// Included once per target.
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "core/visibility.h"
#include "cpu/baselines/flash1/plan.h"
#include "cpu/flash2/vector/forward_tile-inl.h"
#include "cpu/head_view.h"
#include "cpu/machine/arena.h"

// clang-format off
#if defined(TESSERA_CPU_SIMD_FLASH1_FORWARD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_SIMD_FLASH1_FORWARD_INL_H
#undef TESSERA_CPU_SIMD_FLASH1_FORWARD_INL_H
#else
#define TESSERA_CPU_SIMD_FLASH1_FORWARD_INL_H
#endif
// clang-format on

#if HWY_TARGET != HWY_SCALAR  // Target::portable is plain C++
HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

// The memory of one worker.
template <typename A>
struct Flash1ForwardMemory {
  ForwardTileMemory<A> tile;
  A* k;              // block_k x d_qk
  A* v;              // block_k x d_v
  std::byte* state;  // QueryState of each tile of a head, one after the other

  Flash1ForwardMemory(Arena& arena, const core::Problem& p, const Flash1Plan& plan)
      : tile(arena, p, plan.block_k),
        k(arena.take<A>(plan.block_k * p.qk_dim)),
        v(arena.take<A>(plan.block_k * p.v_dim)),
        state(arena.take<std::byte>(tiling(p, p.q_length).count(), state_bytes(p))) {}

  static core::Tiling tiling(const core::Problem& p, std::int64_t q_length) {
    return {q_length, query_rows<A>(), p.blocks ? p.blocks.block_q : 0};
  }

  static std::int64_t state_bytes(const core::Problem& p) {
    Arena arena;
    QueryState<A>(arena, p);
    return static_cast<std::int64_t>(arena.used());
  }

  QueryState<A> state_of(const core::Problem& p, std::int64_t tile_index) const {
    Arena arena(state + tile_index * state_bytes(p));
    return QueryState<A>(arena, p);
  }
};

template <typename T>
void flash1_forward_task(const core::Problem& p, const Flash1Plan& plan, std::int64_t task,
                         std::byte* memory) {
  using A = core::Accumulator<T>;
  Arena arena(memory);
  const Flash1ForwardMemory<A> t(arena, p, plan);
  const HeadView head(p, task / p.q_heads, task % p.q_heads);
  const core::Tiling tiling = t.tiling(p, head.s.q_length);
  const std::int64_t tiles = tiling.count();
  auto tile_of = [&](std::int64_t i)
                     HWY_ATTR { return ForwardTile<A>(head, tiling[i], t.tile, t.state_of(p, i)); };

  for (std::int64_t i = 0; i < tiles; ++i) tile_of(i).clear();
  for (std::int64_t begin = 0; begin < head.s.k_length; begin += plan.block_k) {
    const core::Interval keys{begin, std::min(begin + plan.block_k, head.s.k_length)};
    const KeyRange<A> range = key_range<T>(head, keys, t.k, t.v);
    const bool finite = all_finite(range, p);
    for (std::int64_t i = 0; i < tiles; ++i) {
      ForwardTile<A> tile = tile_of(i);
      bool loaded = false;  // a tile that sees nothing of the block is not touched
      core::for_each_tile(core::visible_keys(p, head.s, head.q_head, tiling[i]), keys, plan.step_keys,
                          [&](const core::TileRange& part) HWY_ATTR {
                            if (!loaded) {
                              tile.template load_queries<T>();
                              tile.denormalise();
                              loaded = true;
                            }
                            tile.visit(part, range, !finite);
                          });
      if (loaded) tile.normalise();
    }
  }
  for (std::int64_t i = 0; i < tiles; ++i) tile_of(i).template finalize<T>(true);
}

constexpr Flash1ForwardOps flash1_forward_ops() {
  return {.tile_rows =
              [](DType dtype) {
                return core::with_type(
                    dtype, []<typename T>() HWY_ATTR { return query_rows<core::Accumulator<T>>(); });
              },
          .worker_bytes =
              [](const core::Problem& p, const Flash1Plan& plan) {
                Arena arena;
                core::with_type(p.dtype, [&]<typename T>() HWY_ATTR {
                  Flash1ForwardMemory<core::Accumulator<T>>(arena, p, plan);
                });
                return arena.used();
              },
          .run_task =
              [](const core::Problem& p, const Flash1Plan& plan, std::int64_t task, std::byte* memory) {
                core::with_type(
                    p.dtype, [&]<typename T>() HWY_ATTR { flash1_forward_task<T>(p, plan, task, memory); });
              }};
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target include guard
