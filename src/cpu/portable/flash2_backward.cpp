// cpu.flash2, backward, by recomputation: P comes back from the scores and the LSE, tile by tile.
//
//   prepare         delta = rowsum(dO o O) - dLSE, one number per row
//   dQ pass         a task is a tile of queries:  dQ += dS K          over the keys they see
//   dK, dV pass     a task is a tile of keys:     dV += P^T dO, dK += dS^T Q   over the queries that see them
//   d(bias) pass    a task is a tile of the bias: the sum of dS over everything it was broadcast to
//
// with P = exp(S - LSE) and dS = P o (dropout(dO V^T) - delta). Every sum has one owner and a fixed order:
// the result is bitwise the same for any number of threads. Passes whose gradient is not asked for are left
// out. Traffic: Q, K, V, dO once per tile of the other side and pass. Memory besides the tensors: delta and
// the tiles of each worker.
#include <algorithm>

#include "core/schedule.h"
#include "cpu/arena.h"
#include "cpu/head.h"
#include "cpu/parallel.h"
#include "cpu/portable/flash2.h"
#include "cpu/portable/small_gemm.h"

namespace tessera::cpu::portable {
namespace {

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
  }

  void load_keys(const Head& head, const Tile& keys) {
    auto k_row = [&](std::int64_t j) { return head.key_row<const T>(p_.k, j); };
    load_rows<T>(keys.begin, keys.end, p_.qk_dim, A{1}, k_row, t_.k);
    load_transposed<T>(keys.begin, keys.end, p_.qk_dim, k_row, t_.k_transposed, kBlockK);
    load_transposed<T>(
        keys.begin, keys.end, p_.v_dim, [&](std::int64_t j) { return head.key_row<const T>(p_.v, j); },
        t_.v_transposed, kBlockK);
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
        for (std::int64_t x = 0; x < last - first; ++x) ds[x] *= cap[x];
      }
    }
    return dense;
  }

 private:
  void product(std::int64_t rows, std::int64_t columns, std::int64_t depth, const A* a, const A* b, A* c) {
    for (std::int64_t r = 0; r < rows; ++r) std::fill_n(c + r * kBlockK, columns, A{0});
    accumulate_product<A>(rows, columns, depth, {a, depth}, b, kBlockK, c, kBlockK);
  }

  // Scores -> probabilities, dP -> dS, dropout on both.
  void differentiate(const Head& head, std::int64_t i, const Tile& seen, A lse, A* p, A* ds) {
    const std::int64_t width = seen.end - seen.begin;
    const A delta = *delta_.row(head, i);
    for (std::int64_t x = 0; x < width; ++x) p[x] = core::exp_relative(p[x], lse);
    if (!p_.dropout) {
      for (std::int64_t x = 0; x < width; ++x) ds[x] = p[x] * (ds[x] - delta);
      return;
    }
    apply_dropout(head, i, seen.begin, seen.end, ds);
    for (std::int64_t x = 0; x < width; ++x) ds[x] = p[x] * (ds[x] - delta);
    apply_dropout(head, i, seen.begin, seen.end, p);
  }

  const core::Problem& p_;
  const BackwardTiles<A>& t_;
  const Delta<A>& delta_;
};

template <typename T>
class Backward {
  using A = Accumulator<T>;

 public:
  Backward(const core::Problem& p, const registry::Configuration& configuration,
           const registry::Resources& resources)
      : p_(p), configuration_(configuration), resources_(resources) {
    Arena arena(resources.workspace);
    delta_ = {arena.take<A>(p.q_tokens * p.q_heads)};
    worker_memory_ = resources.workspace == nullptr ? nullptr : resources.workspace + arena.used();
  }

  static std::size_t worker_bytes(const core::Problem& p) {
    Arena arena;
    BackwardTiles<A>(arena, p);
    return arena.used();
  }

  static std::size_t shared_bytes(const core::Problem& p) {
    Arena arena;
    arena.take<A>(p.q_tokens * p.q_heads);
    return arena.used();
  }

  void run() {
    prepare();
    if (p_.has_grad_q) grad_q();
    if (p_.has_grad_k || p_.has_grad_v) grad_kv();
    if (p_.has_grad_bias) grad_bias();
  }

 private:
  template <typename Body>
  void parallel(std::int64_t tasks, const Body& body) {
    parallel_for(*resources_.executor, configuration_.workers, tasks, body);
  }

  BackwardTiles<A> tiles_of(int worker) const {
    Arena arena(worker_memory_ + worker_bytes(p_) * static_cast<std::size_t>(worker));
    return BackwardTiles<A>(arena, p_);
  }

