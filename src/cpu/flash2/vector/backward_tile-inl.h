// One tile of queries of one head against ranges of keys, backward: P and dS are computed again
// from the scores and the LSE. The steps of a backward kernel, in whatever order its loops are.
//
//   S^T = K Q^T,  dP^T = V dO^T          rows of queries in lanes, scalars of K and V broadcast
//   P^T = exp(S^T - LSE),  dS^T = P^T o (dropout(dP^T) - delta)
//   dQ^T += K^T dS^T                     rows of queries in lanes
//   dV += P^T dO,  dK += dS^T Q          head_dim in lanes, scalars of P^T and dS^T broadcast
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
#if defined(TESSERA_CPU_SIMD_GRADIENT_TILE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_SIMD_GRADIENT_TILE_INL_H
#undef TESSERA_CPU_SIMD_GRADIENT_TILE_INL_H
#else
#define TESSERA_CPU_SIMD_GRADIENT_TILE_INL_H
#endif
// clang-format on

#if HWY_TARGET != HWY_SCALAR  // Target::portable is plain C++
HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

// Queries per tile: two register blocks of vectors.
template <typename A>
constexpr std::int64_t backward_tile_rows() {
  return 2 * kVectors * lanes<A>();
}

// A head_dim in whole vectors.
template <typename A>
constexpr std::int64_t whole_vectors(std::int64_t dim) {
  return (dim + lanes<A>() - 1) / lanes<A>() * lanes<A>();
}

// From one row of queries to the next.
template <typename A>
constexpr std::int64_t row_stride(std::int64_t dim) {
  return line_stride<A>(whole_vectors<A>(dim));
}

// A tile of queries in the forms that the products read; lines of tile rows lie line_stride apart.
template <typename A>
struct PackedQueries {
  A* q;            // tile rows x row_stride of d_qk, scaled by the softmax scale
  A* grad_out;     // tile rows x row_stride of d_v
  A* q_t;          // d_qk x tile rows
  A* grad_out_t;   // d_v x tile rows
  A *lse, *delta;  // per row
  bool* finite;    // whether q, grad_out and delta are, everywhere

  PackedQueries(Arena& arena, const core::Problem& problem, std::int64_t rows)
      : q(arena.take<A>(rows * row_stride<A>(problem.qk_dim))),
        grad_out(arena.take<A>(rows * row_stride<A>(problem.v_dim))),
        q_t(arena.take<A>(problem.qk_dim * line_stride<A>(rows))),
        grad_out_t(arena.take<A>(problem.v_dim * line_stride<A>(rows))),
        lse(arena.take<A>(rows)),
        delta(arena.take<A>(rows)),
        finite(arena.take<bool>(1)) {}
};

// What a tile needs while it meets keys.
template <typename A>
struct BackwardTileMemory : PackedQueries<A> {
  A *p, *ds;             // block_k x tile rows
  A *keep, *cap, *bias;  // likewise, with dropout, softcap, a bias
  A* bias_row;           // what load_bias needs beside

  // `query_rows`: 0 where the queries always lie elsewhere.
  BackwardTileMemory(Arena& arena, const core::Problem& problem, std::int64_t block_k,
                     std::int64_t query_rows = backward_tile_rows<A>())
      : PackedQueries<A>(arena, problem, query_rows) {
    const std::int64_t block = block_k * line_stride<A>(backward_tile_rows<A>());
    p = arena.take<A>(block);
    ds = arena.take<A>(block);
    keep = arena.take<A>(problem.dropout ? block : 0);
    cap = arena.take<A>(problem.softcap != 0 ? block : 0);
    bias = arena.take<A>(problem.has_bias ? block : 0);
    bias_row = arena.take<A>(problem.has_bias ? bias_row_size<A>(block_k) : 0);
  }

  // The same memory with queries that lie elsewhere.
  [[nodiscard]] BackwardTileMemory with(const PackedQueries<A>& queries) const {
    BackwardTileMemory memory = *this;
    static_cast<PackedQueries<A>&>(memory) = queries;
    return memory;
  }
};

