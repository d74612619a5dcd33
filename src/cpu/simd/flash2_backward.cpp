// cpu.flash2, backward, for every vector instruction set: the five products of a tile from natural layouts.
//
//   S^T = K Q^T,  dP^T = V dO^T          rows of queries in lanes, scalars of K and V broadcast
//   P^T = exp(S^T - LSE),  dS^T = P^T o (dropout(dP^T) - delta)
//   dQ^T += K^T dS^T                     rows of queries in lanes
//   dV += P^T dO,  dK += dS^T Q          head_dim in lanes, scalars of P^T and dS^T broadcast
//
// so that only Q and dO are transposed, once per tile of queries, and dQ^T back. A task owns a range of keys of
// one key/value head: it keeps their dK and dV while it walks over the tiles of queries of every head of the
// group. Where heads do not suffice for all workers their keys are split: partial dQ are then summed in an order
// that is always the same (see BackwardPlan), and no result depends on the number of threads.
//
// Traffic: K, V, dK, dV of the range once per tile of queries, from the cache where they fit; Q, dO, O, dQ once
// per split. Memory per worker: the tiles, dK and dV of a range, and copies of its K and V where their rows are
// not contiguous accumulators.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd/flash2_backward.cpp"  // NOLINT(build/include)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "cpu/arena.h"
#include "cpu/head.h"
#include "cpu/simd/flash2_backward.h"
#include "cpu/simd/product-inl.h"
#include "cpu/simd/reduce-inl.h"
#include "cpu/simd/scores-inl.h"

#if HWY_TARGET != HWY_SCALAR  // the portable kernel serves there
HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

// Queries per tile: two register blocks of vectors.
template <typename A>
constexpr std::int64_t backward_rows() {
  return 2 * kVectors * lanes<A>();
}

// A head_dim in whole vectors.
template <typename A>
constexpr std::int64_t padded(std::int64_t dim) {
  return (dim + lanes<A>() - 1) / lanes<A>() * lanes<A>();
}

// The memory of one worker.
template <typename A>
struct BackwardScratch {
  A* q;                  // tile rows x padded d_qk, scaled
  A* grad_out;           // tile rows x padded d_v
  A* q_t;                // d_qk x tile rows
  A* grad_out_t;         // d_v x tile rows
  A* grad_q_t;           // d_qk x tile rows, for every level of the tree of sums
  A *lse, *delta;        // per row
  A *p, *ds;             // block_k x tile rows
  A *keep, *cap, *bias;  // likewise, with dropout, softcap, a bias
  A* bias_row;           // one square of rows of the bias
  A *k, *v;              // the range of keys, when copied
  A *grad_k, *grad_v;    // the range of keys x padded head_dim

  BackwardScratch(Arena& arena, const core::Problem& problem, const BackwardPlan& plan) {
    const std::int64_t rows_per_tile = backward_rows<A>();
    const std::int64_t block = plan.block_k * rows_per_tile;
    q = arena.take<A>(rows_per_tile * padded<A>(problem.qk_dim));
    grad_out = arena.take<A>(rows_per_tile * padded<A>(problem.v_dim));
    q_t = arena.take<A>(problem.qk_dim * rows_per_tile);
    grad_out_t = arena.take<A>(problem.v_dim * rows_per_tile);
    grad_q_t = arena.take<A>(tree_levels(plan.chunks) * problem.qk_dim * rows_per_tile);
    lse = arena.take<A>(rows_per_tile);
    delta = arena.take<A>(rows_per_tile);
    p = arena.take<A>(block);
    ds = arena.take<A>(block);
    keep = arena.take<A>(problem.dropout ? block : 0);
    cap = arena.take<A>(problem.softcap != 0 ? block : 0);
    bias = arena.take<A>(problem.has_bias ? block : 0);
    bias_row = arena.take<A>(problem.has_bias ? plan.block_k * kSquare<A> : 0);
    const std::int64_t keys =
        task_of(plan, problem.batch * problem.kv_heads, 0).range(plan, problem.k_length).end;
    k = arena.take<A>(plan.copy_k ? keys * problem.qk_dim : 0);
    v = arena.take<A>(plan.copy_v ? keys * problem.v_dim : 0);
    grad_k = arena.take<A>(keys * padded<A>(problem.qk_dim));
    grad_v = arena.take<A>(keys * padded<A>(problem.v_dim));
  }
};