  void prepare() {
    const core::TaskOrder order = query_tasks(p_);
    parallel(order.count(), [&](std::int64_t index, int) {
      const core::Task task = order[index];
      const Head head(p_, task.sequence, task.head);
      const core::Tiling tiling = query_tiling(p_, head.s);
      if (task.tile >= tiling.count()) return;
      const Tile rows = tiling[task.tile];
      for (std::int64_t i = rows.begin; i < rows.end; ++i) {
        const T* out = head.query_row<const T>(p_.out, i);
        const T* grad_out = head.query_row<const T>(p_.grad_out, i);
        A sum = 0;
        for (std::int64_t c = 0; c < p_.v_dim; ++c) {
          sum += Element<T>::load(out[c]) * Element<T>::load(grad_out[c]);
        }
        if (p_.has_grad_lse) sum -= *head.query_row<const A>(p_.grad_lse, i);
        *delta_.row(head, i) = sum;
      }
    });
  }

  void grad_q() {
    const core::TaskOrder order = query_tasks(p_);
    parallel(order.count(), [&](std::int64_t index, int worker) {
      const core::Task task = order[index];
      const Head head(p_, task.sequence, task.head);
      const core::Tiling tiling = query_tiling(p_, head.s);
      if (task.tile >= tiling.count()) return;
      const Tile rows = tiling[task.tile];
      const BackwardTiles<A> t = tiles_of(worker);
      BackwardTile<T> tile(p_, t, delta_);
      std::fill_n(t.sum_first, (rows.end - rows.begin) * p_.qk_dim, A{0});
      tile.load_queries(head, rows);
      core::for_each_key_tile(p_, head.s, head.q_head, rows.begin, rows.end, kBlockK, [&](const Tile& keys) {
        tile.load_keys(head, keys);
        const std::int64_t count = rows.end - rows.begin;
        if (tile.recompute(head, rows, keys, keys.kind)) {
          issue_dq(t, 0, count, {0, keys.end - keys.begin});
        } else {
          for (std::int64_t r = 0; r < count; ++r) issue_dq(t, r, 1, t.seen[r]);
        }
      });
      store_rows<T>(rows.begin, rows.end, p_.qk_dim, static_cast<A>(p_.scale), t.sum_first,
                    [&](std::int64_t i) { return head.query_row<T>(p_.grad_q, i); });
    });
  }

  // dQ += dS K for `rows` rows from r, over the columns that they see.
  void issue_dq(const BackwardTiles<A>& t, std::int64_t r, std::int64_t rows, const Tile& seen) {
    accumulate_product<A>(rows, p_.qk_dim, seen.end - seen.begin, {t.ds + r * kBlockK + seen.begin, kBlockK},
                          t.k + seen.begin * p_.qk_dim, p_.qk_dim, t.sum_first + r * p_.qk_dim, p_.qk_dim);
  }

  void grad_kv() {
    const core::TaskOrder order = key_tasks(p_);
    parallel(order.count(), [&](std::int64_t index, int worker) {
      const core::Task task = order[index];
      const std::int64_t first_head = task.head * p_.group();
      const Head owner(p_, task.sequence, first_head);
      const core::Tiling tiling = key_tiling(p_, owner.s);
      if (task.tile >= tiling.count()) return;
      const Tile keys = tiling[task.tile];
      const BackwardTiles<A> t = tiles_of(worker);
      BackwardTile<T> tile(p_, t, delta_);
      const std::int64_t count = keys.end - keys.begin;
      std::fill_n(t.sum_first, count * p_.qk_dim, A{0});
      std::fill_n(t.sum_second, count * p_.v_dim, A{0});
      tile.load_keys(owner, keys);
      for (std::int64_t q_head = first_head; q_head < first_head + p_.group(); ++q_head) {
        const Head head(p_, task.sequence, q_head);
        core::for_each_query_tile(p_, head.s, q_head, keys.begin, keys.end, kBlockQ, [&](const Tile& rows) {
          tile.load_queries(head, rows);
          const std::int64_t rows_count = rows.end - rows.begin;
          if (tile.recompute(head, rows, keys, rows.kind)) {
            issue_dkv(t, 0, rows_count, {0, count});
          } else {
            for (std::int64_t r = 0; r < rows_count; ++r) issue_dkv(t, r, 1, t.seen[r]);
          }
        });
      }
      // q came scaled, so dK needs no further factor.
      if (p_.has_grad_k) {
        store_rows<T>(keys.begin, keys.end, p_.qk_dim, A{1}, t.sum_first,
                      [&](std::int64_t j) { return owner.key_row<T>(p_.grad_k, j); });
      }
      if (p_.has_grad_v) {
        store_rows<T>(keys.begin, keys.end, p_.v_dim, A{1}, t.sum_second,
                      [&](std::int64_t j) { return owner.key_row<T>(p_.grad_v, j); });
      }
    });
  }

