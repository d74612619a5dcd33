// cpu.flash2, backward, for every vector instruction set: the five products of a tile from natural
// layouts.
//
//   S^T = K Q^T,  dP^T = V dO^T          rows of queries in lanes, scalars of K and V broadcast
//   P^T = exp(S^T - LSE),  dS^T = P^T o (dropout(dP^T) - delta)
//   dQ^T += K^T dS^T                     rows of queries in lanes
//   dV += P^T dO,  dK += dS^T Q          head_dim in lanes, scalars of P^T and dS^T broadcast
//
// Only Q and dO are transposed, once per tile of queries, and dQ^T back. The schedule is
// flash2/backward_driver.h's.
//
// Traffic: K, V, dK, dV of a task's keys once per tile of queries, from the cache where they fit;
// Q, dO, O, dQ once. Of split heads packed Q and dO and partial dQ^T once per tile and split that
// see each other. Memory per worker: the tiles, dK and dV of the task's keys, and copies of its K
// and V where their rows are not contiguous accumulators.
//
// Included once per target.
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cpu/flash2/backward_driver.h"
#include "cpu/flash2/vector/backward_tile-inl.h"
#include "cpu/head_view.h"
#include "cpu/machine/arena.h"

// clang-format off
#if defined(TESSERA_CPU_SIMD_FLASH2_BACKWARD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_SIMD_FLASH2_BACKWARD_INL_H
#undef TESSERA_CPU_SIMD_FLASH2_BACKWARD_INL_H
#else
#define TESSERA_CPU_SIMD_FLASH2_BACKWARD_INL_H
#endif
// clang-format on

#if HWY_TARGET != HWY_SCALAR  // Target::portable is plain C++
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

// Sums of partial dQ^T, lines of rows of queries: the same for every engine on vectors. Lines are
// as long as a tile in whole vectors of `step` rows.
template <typename T>
struct VectorSums {
  using A = core::Accumulator<T>;

  static void add(const A* from, std::int64_t count, A* to) { add_to(from, count, to); }

  static GradQPart part_of(const core::Problem& p, std::int64_t tile_rows, std::int64_t first,
                           std::int64_t count, std::int64_t step) {
    return {.offset = first,
            .lines = p.qk_dim,
            .width = whole_vectors<A>(count),
            .stride = (tile_rows + step - 1) / step * step};
  }

  static void add_lines(const GradQLines<A>& left, const GradQLines<A>& right, const GradQPart& part, A* to) {
    const Tag<A> d;
    for (std::int64_t line = 0; line < part.lines; ++line) {
      const A *a = left.data + line * left.stride, *b = right.data + line * right.stride;
      A* sum = to + line * part.width;
      for (std::int64_t c = 0; c < part.width; c += lanes<A>()) {
        hn::StoreU(hn::Add(hn::LoadU(d, a + c), hn::LoadU(d, b + c)), d, sum + c);
      }
    }
  }

  static void store_part(const HeadView& head, std::int64_t first_row, std::int64_t count,
                         const GradQLines<A>& sum, A* rows) {
    const core::Problem& p = head.p;
    if (sum.data == nullptr) {
      std::fill_n(rows, count * p.qk_dim, A{0});
    } else {
      transpose(sum.data, sum.stride, p.qk_dim, whole_vectors<A>(count), rows, p.qk_dim);
    }
    for (std::int64_t r = 0; r < count; ++r) {
      store_row(rows + r * p.qk_dim, p.qk_dim, static_cast<A>(p.scale),
                head.query_row<T>(p.grad_q, first_row + r));
    }
  }
};

// The Ops of flash2/backward_driver.h.
template <typename T>
class VectorBackward : public VectorSums<T> {
  using A = core::Accumulator<T>;

 public:
  using Accumulator = A;

  struct Memory {
    BackwardTileMemory<A> tile;
    A *k, *v;            // the task's keys, when copied; else null
    A *grad_k, *grad_v;  // the task's keys x whole vectors of head_dim

    Memory(Arena& arena, const core::Problem& p, const BackwardPlan& plan)
        : tile(arena, p, plan.block_k, plan.unsplit_heads > 0 ? backward_tile_rows<A>() : 0) {
      const std::int64_t keys = largest_task(p, plan).range.end;
      k = plan.copy_k ? arena.take<A>(keys * p.qk_dim) : nullptr;
      v = plan.copy_v ? arena.take<A>(keys * p.v_dim) : nullptr;
      grad_k = arena.take<A>(keys * whole_vectors<A>(p.qk_dim));
      grad_v = arena.take<A>(keys * whole_vectors<A>(p.v_dim));
    }
  };

  static std::int64_t tile_rows() { return backward_tile_rows<A>(); }

  static void take_queries(Arena& arena, const core::Problem& p, std::int64_t rows) {
    const PackedQueries<A> taken(arena, p, rows);
  }