// Keys and values of a range as accumulators: row j of the sequence is at data + (j - begin) * row.
template <typename A>
struct KeyRange {
  core::Tile keys;
  const A* k;
  std::int64_t k_row;
  const A* v;
  std::int64_t v_row;
  bool finite;
};

// One tile of queries of one head against a range of keys.
template <typename A>
class BackwardTile {
 public:
  BackwardTile(const Head& head, core::Tile rows, const KeyRange<A>& range, const BackwardScratch<A>& scratch,
               const BackwardPlan& plan)
      : head_(head),
        p_(head.p),
        rows_(rows),
        count_(rows.end - rows.begin),
        range_(range),
        t_(scratch),
        block_k_(plan.block_k),
        chunk_keys_(plan.chunk_keys),
        vectors_((count_ + lanes<A>() - 1) / lanes<A>()),
        width_(vectors_ * lanes<A>()),
        features_(has_features(head.p)) {}

  // Adds to dK and dV of the range, and leaves dQ (not yet scaled) for grad_q().
  template <typename T>
  void run(std::int64_t first_key, std::int64_t chunks) {
    load_queries<T>();
    if (!sum_chunks(first_key, chunks, t_.grad_q_t)) std::fill_n(t_.grad_q_t, p_.qk_dim * width_, A{0});
    transpose(t_.grad_q_t, width_, p_.qk_dim, width_, t_.q, p_.qk_dim);  // q is not needed any more
  }

  // Row r of dQ, not yet scaled, after run().
  const A* grad_q(std::int64_t r) const { return t_.q + r * p_.qk_dim; }

 private:
  // Q (scaled) and dO as rows and transposed, LSE and delta. Rows past the end repeat the last one in the
  // transposed form and have an LSE of +inf, like rows that saw nothing: their P is 0.
  template <typename T>
  void load_queries() {
    const std::int64_t q_row = padded<A>(p_.qk_dim), out_row = padded<A>(p_.v_dim);
    const auto scale = static_cast<A>(p_.scale);
    bool finite = true;
    auto ask = [&](std::int64_t r) HWY_ATTR {
      const std::int64_t i = std::min(rows_.begin + r, rows_.end - 1);
      prefetch_row(head_.query_row<const T>(p_.q, i), p_.qk_dim);
      prefetch_row(head_.query_row<const T>(p_.grad_out, i), p_.v_dim);
      prefetch_row(head_.query_row<const T>(p_.out, i), p_.v_dim);
    };
    for_each_row(width_, ask, [&](std::int64_t r) HWY_ATTR {
      const std::int64_t i = std::min(rows_.begin + r, rows_.end - 1);
      A* q = t_.q + r * q_row;
      A* grad_out = t_.grad_out + r * out_row;
      load_row(head_.query_row<const T>(p_.q, i), p_.qk_dim, scale, q);
      load_row(head_.query_row<const T>(p_.grad_out, i), p_.v_dim, A{1}, grad_out);
      std::fill(q + p_.qk_dim, q + q_row, A{0});
      std::fill(grad_out + p_.v_dim, grad_out + out_row, A{0});
      finite = finite && all_finite(q, q_row) && all_finite(grad_out, out_row);
      A delta = dot(head_.query_row<const T>(p_.out, i), grad_out, p_.v_dim);
      if (p_.has_grad_lse) delta -= *head_.query_row<const A>(p_.grad_lse, i);
      const A lse = *head_.query_row<const A>(p_.lse, i);
      const bool counts = r < count_ && lse != core::kMinusInfinity<A>;
      t_.delta[r] = counts ? delta : A{0};
      t_.lse[r] = counts ? lse : std::numeric_limits<A>::infinity();
    });
    careful_ = !range_.finite || !finite;
    transpose(t_.q, q_row, width_, p_.qk_dim, t_.q_t, width_);
    transpose(t_.grad_out, out_row, width_, p_.v_dim, t_.grad_out_t, width_);
  }