template <typename A>
class BackwardTile {
 public:
  BackwardTile(const HeadView& head, const core::Interval& rows, const KeyRange<A>& range,
               const BackwardTileMemory<A>& memory)
      : head_(head),
        p_(head.p),
        rows_(rows),
        count_(rows.length()),
        range_(range),
        t_(memory),
        vectors_((count_ + lanes<A>() - 1) / lanes<A>()),
        width_(vectors_ * lanes<A>()),
        line_(line_stride<A>(width_)),
        features_(has_features(head.p)) {}

  // Rows in whole vectors: dQ^T has lines as long as this.
  [[nodiscard]] std::int64_t width() const { return width_; }

  // From one line of P^T and dS^T to the next.
  [[nodiscard]] std::int64_t line() const { return line_; }

  // Packs Q (scaled) and dO as rows and transposed, the LSE, and delta = rowsum(dO o O) - dLSE.
  // Rows past the end repeat the last one in the transposed form and have an LSE of +inf, like rows
  // that see nothing: their P is 0.
  template <typename T>
  void pack_queries() {
    const std::int64_t q_row = row_stride<A>(p_.qk_dim), out_row = row_stride<A>(p_.v_dim);
    const auto scale = static_cast<A>(p_.scale);
    auto row_of = [&](std::int64_t r) { return std::min(rows_.begin + r, rows_.end - 1); };
    auto prefetch = [&](std::int64_t r) HWY_ATTR {
      prefetch_row(head_.query_row<const T>(p_.q, row_of(r)), p_.qk_dim);
      prefetch_row(head_.query_row<const T>(p_.out, row_of(r)), p_.v_dim);
      prefetch_row(head_.query_row<const T>(p_.grad_out, row_of(r)), p_.v_dim);
    };
    for_each_row(width_, prefetch, [&](std::int64_t r) HWY_ATTR {
      const std::int64_t i = row_of(r);
      A* q = t_.q + r * q_row;
      A* grad_out = t_.grad_out + r * out_row;
      load_row(head_.query_row<const T>(p_.q, i), p_.qk_dim, scale, q);
      load_row(head_.query_row<const T>(p_.grad_out, i), p_.v_dim, A{1}, grad_out);
      std::fill(q + p_.qk_dim, q + q_row, A{0});
      std::fill(grad_out + p_.v_dim, grad_out + out_row, A{0});
      A delta = dot(head_.query_row<const T>(p_.out, i), grad_out, p_.v_dim);
      if (p_.has_grad_lse) delta -= *head_.query_row<const A>(p_.grad_lse, i);
      const A lse = *head_.query_row<const A>(p_.lse, i);
      const bool counts = r < count_ && lse != core::kMinusInfinity<A>;
      t_.delta[r] = counts ? delta : A{0};
      t_.lse[r] = counts ? lse : std::numeric_limits<A>::infinity();
    });
    *t_.finite = all_finite(t_.q, width_ * q_row) && all_finite(t_.grad_out, width_ * out_row) &&
                 all_finite(t_.delta, width_);
    transpose(t_.q, q_row, width_, p_.qk_dim, t_.q_t, line_);
    transpose(t_.grad_out, out_row, width_, p_.v_dim, t_.grad_out_t, line_);
    use_queries();
  }

  // In place of pack_queries(), where the memory has them already.
  void use_queries() { skip_zeros_ = !range_.finite || !*t_.finite; }

  // P^T (after dropout) and dS^T for keys of the range: one line of rows per key, 0 where a row
  // does not see the key. With `of_capped_score`, dS is the gradient of the score after softcap, as
  // a bias gets it. Returns whether a row may see a key; if not, all is 0, and no product is
  // needed.
  bool recompute(const core::TileRange& keys, bool of_capped_score) {
    of_capped_score_ = of_capped_score;
    bool visible = false;
    if (keys.kind == core::TileKind::full) {
      for (std::int64_t v = 0; v < vectors_; v += kVectors) {
        visible |= score_gradients(keys, keys, v, std::min<std::int64_t>(kVectors, vectors_ - v), false);
      }
      return visible;
    }
    const std::int64_t count = keys.length();
    std::memset(t_.p, 0, static_cast<std::size_t>(count * line_) * sizeof(A));
    std::memset(t_.ds, 0, static_cast<std::size_t>(count * line_) * sizeof(A));
    for (std::int64_t v = 0; v < vectors_; ++v) {
      const core::VisibleRange part = seen_by(v, keys);
      if (!part.empty()) visible |= score_gradients(keys, {part.begin, part.end}, v, 1, !part.full());
    }
    return visible;
  }

