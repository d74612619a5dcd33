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
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd/flash2_forward.cpp"  // NOLINT(build/include)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cpu/arena.h"
#include "cpu/head.h"
#include "cpu/parallel.h"
#include "cpu/simd/flash2_forward.h"
#include "cpu/simd/product-inl.h"
#include "cpu/simd/scores-inl.h"

#if HWY_TARGET != HWY_SCALAR  // the portable kernel serves there
HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

// Queries per tile.
template <typename A>
constexpr std::int64_t forward_rows() {
  return kVectors * lanes<A>();
}

// The memory of one worker.
template <typename A>
struct ForwardScratch {
  std::int64_t* held;  // which head k and v hold, counted from 1; first, for it must start as 0
  A* rows;             // tile rows x max(d_qk, d_v): queries before, outputs after the transpose
  A* q;                // d_qk x tile rows
  A* o;                // d_v x tile rows: outputs, not yet normalised
  A* s;                // block_k x tile rows
  A* bias;             // block_k x tile rows, with a bias
  A* bias_row;         // one square of rows of the bias
  A* maximum;          // per row
  A* sum;              // per row
  A* k;                // k_length x d_qk, when copied
  A* v;                // k_length x d_v, when copied

  ForwardScratch(Arena& arena, const core::Problem& p, const ForwardPlan& plan)
      : held(arena.take<std::int64_t>(1)),
        rows(arena.take<A>(forward_rows<A>() * std::max(p.qk_dim, p.v_dim))),
        q(arena.take<A>(p.qk_dim * forward_rows<A>())),
        o(arena.take<A>(p.v_dim * forward_rows<A>())),
        s(arena.take<A>(plan.block_k * forward_rows<A>())),
        bias(arena.take<A>(p.has_bias ? plan.block_k * forward_rows<A>() : 0)),
        bias_row(arena.take<A>(p.has_bias ? plan.block_k * kSquare<A> : 0)),
        maximum(arena.take<A>(forward_rows<A>())),
        sum(arena.take<A>(forward_rows<A>())),
        k(arena.take<A>(plan.copy_k ? p.k_length * p.qk_dim : 0)),
        v(arena.take<A>(plan.copy_v ? p.k_length * p.v_dim : 0)) {}
};

// Keys or values of a head as accumulators: row j is at data + j * row.
template <typename A>
struct Rows {
  const A* data;
  std::int64_t row;
};

// One tile of queries of one head.
template <typename A>
class ForwardTile {
 public:
  ForwardTile(const Head& head, core::Tile rows, const Rows<A>& k, const Rows<A>& v,
              const ForwardScratch<A>& scratch, std::int64_t block_k)
      : head_(head),
        p_(head.p),
        rows_(rows),
        k_(k),
        v_(v),
        t_(scratch),
        block_k_(block_k),
        vectors_((rows.end - rows.begin + lanes<A>() - 1) / lanes<A>()),
        width_(vectors_ * lanes<A>()),
        features_(has_features(head.p)) {}

  // Fills out and LSE. Returns false when the output is not finite: a NaN or infinity among the values may
  // then have reached a row that does not see it, as 0 * NaN; `careful` keeps to what each row sees.
  template <typename T>
  bool run(bool careful) {
    careful_ = careful;
    load_queries<T>();
    next_queries_ = RowQueue(head_.query_row<const T>(p_.q, rows_.end), p_.q.row_stride,
                             std::min(forward_rows<A>(), head_.s.q_length - rows_.end), p_.qk_dim);
    outputs_ = RowQueue(head_.query_row<const T>(p_.out, rows_.begin), p_.out.row_stride,
                        rows_.end - rows_.begin, p_.v_dim);
    std::memset(t_.o, 0, static_cast<std::size_t>(p_.v_dim * width_) * sizeof(A));
    std::fill_n(t_.maximum, width_, std::numeric_limits<A>::lowest());
    std::fill_n(t_.sum, width_, A{0});
    core::for_each_key_tile(p_, head_.s, head_.q_head, rows_.begin, rows_.end, block_k_,
                            [&](const core::Tile& keys) HWY_ATTR { visit(keys); });
    return finalize<T>();
  }

