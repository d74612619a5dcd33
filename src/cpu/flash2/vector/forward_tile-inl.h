// One tile of queries of one head, and what it does when it meets keys: the steps of a forward
// kernel, in whatever order its loops are. Rows of queries lie in the lanes.
//
//   S^T = K Q^T            scalars of K broadcast against vectors of rows; maximum in the epilogue
//   P^T = exp(S^T - max)   lane by lane: no horizontal reduction anywhere
//   O^T += V^T P^T         scalars of V broadcast
//
// Included once per target.
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "cpu/flash2/vector/key_range-inl.h"
#include "cpu/flash2/vector/product-inl.h"
#include "cpu/flash2/vector/scores-inl.h"
#include "cpu/head_view.h"
#include "cpu/machine/arena.h"

// clang-format off
#if defined(TESSERA_CPU_SIMD_FORWARD_TILE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_SIMD_FORWARD_TILE_INL_H
#undef TESSERA_CPU_SIMD_FORWARD_TILE_INL_H
#else
#define TESSERA_CPU_SIMD_FORWARD_TILE_INL_H
#endif
// clang-format on

#if HWY_TARGET != HWY_SCALAR  // Target::portable is plain C++
HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

// Queries per tile: one register block of vectors.
template <typename A>
constexpr std::int64_t query_rows() {
  return kVectors * lanes<A>();
}

// What a tile needs while it meets keys.
template <typename A>
struct ForwardTileMemory {
  A* rows;      // tile rows x max(d_qk, d_v): queries before, outputs after the transpose
  A* q;         // d_qk x tile rows
  A* s;         // block_k x tile rows
  A* bias;      // block_k x tile rows, with a bias
  A* bias_row;  // what load_bias needs beside

  ForwardTileMemory(Arena& arena, const core::Problem& p, std::int64_t block_k)
      : rows(arena.take<A>(query_rows<A>() * std::max(p.qk_dim, p.v_dim))),
        q(arena.take<A>(p.qk_dim * query_rows<A>())),
        s(arena.take<A>(block_k * query_rows<A>())),
        bias(arena.take<A>(p.has_bias ? block_k * query_rows<A>() : 0)),
        bias_row(arena.take<A>(p.has_bias ? bias_row_size<A>(block_k) : 0)) {}
};

// The state of the rows of a tile: what the online softmax keeps.
template <typename A>
struct QueryState {
  A* o;        // d_v x tile rows: outputs, not normalised while the tile meets keys
  A* maximum;  // per row
  A* sum;      // per row

  QueryState(Arena& arena, const core::Problem& p)
      : o(arena.take<A>(p.v_dim * query_rows<A>())),
        maximum(arena.take<A>(query_rows<A>())),
        sum(arena.take<A>(query_rows<A>())) {}
};

template <typename A>
class ForwardTile {
 public:
  ForwardTile(const HeadView& head, const core::Interval& rows, const ForwardTileMemory<A>& memory,
              const QueryState<A>& state)
      : head_(head),
        p_(head.p),
        rows_(rows),
        t_(memory),
        state_(state),
        vectors_((rows.length() + lanes<A>() - 1) / lanes<A>()),
        width_(vectors_ * lanes<A>()),
        features_(has_features(head.p)) {}

  // The state before the first key. The maximum starts finite: the difference of two such maxima is
  // 0.
  void clear() {
    std::memset(state_.o, 0, static_cast<std::size_t>(p_.v_dim * width_) * sizeof(A));
    std::fill_n(state_.maximum, width_, std::numeric_limits<A>::lowest());
    std::fill_n(state_.sum, width_, A{0});
  }

  // Q scaled and transposed. Rows past the end repeat the last one: finite, and never stored.
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