  static std::int64_t grad_q_size(const core::Problem& p, std::int64_t rows) { return p.qk_dim * rows; }

  static void pack(const HeadView& head, const core::Interval& rows, std::byte* slot,
                   const BackwardPlan& plan) {
    Arena counted, arena(slot);
    const BackwardTileMemory<A> memory =
        BackwardTileMemory<A>(counted, head.p, 0, 0).with(PackedQueries<A>(arena, head.p, plan.slot_rows));
    const KeyRange<A> no_keys;
    BackwardTile<A>(head, rows, no_keys, memory).template pack_queries<T>();
  }

  static GradQPart part_of(const core::Problem& p, std::int64_t tile_rows, std::int64_t first,
                           std::int64_t count) {
    return VectorSums<T>::part_of(p, tile_rows, first, count, lanes<A>());
  }

  VectorBackward(const core::Problem& p, const BackwardPlan& plan, const Memory& memory)
      : p_(p), plan_(plan), t_(memory) {}

  void load_keys(const HeadView& owner, const TaskKeys& keys) {
    range_ = key_range<T>(owner, keys.range, t_.k, t_.v);
    range_.finite = all_finite(range_, p_);
    const std::int64_t count = range_.keys.length();
    std::memset(t_.grad_k, 0, static_cast<std::size_t>(count * whole_vectors<A>(p_.qk_dim)) * sizeof(A));
    std::memset(t_.grad_v, 0, static_cast<std::size_t>(count * whole_vectors<A>(p_.v_dim)) * sizeof(A));
  }

  // The tile's queries came scaled: dK needs no further factor.
  void store_grad_kv(const HeadView& owner) const {
    auto store = [&](const core::View& view, const A* from, std::int64_t dim) HWY_ATTR {
      auto to = [&](std::int64_t j) HWY_ATTR { return owner.key_row<T>(view, range_.keys.begin + j); };
      for_each_row(
          range_.keys.length(), [&](std::int64_t j) HWY_ATTR { prefetch_row(to(j), dim); },
          [&](std::int64_t j) HWY_ATTR { store_row(from + j * whole_vectors<A>(dim), dim, A{1}, to(j)); });
    };
    if (p_.has_grad_k) store(p_.grad_k, t_.grad_k, p_.qk_dim);
    if (p_.has_grad_v) store(p_.grad_v, t_.grad_v, p_.v_dim);
  }

  class Tile {
   public:
    Tile(const VectorBackward& task, const HeadView& head, const core::Interval& rows)
        : head_(head),
          rows_(rows),
          task_(task),
          memory_(task.t_.tile),
          tile_(head, rows, task.range_, memory_) {
      tile_.template pack_queries<T>();
    }
    Tile(const VectorBackward& task, const HeadView& head, const core::Interval& rows, std::byte* slot)
        : head_(head),
          rows_(rows),
          task_(task),
          memory_(task.with_slot(slot)),
          tile_(head, rows, task.range_, memory_) {
      tile_.use_queries();
    }
    Tile(const Tile&) = delete;
    Tile& operator=(const Tile&) = delete;

    [[nodiscard]] std::int64_t grad_q_size() const { return task_.p_.qk_dim * tile_.width(); }

    void step(const core::TileRange& keys, A* grad_q_t, bool first) {
      if (first) std::fill_n(grad_q_t, grad_q_size(), A{0});
      if (!tile_.recompute(keys, false)) return;
      tile_.add_dq(keys, grad_q_t);
      tile_.add_dkv(keys, task_.t_.grad_k, task_.t_.grad_v);
    }

    void store_grad_q(const A* grad_q_t) const {
      const core::Problem& p = task_.p_;
      A* rows_of_dq = memory_.q;  // Q is not needed any more
      transpose(grad_q_t, tile_.width(), p.qk_dim, tile_.width(), rows_of_dq, p.qk_dim);
      auto to = [&](std::int64_t r) HWY_ATTR { return head_.query_row<T>(p.grad_q, rows_.begin + r); };
      for_each_row(
          rows_.length(), [&](std::int64_t r) HWY_ATTR { prefetch_row(to(r), p.qk_dim); },
          [&](std::int64_t r)
              HWY_ATTR { store_row(rows_of_dq + r * p.qk_dim, p.qk_dim, static_cast<A>(p.scale), to(r)); });
    }

   private:
    const HeadView& head_;
    core::Interval rows_;
    const VectorBackward& task_;
    BackwardTileMemory<A> memory_;
    BackwardTile<A> tile_;
  };

 private:
  // The worker's memory with queries that were packed before.
  [[nodiscard]] BackwardTileMemory<A> with_slot(std::byte* slot) const {
    Arena arena(slot);
    return t_.tile.with(PackedQueries<A>(arena, p_, plan_.slot_rows));
  }

  const core::Problem& p_;
  const BackwardPlan& plan_;
  const Memory& t_;
  KeyRange<A> range_;
};

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target include guard
