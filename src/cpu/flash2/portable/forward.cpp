// cpu.flash2, forward, in portable C++ for CPUs without a vector instruction set that we use. Queries outside: a task is one tile of queries of one head; it walks over the tiles of
// keys that they see and keeps maximum, sum and output of each row at hand until the end.
//
//   for each tile of keys:   issue_qk -> (softcap, bias, ALiBi) -> apply_mask -> online_softmax -> rescale
//                            -> issue_pv
//   finalize:                divide by the sum, write output and LSE once
//
// Traffic: Q and O once; K and V once per tile of queries, from the cache where a head fits. Memory besides
// the tensors: the tiles of each worker, independent of both sequence lengths.
#include "core/task_order.h"
#include "cpu/flash2/portable/engine.h"
#include "cpu/flash2/portable/small_gemm.h"
#include "cpu/head.h"
#include "cpu/machine/arena.h"
#include "cpu/machine/parallel_for.h"

namespace tessera::cpu::portable {
namespace {

using core::RowStatistics;
using core::Tile;
using core::TileKind;

// The tiles of one worker.
template <typename A>
struct ForwardTiles {
  A* q;             // block_q x d_qk, scaled
  A* k_transposed;  // d_qk x block_k
  A* v;             // block_k x d_v
  A* s;             // block_q x block_k: scores, then probabilities
  A* o;             // block_q x d_v: output, not yet normalised
  RowStatistics<A>* statistics;

  ForwardTiles(Arena& arena, const core::Problem& p)
      : q(arena.take<A>(kBlockQ * p.qk_dim)),
        k_transposed(arena.take<A>(p.qk_dim * kBlockK)),
        v(arena.take<A>(kBlockK * p.v_dim)),
        s(arena.take<A>(kBlockQ * kBlockK)),
        o(arena.take<A>(kBlockQ * p.v_dim)),
        statistics(arena.take<RowStatistics<A>>(kBlockQ)) {}
};

template <typename T>
class ForwardTask {
  using A = Accumulator<T>;

 public:
  ForwardTask(const Head& head, Tile rows, const ForwardTiles<A>& tiles)
      : head_(head), p_(head.p), rows_(rows), t_(tiles) {}

  void run() {
    load_rows<T>(
        rows_.begin, rows_.end, p_.qk_dim, static_cast<A>(p_.scale),
        [&](std::int64_t i) { return head_.query_row<const T>(p_.q, i); }, t_.q);
    std::fill_n(t_.o, count() * p_.v_dim, A{0});
    std::fill_n(t_.statistics, count(), RowStatistics<A>{});
    core::for_each_key_tile(p_, head_.s, head_.q_head, rows_.begin, rows_.end, kBlockK,
                            [&](const Tile& keys) { step(keys); });
    finalize();
  }

 private:
  [[nodiscard]] std::int64_t count() const { return rows_.end - rows_.begin; }

  void step(const Tile& keys) {
    issue_qk(keys);
    load_rows<T>(
        keys.begin, keys.end, p_.v_dim, A{1}, [&](std::int64_t j) { return head_.key_row<const T>(p_.v, j); },
        t_.v);
    careful_ = p_.has_bias && !all_finite(t_.v, (keys.end - keys.begin) * p_.v_dim);
    for (std::int64_t r = 0; r < count(); ++r) {
      const std::int64_t i = rows_.begin + r;
      const Tile seen = apply_mask(i, keys);
      if (seen.begin == seen.end) continue;
      A* s = t_.s + r * kBlockK + (seen.begin - keys.begin);
      finish_scores(head_, i, seen.begin, seen.end, s);
      rescale(r, online_softmax(t_.statistics[r], s, seen.end - seen.begin));
      if (p_.dropout) apply_dropout(head_, i, seen.begin, seen.end, s);
      if (keys.kind == TileKind::partial) {
        issue_pv(r, 1, seen.begin - keys.begin, seen.end - seen.begin);
      }
    }
    if (keys.kind == TileKind::full) issue_pv(0, count(), 0, keys.end - keys.begin);
  }