  // Prefetches the outputs of this tile and the queries of the next one, a row at a time, while the
  // tile visits keys.
  template <typename T>
  void prefetch_ahead() {
    next_queries_ = RowPrefetcher(head_.query_row<const T>(p_.q, rows_.end), p_.q.row_stride,
                                  std::min(query_rows<A>(), head_.s.q_length - rows_.end), p_.qk_dim);
    outputs_ = RowPrefetcher(head_.query_row<const T>(p_.out, rows_.begin), p_.out.row_stride, rows_.length(),
                             p_.v_dim);
  }

  // Takes keys of the range into account. A full tile takes all vectors of rows at once. Around the
  // diagonal each vector takes what it sees: a triangle of one vector is all that is wasted. With
  // `skip_zeros` products skip the terms in which P is 0: a NaN or an infinity among the values
  // then stays away from rows that do not see it.
  void visit(const core::TileRange& keys, const KeyRange<A>& range, bool skip_zeros) {
    if (keys.kind == core::TileKind::full) return step(keys, range, 0, vectors_, false, skip_zeros);
    for (std::int64_t v = 0; v < vectors_; ++v) {
      const std::int64_t begin = rows_.begin + v * lanes<A>();
      const core::VisibleRange part =
          core::visible_part(head_.s.band, {begin, std::min(begin + lanes<A>(), rows_.end)}, keys);
      if (part.empty()) continue;
      step({part.begin, part.end}, range, v, 1, !part.full(), skip_zeros);
    }
  }

  // o = o * sum, lane by lane.
  void denormalise() {
    const Tag<A> d;
    for_each_output([&](std::int64_t v, A* o) HWY_ATTR {
      hn::StoreU(hn::Mul(hn::LoadU(d, o), hn::LoadU(d, state_.sum + v * lanes<A>())), d, o);
    });
  }

  // o = o / sum, lane by lane; a row that sees nothing stays 0. It divides: with a reciprocal,
  // whose rounding all columns of a row share, uniform rows of a million keys missed the contract
  // in fp32.
  void normalise() {
    const Tag<A> d;
    for_each_output([&](std::int64_t v, A* o) HWY_ATTR {
      const Vector<A> sum = hn::LoadU(d, state_.sum + v * lanes<A>());
      const Vector<A> quotient = hn::Div(hn::LoadU(d, o), sum);
      hn::StoreU(hn::IfThenZeroElse(hn::Eq(sum, hn::Zero(d)), quotient), d, o);
    });
  }

  // Writes out = o (divided by the sum unless `normalised`) and LSE = maximum + log(sum); 0 and
  // -inf for a row that sees nothing. Returns whether the output is finite.
  template <typename T>
  bool finalize(bool normalised) {
    transpose(state_.o, width_, p_.v_dim, width_, t_.rows, p_.v_dim);
    bool finite = true;
    for (std::int64_t r = 0; r < rows_.length(); ++r) {
      const A sum = state_.sum[r];
      const A factor = normalised ? A{1} : sum == 0 ? A{0} : A{1} / sum;
      const std::int64_t i = rows_.begin + r;
      finite &= store_row(t_.rows + r * p_.v_dim, p_.v_dim, factor, head_.query_row<T>(p_.out, i));
      if (p_.has_lse) {
        *head_.query_row<A>(p_.lse, i) =
            sum == 0 ? core::kMinusInfinity<A> : state_.maximum[r] + std::log(sum);
      }
    }
    return finite;
  }

 private:
  // body(v, o) for every vector of the output: o is where vector v of the rows has it.
  template <typename Body>
  HWY_INLINE void for_each_output(const Body& body) {
    for (std::int64_t c = 0; c < p_.v_dim; ++c) {
      for (std::int64_t v = 0; v < vectors_; ++v) body(v, state_.o + c * width_ + v * lanes<A>());
    }
  }

  void step(const core::Interval& keys, const KeyRange<A>& range, std::int64_t first_vector,
            std::int64_t vectors, bool masked, bool skip_zeros) {
    switch (vectors) {
      case 1: return step_of<1>(keys, range, first_vector, masked, skip_zeros);
      case 2: return step_of<2>(keys, range, first_vector, masked, skip_zeros);
      case 3: return step_of<3>(keys, range, first_vector, masked, skip_zeros);
      default: return step_of<kVectors>(keys, range, first_vector, masked, skip_zeros);
    }
  }