 private:
  // Rows past the end repeat the last one: finite, and never stored.
  template <typename T>
  void load_queries() {
    const auto scale = static_cast<A>(p_.scale);
    auto row = [&](std::int64_t r) HWY_ATTR {
      return head_.query_row<const T>(p_.q, std::min(rows_.begin + r, rows_.end - 1));
    };
    for_each_row(
        width_, [&](std::int64_t r) HWY_ATTR { prefetch_row(row(r), p_.qk_dim); },
        [&](std::int64_t r) HWY_ATTR { load_row(row(r), p_.qk_dim, scale, t_.rows + r * p_.qk_dim); });
    transpose(t_.rows, p_.qk_dim, width_, p_.qk_dim, t_.q, width_);
  }

  // A full tile takes all vectors of rows at once. Around the diagonal each vector takes what it sees.
  void visit(const core::Tile& keys) {
    if (keys.kind == core::TileKind::full) return step(keys, 0, vectors_, false);
    for (std::int64_t v = 0; v < vectors_; ++v) {
      const std::int64_t begin = rows_.begin + v * lanes<A>();
      const core::VisibleRange seen =
          core::visible_range(head_.s.band, begin, std::min(begin + lanes<A>(), rows_.end), head_.s.k_length);
      const core::Tile part{std::clamp(seen.begin, keys.begin, keys.end),
                            std::clamp(seen.end, keys.begin, keys.end)};
      if (part.begin >= part.end) continue;
      step(part, v, 1, seen.kind(part.begin, part.end) != core::TileKind::full);
    }
  }

  void step(const core::Tile& keys, std::int64_t first_vector, std::int64_t vectors, bool masked) {
    switch (vectors) {
      case 1: return step_of<1>(keys, first_vector, masked);
      case 2: return step_of<2>(keys, first_vector, masked);
      case 3: return step_of<3>(keys, first_vector, masked);
      default: return step_of<kVectors>(keys, first_vector, masked);
    }
  }

  template <int Vectors>
  HWY_NOINLINE void step_of(const core::Tile& keys, std::int64_t first_vector, bool masked) {
    const std::int64_t lane = first_vector * lanes<A>();
    const ScoreBlock<A> block{t_.s, Vectors * lanes<A>(), Vectors, rows_.begin + lane, keys};
    alignas(64) A maximum[Vectors * hn::MaxLanes(Tag<A>())];
    std::memcpy(maximum, t_.maximum + lane, static_cast<std::size_t>(Vectors * lanes<A>()) * sizeof(A));
    if (features_ || masked) {
      issue_qk<Vectors, false>(keys, lane, maximum);
      if (p_.has_bias) load_bias(head_, block, rows_.end, t_.bias_row, t_.bias);
      finish_scores<A>(head_, block, masked, p_.has_bias ? t_.bias : nullptr, maximum, nullptr);
    } else {
      issue_qk<Vectors, true>(keys, lane, maximum);
    }
    alignas(64) A alpha[Vectors * hn::MaxLanes(Tag<A>())];
    const bool raised = online_softmax<Vectors>(keys.end - keys.begin, lane, maximum, alpha);
    if (p_.dropout) apply_dropout(head_, block);
    if (careful_ && masked) {
      issue_pv<Vectors, true>(keys, lane, raised ? alpha : nullptr);
    } else {
      issue_pv<Vectors, false>(keys, lane, raised ? alpha : nullptr);
    }
  }

  // s = k q, and with Track the largest score of each lane.
  template <int Vectors, bool Track>
  HWY_INLINE void issue_qk(const core::Tile& keys, std::int64_t lane, A* maximum) {
    for_each_row_block(keys.end - keys.begin, [&](auto rows, std::int64_t r) HWY_ATTR {
      constexpr int kCount = decltype(rows)::value;
      next_queries_.ask();
      score_rows<kCount, Vectors, Track>(k_.data + (keys.begin + r) * k_.row, t_.q + lane,
                                         t_.s + r * Vectors * lanes<A>(), maximum);
    });
  }