  // s = q k^T for the whole tile.
  void issue_qk(const Tile& keys) {
    const std::int64_t width = keys.end - keys.begin;
    load_transposed<T>(
        keys.begin, keys.end, p_.qk_dim, [&](std::int64_t j) { return head_.key_row<const T>(p_.k, j); },
        t_.k_transposed, kBlockK);
    for (std::int64_t r = 0; r < count(); ++r) std::fill_n(t_.s + r * kBlockK, width, A{0});
    accumulate_product<A>(count(), width, p_.qk_dim, {t_.q, p_.qk_dim}, t_.k_transposed, kBlockK, t_.s,
                          kBlockK);
  }

  // The columns of the tile that row i sees. What it does not see is never touched again, so that a NaN
  // among the values reaches only the rows that attend to it.
  [[nodiscard]] Tile apply_mask(std::int64_t i, const Tile& keys) const {
    if (keys.kind == TileKind::full) return keys;
    return head_.visible(i, keys.begin, keys.end);
  }

  // Scores become exp(score - maximum); returns the factor for what was accumulated so far.
  static A online_softmax(RowStatistics<A>& statistics, A* s, std::int64_t width) {
    A maximum = s[0];
    for (std::int64_t x = 1; x < width; ++x) maximum = s[x] <= maximum ? maximum : s[x];
    const A factor = statistics.raise(maximum);
    A sum = 0;
    for (std::int64_t x = 0; x < width; ++x) {
      s[x] = core::exp_relative(s[x], statistics.maximum);
      sum += s[x];
    }
    statistics.sum += sum;
    return factor;
  }

  void rescale(std::int64_t r, A factor) {
    if (factor == A{1}) return;
    A* o = t_.o + r * p_.v_dim;
    for (std::int64_t c = 0; c < p_.v_dim; ++c) o[c] *= factor;
  }

  // o += p v for `rows` rows from r, over `width` columns of the tile from `first`.
  void issue_pv(std::int64_t r, std::int64_t rows, std::int64_t first, std::int64_t width) {
    const auto product = careful_ ? accumulate_visible<A> : accumulate_product<A>;
    product(rows, p_.v_dim, width, {t_.s + r * kBlockK + first, kBlockK}, t_.v + first * p_.v_dim, p_.v_dim,
            t_.o + r * p_.v_dim, p_.v_dim);
  }

  void finalize() {
    for (std::int64_t r = 0; r < count(); ++r) {
      const std::int64_t i = rows_.begin + r;
      store_rows<T>(0, 1, p_.v_dim, t_.statistics[r].normaliser(), t_.o + r * p_.v_dim,
                    [&](std::int64_t) { return head_.query_row<T>(p_.out, i); });
      if (p_.has_lse) *head_.query_row<A>(p_.lse, i) = t_.statistics[r].lse();
    }
  }

  const Head& head_;
  const core::Problem& p_;
  Tile rows_;
  const ForwardTiles<A>& t_;
  bool careful_ = false;  // the bias may hide a value that is not finite
};

template <typename T>
std::size_t tile_bytes(const core::Problem& p) {
  Arena arena;
  ForwardTiles<Accumulator<T>>(arena, p);
  return arena.used();
}

}  // namespace

core::Choice flash2_forward_choice(const core::Problem& p, int workers) {
  const std::size_t bytes = core::with_type(p.dtype, [&]<typename T>() { return tile_bytes<T>(p); });
  return flash2_choice(p, workers, bytes, 0);
}

void flash2_forward(const core::Problem& p, const core::Choice& choice, const core::Resources& resources) {
  core::with_type(p.dtype, [&]<typename T>() {
    const std::size_t bytes = tile_bytes<T>(p);
    const core::TaskOrder order = query_tasks(p);
    parallel_for(*resources.executor, choice.workers, order.count(), [&](std::int64_t index, int worker) {
      const core::Task task = order[index];
      const Head head(p, task.sequence, task.head);
      const core::Tiling tiling = query_tiling(p, head.s);
      if (task.tile >= tiling.count()) return;  // packed: a shorter sequence
      Arena arena(resources.workspace + bytes * static_cast<std::size_t>(worker));
      const ForwardTiles<Accumulator<T>> tiles(arena, p);
      ForwardTask<T>(head, tiling[task.tile], tiles).run();
    });
  });
}

}  // namespace tessera::cpu::portable