  template <int Vectors>
  HWY_NOINLINE void step_of(const core::Interval& keys, const KeyRange<A>& range, std::int64_t first_vector,
                            bool masked, bool skip_zeros) {
    const std::int64_t lane = first_vector * lanes<A>();
    const ScoreBlock<A> scores{t_.s, Vectors * lanes<A>(), Vectors, rows_.begin + lane, keys};
    alignas(64) A maximum[Vectors * hn::MaxLanes(Tag<A>())];
    std::memcpy(maximum, state_.maximum + lane, static_cast<std::size_t>(Vectors * lanes<A>()) * sizeof(A));
    if (p_.has_bias && !load_bias(head_, scores, rows_.end, t_.bias_row, t_.bias)) return;  // all hidden
    if (features_ || masked) {
      multiply_qk<Vectors, false>(keys, range, lane, maximum);
      apply_score_features<A>(head_, scores, masked, p_.has_bias ? t_.bias : nullptr, maximum, nullptr);
    } else {
      multiply_qk<Vectors, true>(keys, range, lane, maximum);
    }
    alignas(64) A alpha[Vectors * hn::MaxLanes(Tag<A>())];
    const bool raised = online_softmax<Vectors>(keys.length(), lane, maximum, alpha);
    if (p_.dropout) apply_dropout(head_, scores);
    if (skip_zeros && (masked || p_.has_bias)) {  // without either no P is 0 for a hidden key
      multiply_pv<Vectors, true>(keys, range, lane, raised ? alpha : nullptr);
    } else {
      multiply_pv<Vectors, false>(keys, range, lane, raised ? alpha : nullptr);
    }
  }

  // s = k q, and with Track the largest score of each lane.
  template <int Vectors, bool Track>
  HWY_INLINE void multiply_qk(const core::Interval& keys, const KeyRange<A>& range, std::int64_t lane,
                              A* maximum) {
    const A* k = range.k + (keys.begin - range.keys.begin) * range.k_row;
    for_each_row_block<kRowsOf<Vectors>>(keys.length(), [&](auto rows, std::int64_t r) HWY_ATTR {
      constexpr int kCount = decltype(rows)::value;
      next_queries_.next();
      score_rows<kCount, Vectors, Track>(k + r * range.k_row, range.k_row, t_.q + lane,
                                         t_.s + r * Vectors * lanes<A>(), maximum);
    });
  }