  // dQ^T += K^T dS^T, not yet scaled, after recompute(): `grad_q_t` has d_qk lines of width() rows.
  void add_dq(const core::TileRange& keys, A* grad_q_t) {
    if (keys.kind == core::TileKind::full) return add_dq(keys, keys, 0, vectors_, grad_q_t);
    for (std::int64_t v = 0; v < vectors_; ++v) {
      const core::VisibleRange part = seen_by(v, keys);
      if (!part.empty()) add_dq(keys, {part.begin, part.end}, v, 1, grad_q_t);
    }
  }

  // dV += P^T dO and dK += dS^T Q for the keys, over the rows that see them, after recompute().
  // Rows of whole vectors, counted from the first key of the range; either may be null.
  void add_dkv(const core::TileRange& keys, A* grad_k, A* grad_v) {
    const std::int64_t count = keys.length(), offset = keys.begin - range_.keys.begin;
    const std::int64_t q_row = whole_vectors<A>(p_.qk_dim), out_row = whole_vectors<A>(p_.v_dim);
    const bool partial = keys.kind != core::TileKind::full;
    auto seeing = [&](std::int64_t r, std::int64_t rows) HWY_ATTR {
      if (!partial) return core::Interval{0, count_};
      const core::VisibleRange seen =
          core::visible_part(head_.s.band.transposed(), {keys.begin + r, keys.begin + r + rows}, rows_);
      return core::Interval{seen.begin - rows_.begin, seen.end - rows_.begin};
    };
    if (grad_v != nullptr) {
      Accumulate<Walk::rows, A>(t_.p, line_, t_.grad_out, row_stride<A>(p_.v_dim), grad_v + offset * out_row,
                                out_row, skip_zeros_)
          .run(count, out_row / lanes<A>(), seeing);
    }
    if (grad_k != nullptr) {
      Accumulate<Walk::rows, A>(t_.ds, line_, t_.q, row_stride<A>(p_.qk_dim), grad_k + offset * q_row, q_row,
                                skip_zeros_)
          .run(count, q_row / lanes<A>(), seeing);
    }
  }

 private:
  // The part of `keys` that vector v of rows sees.
  core::VisibleRange seen_by(std::int64_t v, const core::Interval& keys) const {
    const std::int64_t begin = rows_.begin + v * lanes<A>();
    return core::visible_part(head_.s.band, {begin, std::min(begin + lanes<A>(), rows_.end)}, keys);
  }

  void add_dq(const core::Interval& keys, const core::Interval& part, std::int64_t first_vector,
              std::int64_t vectors, A* grad_q_t) {
    const std::int64_t lane = first_vector * lanes<A>();
    const core::Interval all{0, part.length()};
    Accumulate<Walk::columns, A>(range_.k + (part.begin - range_.keys.begin) * range_.k_row, range_.k_row,
                                 t_.ds + (part.begin - keys.begin) * line_ + lane, line_, grad_q_t + lane,
                                 width_, skip_zeros_)
        .run(p_.qk_dim, vectors, [&](std::int64_t, std::int64_t) HWY_ATTR { return all; });
  }

  // P^T (after dropout) and dS^T of `part` of `keys`, for some vectors of rows. Returns whether the
  // bias leaves anything visible.
  bool score_gradients(const core::Interval& keys, const core::Interval& part, std::int64_t first_vector,
                       std::int64_t vectors, bool masked) {
    switch (vectors) {
      case 1: return score_gradients_of<1>(keys, part, first_vector, masked);
      case 2: return score_gradients_of<2>(keys, part, first_vector, masked);
      case 3: return score_gradients_of<3>(keys, part, first_vector, masked);
      default: return score_gradients_of<kVectors>(keys, part, first_vector, masked);
    }
  }