  template <int Count, int Vectors, bool Track>
  HWY_NOINLINE void score_rows(const A* k, const A* q, A* s, A* maximum) {
    const Tag<A> d;
    TESSERA_BLOCK(A, sum, Count, Vectors);
#pragma GCC unroll 8
    for (int r = 0; r < Count; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) sum[r][v] = hn::Zero(d);
    }
    multiply<Walk::rows>(sum, k, k_.row, q, width_, p_.qk_dim);
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      Vector<A> largest = hn::LoadU(d, maximum + v * lanes<A>());
#pragma GCC unroll 8
      for (int r = 0; r < Count; ++r) {
        hn::StoreU(sum[r][v], d, s + (r * Vectors + v) * lanes<A>());
        largest = hn::Max(sum[r][v], largest);
      }
      if constexpr (Track) hn::StoreU(largest, d, maximum + v * lanes<A>());
    }
  }

  // Scores become exp(score - maximum), sums grow. Returns whether a maximum rose; `alpha` is then the factor
  // for what was accumulated before.
  template <int Vectors>
  HWY_INLINE bool online_softmax(std::int64_t count, std::int64_t lane, const A* maximum, A* alpha) {
    const Tag<A> d;
    bool raised = false;
    for (int v = 0; v < Vectors; ++v) {
      const Vector<A> before = hn::LoadU(d, t_.maximum + lane + v * lanes<A>());
      const Vector<A> now = hn::LoadU(d, maximum + v * lanes<A>());
      raised = raised || !hn::AllFalse(d, hn::Gt(now, before));
    }
    if (raised) {
      for (int v = 0; v < Vectors; ++v) {
        const std::int64_t at = lane + v * lanes<A>();
        const Vector<A> before = hn::LoadU(d, t_.maximum + at);
        const Vector<A> now = hn::LoadU(d, maximum + v * lanes<A>());
        const Vector<A> factor = exp_difference<A>(before, now);
        hn::StoreU(factor, d, alpha + v * lanes<A>());
        hn::StoreU(now, d, t_.maximum + at);
        hn::StoreU(hn::Mul(hn::LoadU(d, t_.sum + at), factor), d, t_.sum + at);
      }
    }
    exponentiate<Vectors>(count, t_.maximum + lane, t_.sum + lane);
    return raised;
  }

  // The sum of a block is added up apart and then to the whole: long rows keep short sums.
  template <int Vectors>
  HWY_NOINLINE void exponentiate(std::int64_t count, const A* maximum, A* sum) {
    const Tag<A> d;
    TESSERA_LINE(A, largest, Vectors);
    TESSERA_LINE(A, total, Vectors);
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      largest[v] = hn::LoadU(d, maximum + v * lanes<A>());
      total[v] = hn::Zero(d);
    }
    A* s = t_.s;
#pragma GCC unroll 2
    for (std::int64_t j = 0; j < count; ++j, s += Vectors * lanes<A>()) {
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) {
        const Vector<A> p = exp_difference<A>(hn::LoadU(d, s + v * lanes<A>()), largest[v]);
        total[v] = hn::Add(total[v], p);
        hn::StoreU(p, d, s + v * lanes<A>());
      }
    }
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      hn::StoreU(hn::Add(hn::LoadU(d, sum + v * lanes<A>()), total[v]), d, sum + v * lanes<A>());
    }
  }

  // o = alpha o + v p (rescale and product in one). The sum of a step is added up apart and then to the whole:
  // long rows keep short sums.
  template <int Vectors, bool Careful>
  HWY_INLINE void issue_pv(const core::Tile& keys, std::int64_t lane, const A* alpha) {
    for_each_row_block(p_.v_dim, [&](auto rows, std::int64_t c) HWY_ATTR {
      constexpr int kCount = decltype(rows)::value;
      outputs_.ask();
      value_rows<kCount, Vectors, Careful>(v_.data + keys.begin * v_.row + c, keys.end - keys.begin,
                                           t_.o + c * width_ + lane, alpha);
    });
  }

  template <int Count, int Vectors, bool Careful>
  HWY_NOINLINE void value_rows(const A* v, std::int64_t count, A* o, const A* alpha) {
    const Tag<A> d;
    TESSERA_BLOCK(A, sum, Count, Vectors);
#pragma GCC unroll 8
    for (int r = 0; r < Count; ++r) {
#pragma GCC unroll 8
      for (int x = 0; x < Vectors; ++x) sum[r][x] = hn::Zero(d);
    }
    if constexpr (Careful) {
      for (std::int64_t j = 0; j < count; ++j) {
        for (int r = 0; r < Count; ++r) {
          for (int x = 0; x < Vectors; ++x) {
            const Vector<A> p = hn::LoadU(d, t_.s + (j * Vectors + x) * lanes<A>());
            const Vector<A> term = hn::Mul(hn::Set(d, v[j * v_.row + r]), p);
            sum[r][x] = hn::Add(sum[r][x], hn::IfThenZeroElse(hn::Eq(p, hn::Zero(d)), term));
          }
        }
      }
    } else {
      multiply<Walk::columns>(sum, v, v_.row, t_.s, Vectors * lanes<A>(), count);
    }
#pragma GCC unroll 8
    for (int x = 0; x < Vectors; ++x) {
      const Vector<A> factor = alpha == nullptr ? hn::Set(d, A{1}) : hn::LoadU(d, alpha + x * lanes<A>());
#pragma GCC unroll 8
      for (int r = 0; r < Count; ++r) {
        A* to = o + r * width_ + x * lanes<A>();
        hn::StoreU(hn::MulAdd(hn::LoadU(d, to), factor, sum[r][x]), d, to);
      }
    }
  }

  // out = o / sum and LSE = maximum + log(sum); 0 and -inf for a row that saw nothing.
  template <typename T>
  bool finalize() {
    auto row = [&](std::int64_t r) HWY_ATTR { return head_.query_row<T>(p_.out, rows_.begin + r); };
    const std::int64_t count = rows_.end - rows_.begin;
    transpose(t_.o, width_, p_.v_dim, width_, t_.rows, p_.v_dim);
    bool finite = true;
    for (std::int64_t r = 0; r < count; ++r) {
      const A sum = t_.sum[r];
      const A factor = sum == 0 ? A{0} : A{1} / sum;
      finite &= store_row(t_.rows + r * p_.v_dim, p_.v_dim, factor, row(r));
      if (p_.has_lse) {
        *head_.query_row<A>(p_.lse, rows_.begin + r) =
            sum == 0 ? core::kMinusInfinity<A> : t_.maximum[r] + std::log(sum);
      }
    }
    return finite;
  }

  const Head& head_;
  const core::Problem& p_;
  core::Tile rows_;
  Rows<A> k_, v_;
  const ForwardScratch<A>& t_;
  std::int64_t block_k_;
  std::int64_t vectors_;
  std::int64_t width_;
  bool features_;
  bool careful_ = false;
  RowQueue next_queries_, outputs_;
};