  template <int Count, int Vectors, bool Track>
  HWY_NOINLINE void score_rows(const A* k, std::int64_t k_row, const A* q, A* s, A* maximum) {
    const Tag<A> d;
    TESSERA_BLOCK(A, sum, Count, Vectors);
#pragma GCC unroll 16
    for (int r = 0; r < Count; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) sum[r][v] = hn::Zero(d);
    }
    multiply<Walk::rows>(sum, k, k_row, q, width_, p_.qk_dim);
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      Vector<A> largest = hn::LoadU(d, maximum + v * lanes<A>());
#pragma GCC unroll 16
      for (int r = 0; r < Count; ++r) {
        hn::StoreU(sum[r][v], d, s + (r * Vectors + v) * lanes<A>());
        largest = hn::Max(sum[r][v], largest);
      }
      if constexpr (Track) hn::StoreU(largest, d, maximum + v * lanes<A>());
    }
  }

  // Scores become exp(score - maximum), sums grow. Returns whether a maximum rose; `alpha` is then
  // the factor for what the rows have accumulated so far.
  template <int Vectors>
  HWY_INLINE bool online_softmax(std::int64_t count, std::int64_t lane, const A* maximum, A* alpha) {
    const Tag<A> d;
    bool raised = false;
    for (int v = 0; v < Vectors; ++v) {
      const Vector<A> before = hn::LoadU(d, state_.maximum + lane + v * lanes<A>());
      const Vector<A> now = hn::LoadU(d, maximum + v * lanes<A>());
      raised = raised || !hn::AllFalse(d, hn::Gt(now, before));
    }
    if (raised) {
      for (int v = 0; v < Vectors; ++v) {
        const std::int64_t at = lane + v * lanes<A>();
        const Vector<A> before = hn::LoadU(d, state_.maximum + at);
        const Vector<A> now = hn::LoadU(d, maximum + v * lanes<A>());
        const Vector<A> factor = exp_difference<A>(before, now);
        hn::StoreU(factor, d, alpha + v * lanes<A>());
        hn::StoreU(now, d, state_.maximum + at);
        hn::StoreU(hn::Mul(hn::LoadU(d, state_.sum + at), factor), d, state_.sum + at);
      }
    }
    exponentiate<Vectors>(count, state_.maximum + lane, state_.sum + lane);
    return raised;
  }

  // A step has a sum of its own, which is then added to the whole: sums of long rows stay short.
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

  // o = alpha o + v p (rescale and product in one), with a sum of its own for the step.
  template <int Vectors, bool SkipZeros>
  HWY_INLINE void multiply_pv(const core::Interval& keys, const KeyRange<A>& range, std::int64_t lane,
                              const A* alpha) {
    const A* v = range.v + (keys.begin - range.keys.begin) * range.v_row;
    for_each_row_block<kRowsOf<Vectors>>(p_.v_dim, [&](auto rows, std::int64_t c) HWY_ATTR {
      constexpr int kCount = decltype(rows)::value;
      outputs_.next();
      value_rows<kCount, Vectors, SkipZeros>(v + c, range.v_row, keys.length(), state_.o + c * width_ + lane,
                                             alpha);
    });
  }

  template <int Count, int Vectors, bool SkipZeros>
  HWY_NOINLINE void value_rows(const A* v, std::int64_t v_row, std::int64_t count, A* o, const A* alpha) {
    const Tag<A> d;
    TESSERA_BLOCK(A, sum, Count, Vectors);
#pragma GCC unroll 16
    for (int r = 0; r < Count; ++r) {
#pragma GCC unroll 8
      for (int x = 0; x < Vectors; ++x) sum[r][x] = hn::Zero(d);
    }
    if constexpr (SkipZeros) {
      for (std::int64_t j = 0; j < count; ++j) {
        for (int r = 0; r < Count; ++r) {
          for (int x = 0; x < Vectors; ++x) {
            const Vector<A> p = hn::LoadU(d, t_.s + (j * Vectors + x) * lanes<A>());
            const Vector<A> term = hn::Mul(hn::Set(d, v[j * v_row + r]), p);
            sum[r][x] = hn::Add(sum[r][x], hn::IfThenZeroElse(hn::Eq(p, hn::Zero(d)), term));
          }
        }
      }
    } else {
      multiply<Walk::columns>(sum, v, v_row, t_.s, Vectors * lanes<A>(), count);
    }
#pragma GCC unroll 8
    for (int x = 0; x < Vectors; ++x) {
      const Vector<A> factor = alpha == nullptr ? hn::Set(d, A{1}) : hn::LoadU(d, alpha + x * lanes<A>());
#pragma GCC unroll 16
      for (int r = 0; r < Count; ++r) {
        A* to = o + r * width_ + x * lanes<A>();
        hn::StoreU(hn::MulAdd(hn::LoadU(d, to), factor, sum[r][x]), d, to);
      }
    }
  }

  const HeadView& head_;
  const core::Problem& p_;
  core::Interval rows_;
  const ForwardTileMemory<A>& t_;
  QueryState<A> state_;
  std::int64_t vectors_;
  std::int64_t width_;
  bool features_;
  RowPrefetcher next_queries_, outputs_;
};

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target include guard