  template <int Vectors>
  HWY_NOINLINE bool score_gradients_of(const core::Interval& keys, const core::Interval& part,
                                       std::int64_t first_vector, bool masked) {
    const std::int64_t lane = first_vector * lanes<A>();
    const std::int64_t at = (part.begin - keys.begin) * line_ + lane;
    const std::int64_t offset = part.begin - range_.keys.begin, count = part.length();
    const ScoreBlock<A> scores{t_.p + at, line_, Vectors, rows_.begin + lane, part};
    if (p_.has_bias && !load_bias(head_, scores, rows_.end, t_.bias_row, t_.bias + at)) {
      for (std::int64_t x = 0; x < count; ++x) {
        std::fill_n(t_.p + at + x * line_, Vectors * lanes<A>(), A{0});
        std::fill_n(t_.ds + at + x * line_, Vectors * lanes<A>(), A{0});
      }
      return false;
    }
    const bool separate = features_ || masked;
    const bool zeros = masked || (skip_zeros_ && p_.has_bias);  // some P are 0 beside a dP that may be NaN
    const bool direct = !p_.dropout && !zeros;                  // dS comes straight from the accumulators
    for_each_row_block<kRowsOf<Vectors>>(count, [&](auto rows, std::int64_t r) HWY_ATTR {
      constexpr int kCount = decltype(rows)::value;
      score_rows<kCount, Vectors>(range_.k + (offset + r) * range_.k_row, lane, t_.p + at + r * line_,
                                  !separate);
    });
    if (separate) {
      apply_score_features<A>(head_, scores, masked, p_.has_bias ? t_.bias + at : nullptr, nullptr,
                              p_.softcap != 0 ? t_.cap + at : nullptr);
      exponentiate<Vectors>(count, lane, t_.p + at);
    }
    for_each_row_block<kRowsOf<Vectors>>(count, [&](auto rows, std::int64_t r) HWY_ATTR {
      constexpr int kCount = decltype(rows)::value;
      gradient_rows<kCount, Vectors>(range_.v + (offset + r) * range_.v_row, lane, at + r * line_, direct);
    });
    if (!direct) finish_gradients<Vectors>(part, at, lane);
    if (p_.softcap != 0 && !of_capped_score_) {
      const Tag<A> d;
      for (std::int64_t x = 0; x < count; ++x) {
        for (int v = 0; v < Vectors; ++v) {
          const std::int64_t i = at + x * line_ + v * lanes<A>();
          const Vector<A> ds = hn::LoadU(d, t_.ds + i);  // 0 also where a non-finite score is masked out
          const Vector<A> product = hn::Mul(ds, hn::LoadU(d, t_.cap + i));
          hn::StoreU(hn::IfThenElseZero(hn::Ne(ds, hn::Zero(d)), product), d, t_.ds + i);
        }
      }
    }
    return true;
  }