// Keys or values where they lie, or (`copy`) copied to contiguous accumulators at `to`.
template <typename T, typename A = core::Accumulator<T>>
Rows<A> prepare_rows(const Head& head, const core::View& view, std::int64_t dim, bool copy, bool held,
                     A* to) {
  if constexpr (std::is_same_v<T, A>) {
    if (!copy) return {head.key_row<const A>(view, 0), view.row_stride};
  }
  for_each_row(
      held ? 0 : head.s.k_length,
      [&](std::int64_t j) HWY_ATTR { prefetch_row(head.key_row<const T>(view, j), dim); },
      [&](std::int64_t j) HWY_ATTR { load_row(head.key_row<const T>(view, j), dim, A{1}, to + j * dim); });
  return {to, dim};
}

template <typename T>
void forward_task(const core::Problem& p, const ForwardPlan& plan, std::int64_t task, std::byte* memory) {
  using A = core::Accumulator<T>;
  Arena arena(memory);
  const ForwardScratch<A> scratch(arena, p, plan);
  const ForwardTask own = task_of(plan, p.batch * p.q_heads, task);
  const Head head(p, own.head / p.q_heads, own.head % p.q_heads);
  const std::int64_t kv_index = head.s.index * p.kv_heads + head.kv_head;
  const bool held = *scratch.held == kv_index + 1;
  const Rows<A> k = prepare_rows<T>(head, p.k, p.qk_dim, plan.copy_k, held, scratch.k);
  const Rows<A> v = prepare_rows<T>(head, p.v, p.v_dim, plan.copy_v, held, scratch.v);
  *scratch.held = kv_index + 1;

  const core::Tiling tiling{head.s.q_length, forward_rows<A>(), p.blocks ? p.blocks.block_q : 0};
  for (std::int64_t t = own.first_tile; t < std::min(own.end_tile, tiling.count()); ++t) {
    ForwardTile<A> tile(head, tiling[t], k, v, scratch, plan.block_k);
    if (!tile.template run<T>(false)) tile.template run<T>(true);
  }
}

void run_forward_task(const core::Problem& p, const ForwardPlan& plan, std::int64_t task, std::byte* memory) {
  core::with_type(p.dtype, [&]<typename T>() HWY_ATTR { forward_task<T>(p, plan, task, memory); });
}

std::int64_t forward_tile_rows(bool fp64) { return fp64 ? forward_rows<double>() : forward_rows<float>(); }

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

#if HWY_ONCE
#include "cpu/simd/engine_of.h"

namespace tessera::cpu {

const ForwardEngine* forward_engine(Target target) { return TESSERA_ENGINE_OF(target, kForwardEngine); }

}  // namespace tessera::cpu
#endif  // HWY_ONCE
