// cpu.flash1, backward, for every vector instruction set: FlashAttention's algorithm 4, keys
// outside.
//
//   for each block of keys:               load K and V, dK = dV = 0
//     for each tile of queries that sees it:
//       load Q, O, dO, LSE, dQ  ->  delta = rowsum(dO o O)
//       S, P, dP, dS  ->  dV += P^T dO,  dQ += dS K,  dK += dS^T Q  ->  store dQ
//     store dK and dV
//
// with the tile of backward_tile-inl.h. dQ of a head is an array of accumulators in memory, one
// tile after the other and transposed like the tile itself; every step reads and writes it. For
// every block, Q, O and dO are read from their tensors and delta is computed anew. A task is one
// key/value head of one sequence, with the query heads of its group: as in the paper there is no
// parallelism within a head.
//
// Traffic: K, V, dK, dV once; Q, O, dO and the LSE read, and dQ read and written, once per block of
// keys. Memory per worker: dQ of a group, a block of K, V, dK and dV, the tile.
//
// Included once per target.
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/visibility.h"
#include "cpu/baselines/flash1/plan.h"
#include "cpu/flash2/vector/backward_tile-inl.h"
#include "cpu/head_view.h"
#include "cpu/machine/arena.h"

// clang-format off
#if defined(TESSERA_CPU_SIMD_FLASH1_BACKWARD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_SIMD_FLASH1_BACKWARD_INL_H
#undef TESSERA_CPU_SIMD_FLASH1_BACKWARD_INL_H
#else
#define TESSERA_CPU_SIMD_FLASH1_BACKWARD_INL_H
#endif
// clang-format on

#if HWY_TARGET != HWY_SCALAR  // Target::portable is plain C++
HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

// The memory of one worker.
template <typename A>
struct Flash1BackwardMemory {
  BackwardTileMemory<A> tile;
  A *k, *v;            // block_k x d
  A *grad_k, *grad_v;  // block_k x whole vectors of d
  A* grad_q;           // of each tile of each head of the group: d_qk x tile rows

  Flash1BackwardMemory(Arena& arena, const core::Problem& p, const Flash1Plan& plan)
      : tile(arena, p, plan.step_keys),
        k(arena.take<A>(plan.block_k * p.qk_dim)),
        v(arena.take<A>(plan.block_k * p.v_dim)),
        grad_k(arena.take<A>(plan.block_k * whole_vectors<A>(p.qk_dim))),
        grad_v(arena.take<A>(plan.block_k * whole_vectors<A>(p.v_dim))),
        grad_q(arena.take<A>(grad_q_heads(p), tiling(p, p.q_length).count(), grad_q_tile(p))) {}

  static core::Tiling tiling(const core::Problem& p, std::int64_t q_length) {
    return {q_length, backward_tile_rows<A>(), p.blocks ? p.blocks.block_q : 0};
  }

  static std::int64_t grad_q_tile(const core::Problem& p) { return p.qk_dim * backward_tile_rows<A>(); }

  static std::int64_t grad_q_heads(const core::Problem& p) {
    return p.has_grad_q && p.kv_heads != 0 ? p.group() : 0;  // without heads there are no groups
  }
};

template <typename T>
void flash1_backward_task(const core::Problem& p, const Flash1Plan& plan, std::int64_t task,
                          std::byte* memory) {
  using A = core::Accumulator<T>;
  Arena arena(memory);
  const Flash1BackwardMemory<A> t(arena, p, plan);
  const std::int64_t first_head = task % p.kv_heads * p.group();
  const HeadView owner(p, task / p.kv_heads, first_head);
  const core::Tiling tiling = t.tiling(p, owner.s.q_length);
  const std::int64_t tiles = tiling.count(), q_row = whole_vectors<A>(p.qk_dim);
  const std::int64_t out_row = whole_vectors<A>(p.v_dim), group_tiles = p.group() * tiles;
  const std::int64_t grad_q_tile = t.grad_q_tile(p);
  if (p.has_grad_q) {
    std::memset(t.grad_q, 0, static_cast<std::size_t>(group_tiles * grad_q_tile) * sizeof(A));
  }

  for (std::int64_t begin = 0; begin < owner.s.k_length; begin += plan.block_k) {
    const core::Interval keys{begin, std::min(begin + plan.block_k, owner.s.k_length)};
    const std::int64_t count = keys.length();
    KeyRange<A> range = key_range<T>(owner, keys, t.k, t.v);
    range.finite = all_finite(range, p);
    std::memset(t.grad_k, 0, static_cast<std::size_t>(count * q_row) * sizeof(A));
    std::memset(t.grad_v, 0, static_cast<std::size_t>(count * out_row) * sizeof(A));
    for (std::int64_t i = 0; i < group_tiles; ++i) {
      const HeadView head(p, owner.s.index, first_head + i / tiles);
      const core::Interval rows = tiling[i % tiles];
      BackwardTile<A> tile(head, rows, range, t.tile);
      bool loaded = false;  // a tile that sees nothing of the block is not touched
      core::for_each_tile(core::visible_keys(p, head.s, head.q_head, rows), keys, plan.step_keys,
                          [&](const core::TileRange& part) HWY_ATTR {
                            if (!loaded) tile.template pack_queries<T>();
                            loaded = true;
                            tile.recompute(part, false);
                            tile.add_dkv(part, p.has_grad_k ? t.grad_k : nullptr,
                                         p.has_grad_v ? t.grad_v : nullptr);
                            if (p.has_grad_q) tile.add_dq(part, t.grad_q + i * grad_q_tile);
                          });
    }
    for (std::int64_t j = 0; j < count; ++j) {  // q came scaled: dK needs no further factor
      if (p.has_grad_k) {
        store_row(t.grad_k + j * q_row, p.qk_dim, A{1}, owner.key_row<T>(p.grad_k, begin + j));
      }
      if (p.has_grad_v) {
        store_row(t.grad_v + j * out_row, p.v_dim, A{1}, owner.key_row<T>(p.grad_v, begin + j));
      }
    }
  }
  for (std::int64_t i = 0; i < group_tiles && p.has_grad_q; ++i) {
    const HeadView head(p, owner.s.index, first_head + i / tiles);
    const core::Interval rows = tiling[i % tiles];
    const std::int64_t width = whole_vectors<A>(rows.length());
    transpose(t.grad_q + i * grad_q_tile, width, p.qk_dim, width, t.tile.q, p.qk_dim);
    for (std::int64_t r = 0; r < rows.length(); ++r) {
      store_row(t.tile.q + r * p.qk_dim, p.qk_dim, static_cast<A>(p.scale),
                head.query_row<T>(p.grad_q, rows.begin + r));
    }
  }
}

constexpr Flash1BackwardOps flash1_backward_ops() {
  return {.tile_rows =
              [](DType dtype) {
                return core::with_type(
                    dtype, []<typename T>() HWY_ATTR { return backward_tile_rows<core::Accumulator<T>>(); });
              },
          .worker_bytes =
              [](const core::Problem& p, const Flash1Plan& plan) {
                Arena arena;
                core::with_type(p.dtype, [&]<typename T>() HWY_ATTR {
                  Flash1BackwardMemory<core::Accumulator<T>>(arena, p, plan);
                });
                return arena.used();
              },
          .run_task =
              [](const core::Problem& p, const Flash1Plan& plan, std::int64_t task, std::byte* memory) {
                core::with_type(
                    p.dtype, [&]<typename T>() HWY_ATTR { flash1_backward_task<T>(p, plan, task, memory); });
              }};
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target include guard
