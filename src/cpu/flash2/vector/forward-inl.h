// cpu.flash2, forward, for every vector instruction set: rows of queries in the lanes.
//
//   S^T = K Q^T            scalars of K broadcast against vectors of rows; maximum in the epilogue
//   P^T = exp(S^T - max)   lane by lane: no horizontal reduction anywhere
//   O^T += V^T P^T         scalars of V broadcast
//
// Q is scaled and transposed once per tile; O is transposed back once. K and V are read where they
// lie when their rows are contiguous accumulators. Otherwise a worker copies the head's K and V
// once: 4 KiB row strides alias in the caches, and 16-bit elements are converted.
//
// Per tile of queries, over the keys they see:  multiply_qk -> apply_score_features (only if
// needed) -> online_softmax -> apply_dropout -> multiply_pv (with rescale).  Masked squares around
// the diagonal are taken one vector of rows at a time, so that only a triangle of one vector is
// wasted.
//
// Traffic: Q and O once; K and V once per tile of queries, from the cache where a head fits. Memory
// per worker: the tiles, and at most one copy of a head's K and V.
//
// Included once per target.
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "cpu/flash2/forward_driver.h"
#include "cpu/flash2/vector/forward_tile-inl.h"
#include "cpu/head_view.h"
#include "cpu/machine/arena.h"

// clang-format off
#if defined(TESSERA_CPU_SIMD_FLASH2_FORWARD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_SIMD_FLASH2_FORWARD_INL_H
#undef TESSERA_CPU_SIMD_FLASH2_FORWARD_INL_H
#else
#define TESSERA_CPU_SIMD_FLASH2_FORWARD_INL_H
#endif
// clang-format on

#if HWY_TARGET != HWY_SCALAR  // Target::portable is plain C++
HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

// The Ops of flash2/forward_driver.h.
template <typename T>
class VectorForward {
  using A = core::Accumulator<T>;

 public:
  struct Memory {
    ForwardTileMemory<A> tile;
    QueryState<A> state;
    A* k;  // k_length x d_qk, when copied; else null
    A* v;  // k_length x d_v, likewise

    Memory(Arena& arena, const core::Problem& p, const ForwardPlan& plan)
        : tile(arena, p, plan.block_k),
          state(arena, p),
          k(plan.copy_k ? arena.take<A>(p.k_length * p.qk_dim) : nullptr),
          v(plan.copy_v ? arena.take<A>(p.k_length * p.v_dim) : nullptr) {}
  };

  static std::int64_t tile_rows() { return query_rows<A>(); }

  VectorForward(const core::Problem& /*p*/, const ForwardPlan& /*plan*/, const Memory& memory)
      : memory_(memory) {}

  void load_keys(const HeadView& head, bool cached) {
    keys_ = key_range<T>(head, {0, head.s.k_length}, memory_.k, memory_.v, cached);
  }

  bool run_tile(const HeadView& head, const core::Interval& rows, std::int64_t block_k, bool skip_zeros) {
    ForwardTile<A> tile(head, rows, memory_.tile, memory_.state);
    tile.template load_queries<T>();
    tile.template prefetch_ahead<T>();
    tile.clear();
    const core::VisibleSpan visible =
        core::with_aligned_full_part(core::visible_keys(head.p, head.s, head.q_head, rows), kVectors * kRows);
    core::for_each_tile(visible, block_k,
                        [&](const core::TileRange& part) HWY_ATTR { tile.visit(part, keys_, skip_zeros); });
    return tile.template finalize<T>(false);
  }

 private:
  const Memory& memory_;
  KeyRange<A> keys_;
};

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target include guard