  // Scores of a few keys or, with `probabilities`, exp(score - LSE) at once.
  template <int Count, int Vectors>
  HWY_NOINLINE void score_rows(const A* k, std::int64_t lane, A* to, bool probabilities) {
    const Tag<A> d;
    TESSERA_BLOCK(A, sum, Count, Vectors);
#pragma GCC unroll 16
    for (int r = 0; r < Count; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) sum[r][v] = hn::Zero(d);
    }
    multiply<Walk::rows>(sum, k, range_.k_row, t_.q_t + lane, line_, p_.qk_dim);
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      const Vector<A> lse = hn::LoadU(d, t_.lse + lane + v * lanes<A>());
#pragma GCC unroll 16
      for (int r = 0; r < Count; ++r) {
        const Vector<A> x = probabilities ? exp_difference<A>(sum[r][v], lse) : sum[r][v];
        hn::StoreU(x, d, to + r * line_ + v * lanes<A>());
      }
    }
  }

  // A score of -inf gives 0, also where the LSE is NaN: a row's NaN must not reach keys that it
  // does not see.
  template <int Vectors>
  void exponentiate(std::int64_t count, std::int64_t lane, A* s) {
    const Tag<A> d;
    const Vector<A> minus_infinity = hn::Set(d, core::kMinusInfinity<A>);
    for (std::int64_t x = 0; x < count; ++x, s += line_) {
      for (int v = 0; v < Vectors; ++v) {
        const Vector<A> lse = hn::LoadU(d, t_.lse + lane + v * lanes<A>());
        const Vector<A> score = hn::LoadU(d, s + v * lanes<A>());
        hn::StoreU(hn::IfThenZeroElse(hn::Eq(score, minus_infinity), exp_difference<A>(score, lse)), d,
                   s + v * lanes<A>());
      }
    }
  }

  // dP of a few keys; with `direct`, dS = P o (dP - delta), where the sum starts at -delta.
  template <int Count, int Vectors>
  HWY_NOINLINE void gradient_rows(const A* values, std::int64_t lane, std::int64_t at, bool direct) {
    const Tag<A> d;
    TESSERA_BLOCK(A, sum, Count, Vectors);
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      const Vector<A> delta = hn::LoadU(d, t_.delta + lane + v * lanes<A>());
#pragma GCC unroll 16
      for (int r = 0; r < Count; ++r) sum[r][v] = direct ? hn::Neg(delta) : hn::Zero(d);
    }
    multiply<Walk::rows>(sum, values, range_.v_row, t_.grad_out_t + lane, line_, p_.v_dim);
#pragma GCC unroll 16
    for (int r = 0; r < Count; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) {
        const std::int64_t i = at + r * line_ + v * lanes<A>();
        const Vector<A> x = direct ? hn::Mul(sum[r][v], hn::LoadU(d, t_.p + i)) : sum[r][v];
        hn::StoreU(x, d, t_.ds + i);
      }
    }
  }

  // dP -> dS with dropout or where keys are masked out: a key that a row does not see has P = 0 and
  // gets dS = 0, whatever dP is there.
  template <int Vectors>
  void finish_gradients(const core::Interval& part, std::int64_t at, std::int64_t lane) {
    const Tag<A> d;
    const std::int64_t count = part.length();
    if (p_.dropout) {
      for (std::int64_t x = 0; x < count; ++x) {
        std::fill_n(t_.keep + at + x * line_, Vectors * lanes<A>(), A{1});
      }
      apply_dropout(head_, ScoreBlock<A>{t_.keep + at, line_, Vectors, rows_.begin + lane, part});
    }
    for (std::int64_t x = 0; x < count; ++x) {
      for (int v = 0; v < Vectors; ++v) {
        const std::int64_t i = at + x * line_ + v * lanes<A>();
        const Vector<A> p = hn::LoadU(d, t_.p + i);
        const Vector<A> delta = hn::LoadU(d, t_.delta + lane + v * lanes<A>());
        Vector<A> ds = hn::LoadU(d, t_.ds + i);
        if (p_.dropout) {
          const Vector<A> keep = hn::LoadU(d, t_.keep + i);
          ds = hn::Mul(ds, keep);
          hn::StoreU(hn::Mul(p, keep), d, t_.p + i);
        }
        ds = hn::IfThenZeroElse(hn::Eq(p, hn::Zero(d)), hn::Mul(p, hn::Sub(ds, delta)));
        hn::StoreU(ds, d, t_.ds + i);
      }
    }
  }

  const HeadView& head_;
  const core::Problem& p_;
  core::Interval rows_;
  std::int64_t count_;
  const KeyRange<A>& range_;
  const BackwardTileMemory<A>& t_;
  std::int64_t vectors_;
  std::int64_t width_;
  std::int64_t line_;
  bool features_;
  bool of_capped_score_ = false;
  bool skip_zeros_ = false;
};

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target include guard