  // dQ^T over `chunks` chunks of keys as a tree of sums, into `to`; behind it is room for the levels of the tree.
  // Returns false, and writes nothing, when no row sees them.
  bool sum_chunks(std::int64_t first_key, std::int64_t chunks, A* to) {
    if (chunks == 1) return visit_chunk(first_key, to);
    const std::int64_t half = chunks / 2, size = p_.qk_dim * width_;
    const bool left = sum_chunks(first_key, half, to);
    const bool right = sum_chunks(first_key + half * chunk_keys_, half, left ? to + size : to);
    if (left && right) add_to(to + size, size, to);
    return left || right;
  }

  bool visit_chunk(std::int64_t first_key, A* to) {
    bool visited = false;
    grad_q_t_ = to;
    core::for_each_key_tile(p_, head_.s, head_.q_head, rows_.begin, rows_.end, block_k_,
                            [&](core::Tile keys) HWY_ATTR {
                              keys.begin = std::max(keys.begin, first_key);
                              keys.end = std::min(keys.end, first_key + chunk_keys_);
                              if (keys.begin >= keys.end) return;
                              if (!visited) std::fill_n(to, p_.qk_dim * width_, A{0});
                              visited = true;
                              step(keys);
                            });
    return visited;
  }

  void step(const core::Tile& keys) {
    const std::int64_t count = keys.end - keys.begin;
    if (keys.kind == core::TileKind::full) {
      for (std::int64_t v = 0; v < vectors_; v += kVectors) {
        score_gradients(keys, keys, v, std::min<std::int64_t>(kVectors, vectors_ - v), false);
      }
      issue_dq(keys, keys, 0, vectors_);
    } else {
      std::memset(t_.p, 0, static_cast<std::size_t>(count * width_) * sizeof(A));
      std::memset(t_.ds, 0, static_cast<std::size_t>(count * width_) * sizeof(A));
      for (std::int64_t v = 0; v < vectors_; ++v) {
        const std::int64_t begin = rows_.begin + v * lanes<A>();
        const core::VisibleRange seen = core::visible_range(
            head_.s.band, begin, std::min(begin + lanes<A>(), rows_.end), head_.s.k_length);
        const core::Tile part{std::clamp(seen.begin, keys.begin, keys.end),
                              std::clamp(seen.end, keys.begin, keys.end)};
        if (part.begin >= part.end) continue;
        score_gradients(keys, part, v, 1, seen.kind(part.begin, part.end) != core::TileKind::full);
        issue_dq(keys, part, v, 1);
      }
    }
    issue_dkv(keys);
  }

  // P^T (after dropout) and dS^T of `part` of the block `keys`, for some vectors of rows.
  void score_gradients(const core::Tile& keys, const core::Tile& part, std::int64_t first_vector,
                       std::int64_t vectors, bool masked) {
    switch (vectors) {
      case 1: return score_gradients_of<1>(keys, part, first_vector, masked);
      case 2: return score_gradients_of<2>(keys, part, first_vector, masked);
      case 3: return score_gradients_of<3>(keys, part, first_vector, masked);
      default: return score_gradients_of<kVectors>(keys, part, first_vector, masked);
    }
  }

  template <int Vectors>
  HWY_NOINLINE void score_gradients_of(const core::Tile& keys, const core::Tile& part,
                                       std::int64_t first_vector, bool masked) {
    const std::int64_t lane = first_vector * lanes<A>();
    const std::int64_t at = (part.begin - keys.begin) * width_ + lane;
    const std::int64_t offset = part.begin - range_.keys.begin, count = part.end - part.begin;
    const bool separate = features_ || masked;
    const bool direct = !p_.dropout && !masked;  // dS comes straight from the accumulators
    for_each_row_block(count, [&](auto rows, std::int64_t r) HWY_ATTR {
      constexpr int kCount = decltype(rows)::value;
      score_rows<kCount, Vectors>(range_.k + (offset + r) * range_.k_row, lane, t_.p + at + r * width_,
                                  !separate);
    });
    if (separate) {
      const ScoreBlock<A> block{t_.p + at, width_, Vectors, rows_.begin + lane, part};
      if (p_.has_bias) load_bias(head_, block, rows_.end, t_.bias_row, t_.bias + at);
      finish_scores<A>(head_, block, masked, p_.has_bias ? t_.bias + at : nullptr, nullptr,
                       p_.softcap != 0 ? t_.cap + at : nullptr);
      exponentiate<Vectors>(count, lane, t_.p + at);
    }
    for_each_row_block(count, [&](auto rows, std::int64_t r) HWY_ATTR {
      constexpr int kCount = decltype(rows)::value;
      gradient_rows<kCount, Vectors>(range_.v + (offset + r) * range_.v_row, lane, at + r * width_, direct);
    });
    if (!direct) finish_gradients<Vectors>(part, at, lane);
    if (p_.softcap != 0) {
      const Tag<A> d;
      for (std::int64_t x = 0; x < count; ++x) {
        for (int v = 0; v < Vectors; ++v) {
          const std::int64_t i = at + x * width_ + v * lanes<A>();
          hn::StoreU(hn::Mul(hn::LoadU(d, t_.ds + i), hn::LoadU(d, t_.cap + i)), d, t_.ds + i);
        }
      }
    }
  }

