// One tile of queries against one tile of keys, backward, in portable C++: P and dS come back from the scores and
// the LSE. The steps of every portable backward, whichever loop is outside.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/flash2/portable/engine.h"
#include "cpu/flash2/portable/small_gemm.h"
#include "cpu/head.h"
#include "cpu/machine/arena.h"

namespace tessera::cpu::portable {

using core::Tile;
using core::TileKind;

// The tiles of one worker.
template <typename A>
struct BackwardTiles {
  A* q;               // block_q x d_qk, scaled
  A* grad_out;        // block_q x d_v
  A* k;               // block_k x d_qk
  A* k_transposed;    // d_qk x block_k
  A* v_transposed;    // d_v x block_k
  A* p;               // block_q x block_k: scores, then probabilities after dropout
  A* ds;              // block_q x block_k: gradient of the scores
  A* cap_derivative;  // block_q x block_k, with softcap
  A* sum_first;       // dQ, dK or d(bias): max(block_q, block_k) x d_qk, or block_q x block_k
  A* sum_second;      // dV: block_k x d_v
  Tile* seen;         // per row, the columns of the tile that count

  BackwardTiles(Arena& arena, const core::Problem& problem)
      : q(arena.take<A>(kBlockQ * problem.qk_dim)),
        grad_out(arena.take<A>(kBlockQ * problem.v_dim)),
        k(arena.take<A>(kBlockK * problem.qk_dim)),
        k_transposed(arena.take<A>(problem.qk_dim * kBlockK)),
        v_transposed(arena.take<A>(problem.v_dim * kBlockK)),
        p(arena.take<A>(kBlockQ * kBlockK)),
        ds(arena.take<A>(kBlockQ * kBlockK)),
        cap_derivative(problem.softcap != 0 ? arena.take<A>(kBlockQ * kBlockK) : nullptr),
        sum_first(arena.take<A>(std::max(kBlockK * problem.qk_dim, kBlockQ * kBlockK))),
        sum_second(arena.take<A>(kBlockK * problem.v_dim)),
        seen(arena.take<Tile>(kBlockQ)) {}
};

// Delta of every row, (head, token) in the order of the packed or batched rows.
template <typename A>
struct Delta {
  A* values;

  A* row(const Head& head, std::int64_t i) const {
    const core::Problem& p = head.p;
    const std::int64_t token = p.packed ? head.s.q_begin + i : head.s.index * p.q_length + i;
    return values + token * p.q_heads + head.q_head;
  }
};

// rowsum(dO o O) - dLSE of row i.
template <typename T>
Accumulator<T> row_delta(const Head& head, std::int64_t i) {
  using A = Accumulator<T>;
  const core::Problem& p = head.p;
  const T* out = head.query_row<const T>(p.out, i);
  const T* grad_out = head.query_row<const T>(p.grad_out, i);
  A sum = 0;
  for (std::int64_t c = 0; c < p.v_dim; ++c) {
    sum += Element<T>::load(out[c]) * Element<T>::load(grad_out[c]);
  }
  if (p.has_grad_lse) sum -= *head.query_row<const A>(p.grad_lse, i);
  return sum;
}

// One tile of queries against one tile of keys.
template <typename T>
class BackwardTile {
  using A = Accumulator<T>;

 public:
  BackwardTile(const core::Problem& p, const BackwardTiles<A>& tiles, const Delta<A>& delta)
      : p_(p), t_(tiles), delta_(delta) {}

  void load_queries(const Head& head, const Tile& rows) {
    load_rows<T>(
        rows.begin, rows.end, p_.qk_dim, static_cast<A>(p_.scale),
        [&](std::int64_t i) { return head.query_row<const T>(p_.q, i); }, t_.q);
    load_rows<T>(
        rows.begin, rows.end, p_.v_dim, A{1},
        [&](std::int64_t i) { return head.query_row<const T>(p_.grad_out, i); }, t_.grad_out);
    const std::int64_t count = rows.end - rows.begin;
    careful_queries_ =
        p_.has_bias && !(all_finite(t_.q, count * p_.qk_dim) && all_finite(t_.grad_out, count * p_.v_dim));
  }

  void load_keys(const Head& head, const Tile& keys) {
    auto k_row = [&](std::int64_t j) { return head.key_row<const T>(p_.k, j); };
    load_rows<T>(keys.begin, keys.end, p_.qk_dim, A{1}, k_row, t_.k);
    load_transposed<T>(keys.begin, keys.end, p_.qk_dim, k_row, t_.k_transposed, kBlockK);
    load_transposed<T>(
        keys.begin, keys.end, p_.v_dim, [&](std::int64_t j) { return head.key_row<const T>(p_.v, j); },
        t_.v_transposed, kBlockK);
    careful_keys_ = p_.has_bias && !all_finite(t_.k, (keys.end - keys.begin) * p_.qk_dim);
  }

