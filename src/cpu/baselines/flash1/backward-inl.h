// cpu.flash1, backward, for every vector instruction set: FlashAttention's algorithm 4, keys outside.
//
//   for each block of keys:               load K and V, dK = dV = 0
//     for each tile of queries that sees it:
//       load Q, O, dO, LSE, dQ  ->  delta = rowsum(dO o O)
//       S, P, dP, dS  ->  dV += P^T dO,  dQ += dS K,  dK += dS^T Q  ->  store dQ
//     store dK and dV
//
// with the tile of gradient_tile-inl.h. dQ of a head is an array of accumulators in memory, one tile after the
// other and transposed like the tile itself; it is read and written at every step. Q, O and dO are read from their
// tensors, and delta is computed, anew for every block. A task is one key/value head of one sequence, with the
// query heads of its group: as in the paper there is no parallelism within a head.
//
// Traffic: K, V, dK, dV once; Q, O, dO and the LSE read, and dQ read and written, once per block of keys. Memory
// per worker: dQ of a group, a block of K, V, dK and dV, the tile.
//
// Included once per target.
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/visibility.h"
#include "cpu/baselines/flash1/backward.h"
#include "cpu/flash2/vector/backward_tile-inl.h"
#include "cpu/head.h"
#include "cpu/machine/arena.h"

// clang-format off
#if defined(TESSERA_CPU_SIMD_FLASH1_BACKWARD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_SIMD_FLASH1_BACKWARD_INL_H
#undef TESSERA_CPU_SIMD_FLASH1_BACKWARD_INL_H
#else
#define TESSERA_CPU_SIMD_FLASH1_BACKWARD_INL_H
#endif
// clang-format on

#if HWY_TARGET != HWY_SCALAR  // the portable kernel serves there
HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

// The memory of one worker.
template <typename A>
struct Flash1BackwardScratch {
  GradientMemory<A> tile;
  A *k, *v;            // block_k x d
  A *grad_k, *grad_v;  // block_k x whole vectors of d
  A* grad_q;           // of each tile of each head of the group: d_qk x tile rows

  Flash1BackwardScratch(Arena& arena, const core::Problem& p, const Flash1BackwardPlan& plan)
      : tile(arena, p, plan.step_keys),
        k(arena.take<A>(plan.block_k * p.qk_dim)),
        v(arena.take<A>(plan.block_k * p.v_dim)),
        grad_k(arena.take<A>(plan.block_k * whole_vectors<A>(p.qk_dim))),
        grad_v(arena.take<A>(plan.block_k * whole_vectors<A>(p.v_dim))),
        grad_q(arena.take<A>(grad_q_heads(p), tiling(p, p.q_length).count(), grad_q_tile(p))) {}

  static core::Tiling tiling(const core::Problem& p, std::int64_t q_length) {
    return {q_length, gradient_tile_rows<A>(), p.blocks ? p.blocks.block_q : 0};
  }

  static std::int64_t grad_q_tile(const core::Problem& p) { return p.qk_dim * gradient_tile_rows<A>(); }

  static std::int64_t grad_q_heads(const core::Problem& p) {
    return p.has_grad_q && p.kv_heads != 0 ? p.group() : 0;  // without heads there are no groups
  }
};

template <typename T>
void flash1_backward_task(const core::Problem& p, const Flash1BackwardPlan& plan, std::int64_t task,
                          std::byte* memory) {
  using A = core::Accumulator<T>;
  Arena arena(memory);
  const Flash1BackwardScratch<A> t(arena, p, plan);
  const std::int64_t first_head = task % p.kv_heads * p.group();
  const Head owner(p, task / p.kv_heads, first_head);
  const core::Tiling tiling = t.tiling(p, owner.s.q_length);
  const std::int64_t tiles = tiling.count(), q_row = whole_vectors<A>(p.qk_dim);
  const std::int64_t out_row = whole_vectors<A>(p.v_dim), group_tiles = p.group() * tiles;
  const std::int64_t grad_q_tile = t.grad_q_tile(p);
  if (p.has_grad_q) {
    std::memset(t.grad_q, 0, static_cast<std::size_t>(group_tiles * grad_q_tile) * sizeof(A));
  }

  for (std::int64_t begin = 0; begin < owner.s.k_length; begin += plan.block_k) {
    const core::Tile keys{begin, std::min(begin + plan.block_k, owner.s.k_length)};
    const std::int64_t count = keys.end - keys.begin;
    KeyBlock<A> block = key_block<T>(owner, keys, t.k, t.v);
    block.finite = all_finite(block, p);
    std::memset(t.grad_k, 0, static_cast<std::size_t>(count * q_row) * sizeof(A));
    std::memset(t.grad_v, 0, static_cast<std::size_t>(count * out_row) * sizeof(A));
    for (std::int64_t i = 0; i < group_tiles; ++i) {
      const Head head(p, owner.s.index, first_head + i / tiles);
      const core::Tile rows = tiling[i % tiles];
      GradientTile<A> tile(head, rows, block, t.tile);
      bool loaded = false;  // a tile that does not see the block is not touched
      core::for_each_key_tile_within(p, head.s, head.q_head, rows.begin, rows.end, keys, plan.step_keys,
                                     [&](const core::Tile& part) HWY_ATTR {
                                       if (!loaded) tile.template load_queries<T>();
                                       loaded = true;
                                       tile.recompute(part, false);
                                       tile.issue_dkv(part, p.has_grad_k ? t.grad_k : nullptr,
                                                      p.has_grad_v ? t.grad_v : nullptr);
                                       if (p.has_grad_q) tile.issue_dq(part, t.grad_q + i * grad_q_tile);
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
    const Head head(p, owner.s.index, first_head + i / tiles);
    const core::Tile rows = tiling[i % tiles];
    const std::int64_t width = whole_vectors<A>(rows.end - rows.begin);
    transpose(t.grad_q + i * grad_q_tile, width, p.qk_dim, width, t.tile.q, p.qk_dim);
    for (std::int64_t r = 0; r < rows.end - rows.begin; ++r) {
      store_row(t.tile.q + r * p.qk_dim, p.qk_dim, static_cast<A>(p.scale),
                head.query_row<T>(p.grad_q, rows.begin + r));
    }
  }
}

void run_flash1_backward_task(const core::Problem& p, const Flash1BackwardPlan& plan, std::int64_t task,
                              std::byte* memory) {
  core::with_type(p.dtype, [&]<typename T>() HWY_ATTR { flash1_backward_task<T>(p, plan, task, memory); });
}

std::int64_t flash1_backward_tile_rows(bool fp64) {
  return fp64 ? gradient_tile_rows<double>() : gradient_tile_rows<float>();
}

std::size_t flash1_backward_worker_bytes(const core::Problem& p, const Flash1BackwardPlan& plan) {
  Arena arena;
  if (p.dtype == DType::fp64) {
    Flash1BackwardScratch<double>(arena, p, plan);
  } else {
    Flash1BackwardScratch<float>(arena, p, plan);
  }
  return arena.used();
}

inline constexpr Flash1BackwardEngine kFlash1BackwardEngine{
    flash1_backward_tile_rows, flash1_backward_worker_bytes, run_flash1_backward_task};

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target include guard
