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

#include "core/task_order.h"
#include "cpu/flash2/portable/backward_tile.h"
#include "cpu/flash2/portable/engine.h"
#include "cpu/head.h"
#include "cpu/machine/arena.h"
#include "cpu/machine/parallel_for.h"

namespace tessera::cpu::portable {
namespace {

using core::Tile;

template <typename T>
class Backward {
  using A = Accumulator<T>;

 public:
  Backward(const core::Problem& p, const core::Choice& choice, const core::Resources& resources)
      : p_(p), choice_(choice), resources_(resources) {
    Arena arena(resources.workspace);
    delta_ = {arena.take<A>(p.q_tokens, p.q_heads)};
    worker_memory_ = resources.workspace == nullptr ? nullptr : resources.workspace + arena.used();
  }

  static std::size_t worker_bytes(const core::Problem& p) {
    Arena arena;
    BackwardTiles<A>(arena, p);
    return arena.used();
  }

  static std::size_t shared_bytes(const core::Problem& p) {
    Arena arena;
    arena.take<A>(p.q_tokens, p.q_heads);
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
    parallel_for(*resources_.executor, choice_.workers, tasks, body);
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
      for (std::int64_t i = rows.begin; i < rows.end; ++i) *delta_.row(head, i) = row_delta<T>(head, i);
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
        const bool dense = tile.recompute(head, rows, keys, keys.kind);
        tile.issue_dq(dense, rows, keys, t.sum_first);
      });
      store_rows<T>(rows.begin, rows.end, p_.qk_dim, static_cast<A>(p_.scale), t.sum_first,
                    [&](std::int64_t i) { return head.query_row<T>(p_.grad_q, i); });
    });
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
          const bool dense = tile.recompute(head, rows, keys, rows.kind);
          tile.issue_dkv(dense, rows, keys, t.sum_first, t.sum_second);
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
      const std::int64_t batch = p_.q_length > 0 ? p_.batch : 0;  // heads without queries add nothing
      for (std::int64_t b = bias_batch; b < batch; b += p_.bias_batch) {
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
  const core::Choice& choice_;
  const core::Resources& resources_;
  Delta<A> delta_{};
  std::byte* worker_memory_ = nullptr;
};

}  // namespace

core::Choice flash2_backward_choice(const core::Problem& p, int workers) {
  return core::with_type(p.dtype, [&]<typename T>() {
    return flash2_choice(p, workers, Backward<T>::worker_bytes(p), Backward<T>::shared_bytes(p));
  });
}

void flash2_backward(const core::Problem& p, const core::Choice& choice, const core::Resources& resources) {
  core::with_type(p.dtype, [&]<typename T>() { Backward<T>(p, choice, resources).run(); });
}

}  // namespace tessera::cpu::portable
