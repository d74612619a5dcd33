// One tile of queries against one tile of keys, backward, in plain C++: P and dS are computed again
// from the scores and the LSE.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/online_softmax.h"
#include "core/visibility.h"
#include "cpu/flash2/portable/scores.h"
#include "cpu/flash2/portable/small_gemm.h"
#include "cpu/machine/arena.h"
#include "cpu/rows.h"

namespace tessera::cpu::portable {

using core::Accumulator;
using core::Interval;
using core::TileRange;

// Queries per tile: the scores and the operands stay within a second-level cache.
inline constexpr std::int64_t kBackwardTileRows = 64;

// A tile of queries.
template <typename A>
struct PackedQueries {
  A* q;          // rows x d_qk, scaled
  A* grad_out;   // rows x d_v
  A* lse;        // per row
  A* delta;      // rowsum(dO o O) - dLSE, per row
  bool* finite;  // whether q and grad_out are, everywhere

  PackedQueries(Arena& arena, const core::Problem& p, std::int64_t rows)
      : q(arena.take<A>(rows * p.qk_dim)),
        grad_out(arena.take<A>(rows * p.v_dim)),
        lse(arena.take<A>(rows)),
        delta(arena.take<A>(rows)),
        finite(arena.take<bool>(1)) {}
};

template <typename T, typename A = Accumulator<T>>
void pack_queries(const HeadView& head, const Interval& rows, const PackedQueries<A>& to) {
  const core::Problem& p = head.p;
  load_rows<T>(
      rows, p.qk_dim, static_cast<A>(p.scale),
      [&](std::int64_t i) { return head.query_row<const T>(p.q, i); }, to.q);
  load_rows<T>(
      rows, p.v_dim, A{1}, [&](std::int64_t i) { return head.query_row<const T>(p.grad_out, i); },
      to.grad_out);
  for (std::int64_t r = 0; r < rows.length(); ++r) {
    const std::int64_t i = rows.begin + r;
    const T* out = head.query_row<const T>(p.out, i);
    A sum = 0;
    for (std::int64_t c = 0; c < p.v_dim; ++c) {
      sum += core::Element<T>::load(out[c]) * to.grad_out[r * p.v_dim + c];
    }
    if (p.has_grad_lse) sum -= *head.query_row<const A>(p.grad_lse, i);
    to.delta[r] = sum;
    to.lse[r] = *head.query_row<const A>(p.lse, i);
  }
  *to.finite = all_finite(to.q, rows.length() * p.qk_dim) && all_finite(to.grad_out, rows.length() * p.v_dim);
}

// A range of keys of one head.
template <typename A>
struct PackedKeys {
  std::int64_t room;  // keys
  A* k;               // keys x d_qk
  A* k_transposed;    // d_qk x room
  A* v_transposed;    // d_v x room

  PackedKeys(Arena& arena, const core::Problem& p, std::int64_t keys)
      : room(keys),
        k(arena.take<A>(keys * p.qk_dim)),
        k_transposed(arena.take<A>(p.qk_dim * keys)),
        v_transposed(arena.take<A>(p.v_dim * keys)) {}
};

template <typename T, typename A = Accumulator<T>>
void pack_keys(const HeadView& head, const Interval& keys, const PackedKeys<A>& to) {
  const core::Problem& p = head.p;
  auto k_row = [&](std::int64_t j) { return head.key_row<const T>(p.k, j); };
  load_rows<T>(keys, p.qk_dim, A{1}, k_row, to.k);
  load_transposed<T>(keys, p.qk_dim, k_row, to.k_transposed, to.room);
  load_transposed<T>(
      keys, p.v_dim, [&](std::int64_t j) { return head.key_row<const T>(p.v, j); }, to.v_transposed, to.room);
}

// What a tile of queries computes with a tile of keys.
template <typename A>
struct BackwardTiles {
  std::int64_t block_k;
  A* p;               // tile rows x block_k: scores, then probabilities after dropout
  A* ds;              // tile rows x block_k: gradient of the scores
  A* cap_derivative;  // tile rows x block_k, with softcap
  Interval* visible;  // per row, the columns of the tile that count

  BackwardTiles(Arena& arena, const core::Problem& problem, std::int64_t keys)
      : block_k(keys),
        p(arena.take<A>(kBackwardTileRows * keys)),
        ds(arena.take<A>(kBackwardTileRows * keys)),
        cap_derivative(problem.softcap != 0 ? arena.take<A>(kBackwardTileRows * keys) : nullptr),
        visible(arena.take<Interval>(kBackwardTileRows)) {}
};

// One tile of queries against the keys of a range, one tile of them after the other.
template <typename A>
class BackwardTile {
 public:
  BackwardTile(const HeadView& head, const Interval& rows, const PackedQueries<A>& queries,
               const Interval& range, const PackedKeys<A>& keys, const BackwardTiles<A>& tiles)
      : head_(head), p_(head.p), rows_(rows), range_(range), queries_(queries), keys_(keys), t_(tiles) {}