  // Scores of a few keys, and with `probabilities` exp(score - LSE) at once.
  template <int Count, int Vectors>
  HWY_NOINLINE void score_rows(const A* k, std::int64_t lane, A* to, bool probabilities) {
    const Tag<A> d;
    TESSERA_BLOCK(A, sum, Count, Vectors);
#pragma GCC unroll 8
    for (int r = 0; r < Count; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) sum[r][v] = hn::Zero(d);
    }
    multiply<Walk::rows>(sum, k, range_.k_row, t_.q_t + lane, width_, p_.qk_dim);
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      const Vector<A> lse = hn::LoadU(d, t_.lse + lane + v * lanes<A>());
#pragma GCC unroll 8
      for (int r = 0; r < Count; ++r) {
        const Vector<A> x = probabilities ? exp_difference<A>(sum[r][v], lse) : sum[r][v];
        hn::StoreU(x, d, to + r * width_ + v * lanes<A>());
      }
    }
  }

  // Scores of -inf give 0 also where the LSE is NaN: a row's NaN must not reach keys that it does not see.
  template <int Vectors>
  void exponentiate(std::int64_t count, std::int64_t lane, A* s) {
    const Tag<A> d;
    const Vector<A> hidden = hn::Set(d, core::kMinusInfinity<A>);
    for (std::int64_t x = 0; x < count; ++x, s += width_) {
      for (int v = 0; v < Vectors; ++v) {
        const Vector<A> lse = hn::LoadU(d, t_.lse + lane + v * lanes<A>());
        const Vector<A> score = hn::LoadU(d, s + v * lanes<A>());
        hn::StoreU(hn::IfThenZeroElse(hn::Eq(score, hidden), exp_difference<A>(score, lse)), d,
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
#pragma GCC unroll 8
      for (int r = 0; r < Count; ++r) sum[r][v] = direct ? hn::Neg(delta) : hn::Zero(d);
    }
    multiply<Walk::rows>(sum, values, range_.v_row, t_.grad_out_t + lane, width_, p_.v_dim);
#pragma GCC unroll 8
    for (int r = 0; r < Count; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) {
        const std::int64_t i = at + r * width_ + v * lanes<A>();
        const Vector<A> x = direct ? hn::Mul(sum[r][v], hn::LoadU(d, t_.p + i)) : sum[r][v];
        hn::StoreU(x, d, t_.ds + i);
      }
    }
  }

  // dP -> dS with dropout or around the diagonal: what a row does not see has P = 0 and gets dS = 0, whatever
  // dP is there.
  template <int Vectors>
  void finish_gradients(const core::Tile& part, std::int64_t at, std::int64_t lane) {
    const Tag<A> d;
    const std::int64_t count = part.end - part.begin;
    if (p_.dropout) {
      for (std::int64_t x = 0; x < count; ++x)
        std::fill_n(t_.keep + at + x * width_, Vectors * lanes<A>(), A{1});
      apply_dropout(head_, ScoreBlock<A>{t_.keep + at, width_, Vectors, rows_.begin + lane, part});
    }
    for (std::int64_t x = 0; x < count; ++x) {
      for (int v = 0; v < Vectors; ++v) {
        const std::int64_t i = at + x * width_ + v * lanes<A>();
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

  // dQ^T += K^T dS^T for some vectors of rows.
  void issue_dq(const core::Tile& keys, const core::Tile& part, std::int64_t first_vector,
                std::int64_t vectors) {
    const std::int64_t lane = first_vector * lanes<A>();
    const core::Tile all{0, part.end - part.begin};
    Accumulate<Walk::columns, A>(range_.k + (part.begin - range_.keys.begin) * range_.k_row, range_.k_row,
                                 t_.ds + (part.begin - keys.begin) * width_ + lane, width_, grad_q_t_ + lane,
                                 width_, careful_)
        .run(p_.qk_dim, vectors, [&](std::int64_t, std::int64_t) HWY_ATTR { return all; });
  }

  // dV += P^T dO and dK += dS^T Q for the keys of the block, over the rows that see them.
  void issue_dkv(const core::Tile& keys) {
    const std::int64_t count = keys.end - keys.begin, offset = keys.begin - range_.keys.begin;
    const std::int64_t q_row = padded<A>(p_.qk_dim), out_row = padded<A>(p_.v_dim);
    const bool partial = keys.kind != core::TileKind::full;
    auto seeing = [&](std::int64_t r, std::int64_t rows) HWY_ATTR {
      if (!partial) return core::Tile{0, count_};
      const core::VisibleRange seen = core::visible_range(head_.s.band.transposed(), keys.begin + r,
                                                          keys.begin + r + rows, head_.s.q_length);
      const std::int64_t begin = std::clamp<std::int64_t>(seen.begin - rows_.begin, 0, count_);
      return core::Tile{begin, std::clamp<std::int64_t>(seen.end - rows_.begin, begin, count_)};
    };
    Accumulate<Walk::rows, A>(t_.p, width_, t_.grad_out, out_row, t_.grad_v + offset * out_row, out_row,
                              careful_)
        .run(count, out_row / lanes<A>(), seeing);
    Accumulate<Walk::rows, A>(t_.ds, width_, t_.q, q_row, t_.grad_k + offset * q_row, q_row, careful_)
        .run(count, q_row / lanes<A>(), seeing);
  }

  const Head& head_;
  const core::Problem& p_;
  core::Tile rows_;
  std::int64_t count_;
  const KeyRange<A>& range_;
  const BackwardScratch<A>& t_;
  std::int64_t block_k_;
  std::int64_t chunk_keys_;
  A* grad_q_t_ = nullptr;  // of the chunk at hand
  std::int64_t vectors_;
  std::int64_t width_;
  bool features_;
  bool careful_ = false;
};

// Rows [begin, end) of K or V where they lie, or copied to contiguous accumulators at `to`; adds whether all
// are finite to `finite`.
template <typename T, typename A>
std::pair<const A*, std::int64_t> prepare_range(const Head& head, const core::View& view,
                                                const core::Tile& keys, std::int64_t dim, bool copy, A* to,
                                                bool& finite) {
  const std::int64_t count = keys.end - keys.begin;
  auto ask = [&](std::int64_t j) HWY_ATTR { prefetch_row(head.key_row<const T>(view, keys.begin + j), dim); };
  if constexpr (std::is_same_v<T, A>) {
    if (!copy) {
      for_each_row(count, ask, [&](std::int64_t j) HWY_ATTR {
        finite = finite && all_finite(head.key_row<const A>(view, keys.begin + j), dim);
      });
      return {head.key_row<const A>(view, keys.begin), view.row_stride};
    }
  }
  for_each_row(count, ask, [&](std::int64_t j) HWY_ATTR {
    load_row(head.key_row<const T>(view, keys.begin + j), dim, A{1}, to + j * dim);
    finite = finite && all_finite(to + j * dim, dim);
  });
  return {to, dim};
}

template <typename T>
void backward_task(const core::Problem& p, const BackwardPlan& plan, std::int64_t task, std::byte* memory,
                   void* partial) {
  using A = core::Accumulator<T>;
  Arena arena(memory);
  const BackwardScratch<A> t(arena, p, plan);
  const BackwardTask own = task_of(plan, p.batch * p.kv_heads, task);
  const std::int64_t first_head = own.head % p.kv_heads * p.group();
  const Head owner(p, own.head / p.kv_heads, first_head);
  KeyRange<A> range{own.range(plan, owner.s.k_length), nullptr, 0, nullptr, 0, true};
  const std::int64_t keys = range.keys.end - range.keys.begin;
  std::tie(range.k, range.k_row) =
      prepare_range<T, A>(owner, p.k, range.keys, p.qk_dim, plan.copy_k, t.k, range.finite);
  std::tie(range.v, range.v_row) =
      prepare_range<T, A>(owner, p.v, range.keys, p.v_dim, plan.copy_v, t.v, range.finite);
  const std::int64_t q_row = padded<A>(p.qk_dim), out_row = padded<A>(p.v_dim);
  std::memset(t.grad_k, 0, static_cast<std::size_t>(keys * q_row) * sizeof(A));
  std::memset(t.grad_v, 0, static_cast<std::size_t>(keys * out_row) * sizeof(A));

  const core::Tiling tiling{owner.s.q_length, backward_rows<A>(), p.blocks ? p.blocks.block_q : 0};
  const std::int64_t tiles = tiling.count();
  for (std::int64_t h = first_head; h < first_head + p.group(); ++h) {
    const Head head(p, owner.s.index, h);
    for (std::int64_t i = 0; i < tiles; ++i) {
      const core::Tile rows = tiling[i];
      BackwardTile<A> tile(head, rows, range, t, plan);
      tile.template run<T>(own.first_key, own.chunks);
      if (!p.has_grad_q) continue;
      auto grad_q = [&](std::int64_t r) HWY_ATTR { return head.query_row<T>(p.grad_q, rows.begin + r); };
      auto partial_grad_q = [&](std::int64_t r) HWY_ATTR {
        return static_cast<A*>(partial) +
               partial_row(p, plan, own.head, own.split, h - first_head, rows.begin + r);
      };
      const std::int64_t count = rows.end - rows.begin;
      if (own.splits == 1) {
        for_each_row(
            count, [&](std::int64_t r) HWY_ATTR { prefetch_row(grad_q(r), p.qk_dim); },
            [&](std::int64_t r)
                HWY_ATTR { store_row(tile.grad_q(r), p.qk_dim, static_cast<A>(p.scale), grad_q(r)); });
      } else {
        for (std::int64_t r = 0; r < count; ++r) std::copy_n(tile.grad_q(r), p.qk_dim, partial_grad_q(r));
      }
    }
  }
  // q came scaled: dK needs no further factor.
  auto store = [&](const core::View& view, const A* from, std::int64_t row, std::int64_t dim) HWY_ATTR {
    auto to = [&](std::int64_t j) HWY_ATTR { return owner.key_row<T>(view, range.keys.begin + j); };
    for_each_row(
        keys, [&](std::int64_t j) HWY_ATTR { prefetch_row(to(j), dim); },
        [&](std::int64_t j) HWY_ATTR { store_row(from + j * row, dim, A{1}, to(j)); });
  };
  if (p.has_grad_k) store(p.grad_k, t.grad_k, q_row, p.qk_dim);
  if (p.has_grad_v) store(p.grad_v, t.grad_v, out_row, p.v_dim);
}

void run_backward_task(const core::Problem& p, const BackwardPlan& plan, std::int64_t task, std::byte* memory,
                       void* partial) {
  core::with_type(p.dtype, [&]<typename T>() HWY_ATTR { backward_task<T>(p, plan, task, memory, partial); });
}

std::int64_t backward_tile_rows(bool fp64) { return fp64 ? backward_rows<double>() : backward_rows<float>(); }

std::size_t backward_worker_bytes(const core::Problem& p, const BackwardPlan& plan) {
  Arena arena;
  if (p.dtype == DType::fp64) {
    BackwardScratch<double>(arena, p, plan);
  } else {
    BackwardScratch<float>(arena, p, plan);
  }
  return arena.used();
}

inline constexpr BackwardEngine kBackwardEngine{backward_tile_rows, backward_worker_bytes, run_backward_task,
                                                reduce_grad_q};

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
#include "cpu/simd/engine_of.h"

namespace tessera::cpu {

const BackwardEngine* backward_engine(Target target) { return TESSERA_ENGINE_OF(target, kBackwardEngine); }

}  // namespace tessera::cpu
#endif  // HWY_ONCE