  // dK += dS^T Q and dV += P^T dO over `rows` rows from r, for the columns that they see.
  void issue_dkv(const BackwardTiles<A>& t, std::int64_t r, std::int64_t rows, const Tile& seen) {
    const std::int64_t count = seen.end - seen.begin, at = r * kBlockK + seen.begin;
    accumulate_product<A>(count, p_.qk_dim, rows, {t.ds + at, 1, kBlockK}, t.q + r * p_.qk_dim, p_.qk_dim,
                          t.sum_first + seen.begin * p_.qk_dim, p_.qk_dim);
    accumulate_product<A>(count, p_.v_dim, rows, {t.p + at, 1, kBlockK}, t.grad_out + r * p_.v_dim, p_.v_dim,
                          t.sum_second + seen.begin * p_.v_dim, p_.v_dim);
  }

  // The bias is cut into tiles of queries x keys; each task sums dS over the sequences, heads and (if rows
  // were broadcast) queries that share its tile. Packed sequences may be shorter than the bias.
  void grad_bias() {
    const bool all_rows = p_.bias_rows == 1;
    const core::Tiling row_tiling{all_rows ? 1 : p_.bias_rows, kBlockQ, p_.blocks ? p_.blocks.block_q : 0};
    const core::Tiling key_tiles{p_.k_length, kBlockK, p_.blocks ? p_.blocks.block_k : 0};
    const std::int64_t row_tiles = row_tiling.count(), columns = key_tiles.count();
    parallel(p_.bias_batch * p_.bias_heads * row_tiles * columns, [&](std::int64_t index, int worker) {
      const BackwardTiles<A> t = tiles_of(worker);
      const Tile keys = key_tiles[index % columns];
      const Tile bias_rows = row_tiling[index / columns % row_tiles];
      const std::int64_t owner = index / columns / row_tiles;
      const std::int64_t bias_head = owner % p_.bias_heads, bias_batch = owner / p_.bias_heads;
      const std::int64_t width = keys.end - keys.begin;
      std::fill_n(t.sum_first, (bias_rows.end - bias_rows.begin) * kBlockK, A{0});
      for (std::int64_t b = bias_batch; b < p_.batch; b += p_.bias_batch) {
        for (std::int64_t h = bias_head; h < p_.q_heads; h += p_.bias_heads) {
          add_bias_gradient(Head(p_, b, h), all_rows, bias_rows, keys, t);
        }
      }
      core::with_type(p_.bias_dtype, [&]<typename B>() {
        for (std::int64_t r = bias_rows.begin; r < bias_rows.end; ++r) {
          B* target = p_.grad_bias.row<B>(bias_batch, bias_head, r) + keys.begin;
          const A* sum = t.sum_first + (r - bias_rows.begin) * kBlockK;
          for (std::int64_t x = 0; x < width; ++x) {
            target[x] = Element<B>::store(static_cast<Accumulator<B>>(sum[x]));
          }
        }
      });
    });
  }

  void add_bias_gradient(const Head& head, bool all_rows, const Tile& bias_rows, const Tile& bias_keys,
                         const BackwardTiles<A>& t) {
    const Tile keys{bias_keys.begin, std::min(bias_keys.end, head.s.k_length)};
    if (keys.begin >= keys.end) return;
    BackwardTile<T> tile(p_, t, delta_);
    tile.load_keys(head, keys);
    core::for_each_query_tile(p_, head.s, head.q_head, keys.begin, keys.end, kBlockQ, [&](Tile rows) {
      if (!all_rows) {
        rows.begin = std::max(rows.begin, bias_rows.begin);
        rows.end = std::min(rows.end, bias_rows.end);
        if (rows.begin >= rows.end) return;
      }
      tile.load_queries(head, rows);
      tile.recompute(head, rows, keys, rows.kind, true);
      for (std::int64_t r = 0; r < rows.end - rows.begin; ++r) {
        A* sum = t.sum_first + (all_rows ? 0 : rows.begin + r - bias_rows.begin) * kBlockK;
        const A* ds = t.ds + r * kBlockK;
        for (std::int64_t x = t.seen[r].begin; x < t.seen[r].end; ++x) sum[x] += ds[x];
      }
    });
  }

  const core::Problem& p_;
  const registry::Configuration& configuration_;
  const registry::Resources& resources_;
  Delta<A> delta_{};
  std::byte* worker_memory_ = nullptr;
};

}  // namespace

registry::Configuration flash2_backward_configuration(const core::Problem& p, int workers) {
  return core::with_type(p.dtype, [&]<typename T>() {
    return flash2_configuration(p, workers, Backward<T>::worker_bytes(p), Backward<T>::shared_bytes(p));
  });
}

void flash2_backward(const core::Problem& p, const registry::Configuration& configuration,
                     const registry::Resources& resources) {
  core::with_type(p.dtype, [&]<typename T>() { Backward<T>(p, configuration, resources).run(); });
}

}  // namespace tessera::cpu::portable