  // Fills `p` (after dropout), `ds` and `seen` for the loaded rows and keys. Columns that a row does not see
  // are left undefined and must not be used: a NaN there must not reach the row. Returns true when every row
  // sees every column. With `before_cap`, ds is the gradient of the score after softcap, as a bias gets it.
  bool recompute(const Head& head, const Tile& rows, const Tile& keys, TileKind kind,
                 bool before_cap = false) {
    const std::int64_t count = rows.end - rows.begin, width = keys.end - keys.begin;
    product(count, width, p_.qk_dim, t_.q, t_.k_transposed, t_.p);
    product(count, width, p_.v_dim, t_.grad_out, t_.v_transposed, t_.ds);
    bool dense = true;
    for (std::int64_t r = 0; r < count; ++r) {
      const std::int64_t i = rows.begin + r;
      Tile seen = kind == TileKind::full ? keys : head.visible(i, keys.begin, keys.end);
      const A lse = *head.query_row<const A>(p_.lse, i);
      if (lse == core::kMinusInfinity<A>) seen.end = seen.begin;  // everything it saw was -inf
      const std::int64_t first = seen.begin - keys.begin, last = seen.end - keys.begin;
      t_.seen[r] = {first, last};
      dense = dense && last - first == width;
      if (first == last) continue;
      A* p = t_.p + r * kBlockK + first;
      A* ds = t_.ds + r * kBlockK + first;
      A* cap = p_.softcap != 0 ? t_.cap_derivative + r * kBlockK + first : nullptr;
      finish_scores(head, i, seen.begin, seen.end, p, cap);
      differentiate(head, i, seen, lse, p, ds);
      if (cap != nullptr && !before_cap) {
        for (std::int64_t x = 0; x < last - first; ++x) ds[x] = ds[x] == 0 ? A{0} : ds[x] * cap[x];
      }
    }
    return dense;
  }

  // dQ += dS K for the rows, each over the columns that it sees; `dense` is what recompute returned.
  void issue_dq(bool dense, const Tile& rows, const Tile& keys, A* grad_q) {
    const auto accumulate = careful_keys_ ? accumulate_visible<A> : accumulate_product<A>;
    auto product = [&](std::int64_t r, std::int64_t count, const Tile& seen) {
      accumulate(count, p_.qk_dim, seen.end - seen.begin, {t_.ds + r * kBlockK + seen.begin, kBlockK},
                 t_.k + seen.begin * p_.qk_dim, p_.qk_dim, grad_q + r * p_.qk_dim, p_.qk_dim);
    };
    const std::int64_t count = rows.end - rows.begin;
    if (dense) return product(0, count, {0, keys.end - keys.begin});
    for (std::int64_t r = 0; r < count; ++r) product(r, 1, t_.seen[r]);
  }

  // dK += dS^T Q and dV += P^T dO for the keys, over the rows that see them.
  void issue_dkv(bool dense, const Tile& rows, const Tile& keys, A* grad_k, A* grad_v) {
    const auto accumulate = careful_queries_ ? accumulate_visible<A> : accumulate_product<A>;
    auto product = [&](std::int64_t r, std::int64_t depth, const Tile& seen) {
      const std::int64_t count = seen.end - seen.begin, at = r * kBlockK + seen.begin;
      accumulate(count, p_.qk_dim, depth, {t_.ds + at, 1, kBlockK}, t_.q + r * p_.qk_dim, p_.qk_dim,
                 grad_k + seen.begin * p_.qk_dim, p_.qk_dim);
      accumulate(count, p_.v_dim, depth, {t_.p + at, 1, kBlockK}, t_.grad_out + r * p_.v_dim, p_.v_dim,
                 grad_v + seen.begin * p_.v_dim, p_.v_dim);
    };
    const std::int64_t count = rows.end - rows.begin;
    if (dense) return product(0, count, {0, keys.end - keys.begin});
    for (std::int64_t r = 0; r < count; ++r) product(r, 1, t_.seen[r]);
  }

 private:
  void product(std::int64_t rows, std::int64_t columns, std::int64_t depth, const A* a, const A* b, A* c) {
    for (std::int64_t r = 0; r < rows; ++r) std::fill_n(c + r * kBlockK, columns, A{0});
    accumulate_product<A>(rows, columns, depth, {a, depth}, b, kBlockK, c, kBlockK);
  }

  // Scores -> probabilities, dP -> dS, dropout on both. Where P is 0, dS is 0 whatever dP and delta are.
  void differentiate(const Head& head, std::int64_t i, const Tile& seen, A lse, A* p, A* ds) {
    const std::int64_t width = seen.end - seen.begin;
    const A delta = *delta_.row(head, i);
    for (std::int64_t x = 0; x < width; ++x) p[x] = core::exp_relative(p[x], lse);
    if (p_.dropout) apply_dropout(head, i, seen.begin, seen.end, ds);
    for (std::int64_t x = 0; x < width; ++x) ds[x] = p[x] == 0 ? A{0} : p[x] * (ds[x] - delta);
    if (p_.dropout) apply_dropout(head, i, seen.begin, seen.end, p);
  }

  const core::Problem& p_;
  const BackwardTiles<A>& t_;
  const Delta<A>& delta_;
  bool careful_queries_ = false, careful_keys_ = false;  // the bias may hide rows of them that are not finite
};

}  // namespace tessera::cpu::portable