  // Fills `p` (after dropout), `ds` and `visible` for a tile of keys. Columns that a row does not
  // see are left undefined and must not be used: a NaN there must not reach the row. With
  // `of_capped_score`, ds is the gradient of the score after softcap, as a bias gets it.
  void recompute(const TileRange& keys, bool of_capped_score) {
    const std::int64_t count = rows_.length(), width = keys.length(), at = keys.begin - range_.begin;
    product(count, width, p_.qk_dim, queries_.q, keys_.k_transposed + at, t_.p);
    product(count, width, p_.v_dim, queries_.grad_out, keys_.v_transposed + at, t_.ds);
    dense_ = true;
    for (std::int64_t r = 0; r < count; ++r) {
      const std::int64_t i = rows_.begin + r;
      Interval visible = visible_to_row(head_, i, keys);
      if (queries_.lse[r] == core::kMinusInfinity<A>) visible.end = visible.begin;  // all its scores are -inf
      t_.visible[r] = {visible.begin - keys.begin, visible.end - keys.begin};
      dense_ = dense_ && visible.length() == width;
      if (visible.empty()) continue;
      A* p = t_.p + r * t_.block_k + t_.visible[r].begin;
      A* ds = t_.ds + r * t_.block_k + t_.visible[r].begin;
      A* cap = p_.softcap != 0 ? t_.cap_derivative + r * t_.block_k + t_.visible[r].begin : nullptr;
      apply_score_features(head_, i, visible, p, cap);
      differentiate(r, visible, p, ds);
      if (cap != nullptr && !of_capped_score) {
        for (std::int64_t x = 0; x < visible.length(); ++x) ds[x] = ds[x] == 0 ? A{0} : ds[x] * cap[x];
      }
    }
  }

  // dQ += dS K for the rows, each over the columns that it sees, after recompute().
  void add_dq(const Interval& keys, A* grad_q) {
    const A* k = keys_.k + (keys.begin - range_.begin) * p_.qk_dim;
    const bool skip_zeros = (p_.has_bias || p_.has_visible) && !all_finite(k, keys.length() * p_.qk_dim);
    const auto accumulate = skip_zeros ? accumulate_nonzero<A> : accumulate_product<A>;
    for_each_dense_row([&](std::int64_t r, std::int64_t count, const Interval& visible) {
      accumulate(count, p_.qk_dim, visible.length(), {t_.ds + r * t_.block_k + visible.begin, t_.block_k},
                 k + visible.begin * p_.qk_dim, p_.qk_dim, grad_q + r * p_.qk_dim, p_.qk_dim);
    });
  }

  // dK += dS^T Q and dV += P^T dO for the keys, over the rows that see them, after recompute(). The
  // gradients begin with the first key of the range.
  void add_dkv(const Interval& keys, A* grad_k, A* grad_v) {
    const bool skip_zeros = (p_.has_bias || p_.has_visible) && !*queries_.finite;
    const auto accumulate = skip_zeros ? accumulate_nonzero<A> : accumulate_product<A>;
    for_each_dense_row([&](std::int64_t r, std::int64_t depth, const Interval& visible) {
      const std::int64_t count = visible.length(), at = r * t_.block_k + visible.begin;
      const std::int64_t key = keys.begin - range_.begin + visible.begin;
      accumulate(count, p_.qk_dim, depth, {t_.ds + at, 1, t_.block_k}, queries_.q + r * p_.qk_dim, p_.qk_dim,
                 grad_k + key * p_.qk_dim, p_.qk_dim);
      accumulate(count, p_.v_dim, depth, {t_.p + at, 1, t_.block_k}, queries_.grad_out + r * p_.v_dim,
                 p_.v_dim, grad_v + key * p_.v_dim, p_.v_dim);
    });
  }

 private:
  // body(first row, rows, their columns): all rows at once where every row sees every column.
  template <typename Body>
  void for_each_dense_row(const Body& body) {
    if (dense_ && !rows_.empty()) return body(0, rows_.length(), t_.visible[0]);
    for (std::int64_t r = 0; r < rows_.length(); ++r) {
      if (!t_.visible[r].empty()) body(r, 1, t_.visible[r]);
    }
  }

  void product(std::int64_t rows, std::int64_t columns, std::int64_t depth, const A* a, const A* b, A* c) {
    for (std::int64_t r = 0; r < rows; ++r) std::fill_n(c + r * t_.block_k, columns, A{0});
    accumulate_product<A>(rows, columns, depth, {a, depth}, b, keys_.room, c, t_.block_k);
  }

  // Scores -> probabilities, dP -> dS, dropout on both. Where P is 0, dS is 0 whatever dP and delta
  // are.
  void differentiate(std::int64_t r, const Interval& visible, A* p, A* ds) {
    const std::int64_t i = rows_.begin + r, width = visible.length();
    const A lse = queries_.lse[r], delta = queries_.delta[r];
    for (std::int64_t x = 0; x < width; ++x) p[x] = core::exp_relative(p[x], lse);
    if (p_.dropout) apply_dropout(head_, i, visible, ds);
    for (std::int64_t x = 0; x < width; ++x) ds[x] = p[x] == 0 ? A{0} : p[x] * (ds[x] - delta);
    if (p_.dropout) apply_dropout(head_, i, visible, p);
  }

  const HeadView& head_;
  const core::Problem& p_;
  Interval rows_, range_;
  const PackedQueries<A>& queries_;
  const PackedKeys<A>& keys_;
  const BackwardTiles<A>& t_;
  bool dense_ = false;  // every row sees every column of the tile
};

}  // namespace tessera::cpu::portable
