// cpu.flash2, forward, in plain C++, for CPUs without a vector instruction set that we use: the
// schedule of flash2/forward_driver.h. A tile of queries meets one tile of keys after the other and
// keeps maximum, sum and output of each row until the end.
//
//   for each tile of keys:   multiply_qk -> (softcap, bias, ALiBi) -> mask -> online_softmax
//                            -> rescale -> multiply_pv
//   at the end:              divide by the sum, write output and LSE once
//
// Traffic: Q and O once; K and V once per tile of queries, from the cache where a head fits. Memory
// per worker: the tiles, independent of both sequence lengths.
#include <algorithm>

#include "core/online_softmax.h"
#include "core/visibility.h"
#include "cpu/flash2/forward_driver.h"
#include "cpu/flash2/portable/scores.h"
#include "cpu/flash2/portable/small_gemm.h"
#include "cpu/rows.h"

namespace tessera::cpu::portable {
namespace {

using core::Interval;
using core::RowStatistics;
using core::TileKind;
using core::TileRange;

// Queries per tile: the scores and the operands stay within a second-level cache.
constexpr std::int64_t kTileRows = 64;

// The tiles of one worker.
template <typename A>
struct ForwardTiles {
  std::int64_t block_k;
  A* q;             // tile rows x d_qk, scaled
  A* k_transposed;  // d_qk x block_k
  A* v;             // block_k x d_v
  A* s;             // tile rows x block_k: scores, then probabilities
  A* o;             // tile rows x d_v: output, not yet normalised
  RowStatistics<A>* statistics;

  ForwardTiles(Arena& arena, const core::Problem& p, const ForwardPlan& plan)
      : block_k(plan.block_k),
        q(arena.take<A>(kTileRows * p.qk_dim)),
        k_transposed(arena.take<A>(p.qk_dim * block_k)),
        v(arena.take<A>(block_k * p.v_dim)),
        s(arena.take<A>(kTileRows * block_k)),
        o(arena.take<A>(kTileRows * p.v_dim)),
        statistics(arena.take<RowStatistics<A>>(kTileRows)) {}
};

template <typename T>
class ForwardTile {
  using A = core::Accumulator<T>;

 public:
  ForwardTile(const HeadView& head, const Interval& rows, const ForwardTiles<A>& tiles)
      : head_(head), p_(head.p), rows_(rows), t_(tiles) {}

  void run(std::int64_t block_k) {
    load_rows<T>(
        rows_, p_.qk_dim, static_cast<A>(p_.scale),
        [&](std::int64_t i) { return head_.query_row<const T>(p_.q, i); }, t_.q);
    std::fill_n(t_.o, count() * p_.v_dim, A{0});
    std::fill_n(t_.statistics, count(), RowStatistics<A>{});
    core::for_each_tile(core::visible_keys(p_, head_.s, head_.q_head, rows_), block_k,
                        [&](const TileRange& keys) { step(keys); });
    store();
  }

 private:
  [[nodiscard]] std::int64_t count() const { return rows_.length(); }

  void step(const TileRange& keys) {
    multiply_qk(keys);
    load_rows<T>(keys, p_.v_dim, A{1}, [&](std::int64_t j) { return head_.key_row<const T>(p_.v, j); }, t_.v);
    skip_zeros_ = (p_.has_bias || p_.has_visible) && !all_finite(t_.v, keys.length() * p_.v_dim);
    for (std::int64_t r = 0; r < count(); ++r) {
      const std::int64_t i = rows_.begin + r;
      // Columns that the row does not see are never touched: a NaN among the values reaches only
      // rows that attend to it.
      const Interval visible = visible_to_row(head_, i, keys);
      if (visible.empty()) continue;
      A* s = t_.s + r * t_.block_k + (visible.begin - keys.begin);
      apply_score_features(head_, i, visible, s);
      rescale(r, online_softmax(t_.statistics[r], s, visible.length()));
      if (p_.dropout) apply_dropout(head_, i, visible, s);
      if (keys.kind == TileKind::partial) multiply_pv(r, 1, visible.begin - keys.begin, visible.length());
    }
    if (keys.kind == TileKind::full) multiply_pv(0, count(), 0, keys.length());
  }

  // s = q k^T for the whole tile.
  void multiply_qk(const Interval& keys) {
    const std::int64_t width = keys.length();
    load_transposed<T>(
        keys, p_.qk_dim, [&](std::int64_t j) { return head_.key_row<const T>(p_.k, j); }, t_.k_transposed,
        t_.block_k);
    for (std::int64_t r = 0; r < count(); ++r) std::fill_n(t_.s + r * t_.block_k, width, A{0});
    accumulate_product<A>(count(), width, p_.qk_dim, {t_.q, p_.qk_dim}, t_.k_transposed, t_.block_k, t_.s,
                          t_.block_k);
  }

  // Scores become exp(score - maximum); returns the factor for what the row has accumulated so far.
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
  void multiply_pv(std::int64_t r, std::int64_t rows, std::int64_t first, std::int64_t width) {
    const auto product = skip_zeros_ ? accumulate_nonzero<A> : accumulate_product<A>;
    product(rows, p_.v_dim, width, {t_.s + r * t_.block_k + first, t_.block_k}, t_.v + first * p_.v_dim,
            p_.v_dim, t_.o + r * p_.v_dim, p_.v_dim);
  }

  void store() {
    for (std::int64_t r = 0; r < count(); ++r) {
      const std::int64_t i = rows_.begin + r;
      store_rows<T>({i, i + 1}, p_.v_dim, t_.statistics[r].normaliser(), t_.o + r * p_.v_dim,
                    [&](std::int64_t row) { return head_.query_row<T>(p_.out, row); });
      if (p_.has_lse) *head_.query_row<A>(p_.lse, i) = t_.statistics[r].lse();
    }
  }

  const HeadView& head_;
  const core::Problem& p_;
  Interval rows_;
  const ForwardTiles<A>& t_;
  bool skip_zeros_ = false;  // bias or mask may hide a non-finite value
};

// The Ops of flash2/forward_driver.h. K and V are converted tile by tile, so nothing is cached.
template <typename T>
class Forward {
  using A = core::Accumulator<T>;

 public:
  using Memory = ForwardTiles<A>;

  static std::int64_t tile_rows() { return kTileRows; }

  Forward(const core::Problem& /*p*/, const ForwardPlan& /*plan*/, const Memory& memory) : memory_(memory) {}

  void load_keys(const HeadView& /*head*/, bool /*cached*/) {}

  // A row never touches what it does not see: once is enough.
  bool run_tile(const HeadView& head, const Interval& rows, std::int64_t block_k, bool /*skip_zeros*/) {
    ForwardTile<T>(head, rows, memory_).run(block_k);
    return true;
  }

 private:
  const Memory& memory_;
};

}  // namespace

extern const ForwardOps kForwardOps;
constinit const ForwardOps kForwardOps = forward_ops<Forward>();

}  // namespace tessera::cpu::portable
