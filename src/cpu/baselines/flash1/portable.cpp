// cpu.flash1 in portable C++: FlashAttention's algorithms 1 and 4, blocks of keys outside, tiles of queries
// inside. Output, maximum and sum of each row (backward: dQ) are arrays of accumulators in memory, read and
// written at every step; the output is normalised after each. A task is one head (backward: one key/value head
// with its group). See simd/flash1_forward-inl.h and simd/flash1_backward-inl.h, which do the same on vectors.
#include "cpu/baselines/flash1/portable.h"

#include <algorithm>

#include "cpu/flash2/portable/backward_tile.h"
#include "cpu/flash2/portable/engine.h"
#include "cpu/flash2/portable/small_gemm.h"
#include "cpu/head.h"
#include "cpu/machine/arena.h"
#include "cpu/machine/cpu_info.h"
#include "cpu/machine/parallel_for.h"

namespace tessera::cpu::portable {
namespace {

using core::RowStatistics;

core::Choice choice_for(const core::Problem& p, std::int64_t heads, int workers, std::size_t bytes_per_worker,
                        std::size_t shared_bytes) {
  const int useful = static_cast<int>(std::clamp<std::int64_t>(p.batch * heads, 1, workers));
  return {.block_q = kBlockQ,
          .block_k = kBlockK,
          .shared_memory_bytes = 0,
          .workspace_bytes = core::workspace_bytes(shared_bytes, bytes_per_worker, useful),
          .workers = useful,
          .traffic_cache_bytes = static_cast<double>(caches().l2)};
}

// ---- forward ---------------------------------------------------------------------------------------------

// The memory of one worker.
template <typename A>
struct ForwardMemory {
  A* q;             // block_q x d_qk, scaled
  A* k_transposed;  // d_qk x block_k
  A* v;             // block_k x d_v
  A* s;             // block_q x block_k: scores, then probabilities
  A* o;             // all rows of a head x d_v: normalised output
  RowStatistics<A>* statistics;

  ForwardMemory(Arena& arena, const core::Problem& p)
      : q(arena.take<A>(kBlockQ * p.qk_dim)),
        k_transposed(arena.take<A>(p.qk_dim * kBlockK)),
        v(arena.take<A>(kBlockK * p.v_dim)),
        s(arena.take<A>(kBlockQ * kBlockK)),
        o(arena.take<A>(p.q_length * p.v_dim)),
        statistics(arena.take<RowStatistics<A>>(p.q_length)) {}
};

template <typename T>
class ForwardHead {
  using A = Accumulator<T>;

 public:
  ForwardHead(const Head& head, const ForwardMemory<A>& memory) : head_(head), p_(head.p), t_(memory) {}

  void run() {
    std::fill_n(t_.o, head_.s.q_length * p_.v_dim, A{0});
    std::fill_n(t_.statistics, head_.s.q_length, RowStatistics<A>{});
    const core::Tiling key_blocks = key_tiling(p_, head_.s);
    for (std::int64_t b = 0; b < key_blocks.count(); ++b) {
      const Tile keys = key_blocks[b];
      load_keys(keys);
      core::for_each_query_tile(p_, head_.s, head_.q_head, keys.begin, keys.end, kBlockQ,
                                [&](const Tile& rows) { step(rows, keys); });
    }
    for (std::int64_t i = 0; i < head_.s.q_length; ++i) {
      store_rows<T>(i, i + 1, p_.v_dim, A{1}, t_.o + i * p_.v_dim,
                    [&](std::int64_t) { return head_.query_row<T>(p_.out, i); });
      if (p_.has_lse) *head_.query_row<A>(p_.lse, i) = t_.statistics[i].lse();
    }
  }

 private:
  void load_keys(const Tile& keys) {
    load_transposed<T>(
        keys.begin, keys.end, p_.qk_dim, [&](std::int64_t j) { return head_.key_row<const T>(p_.k, j); },
        t_.k_transposed, kBlockK);
    load_rows<T>(
        keys.begin, keys.end, p_.v_dim, A{1}, [&](std::int64_t j) { return head_.key_row<const T>(p_.v, j); },
        t_.v);
    careful_ = p_.has_bias && !all_finite(t_.v, (keys.end - keys.begin) * p_.v_dim);
  }

  void step(const Tile& rows, const Tile& keys) {
    load_rows<T>(
        rows.begin, rows.end, p_.qk_dim, static_cast<A>(p_.scale),
        [&](std::int64_t i) { return head_.query_row<const T>(p_.q, i); }, t_.q);
    const std::int64_t count = rows.end - rows.begin, width = keys.end - keys.begin;
    for (std::int64_t r = 0; r < count; ++r) std::fill_n(t_.s + r * kBlockK, width, A{0});
    accumulate_product<A>(count, width, p_.qk_dim, {t_.q, p_.qk_dim}, t_.k_transposed, kBlockK, t_.s,
                          kBlockK);
    for (std::int64_t r = 0; r < count; ++r) {
      const std::int64_t i = rows.begin + r;
      const Tile seen = rows.kind == TileKind::full ? keys : head_.visible(i, keys.begin, keys.end);
      if (seen.begin == seen.end) continue;
      update(i, seen, t_.s + r * kBlockK + (seen.begin - keys.begin),
             t_.v + (seen.begin - keys.begin) * p_.v_dim);
    }
  }

  // O = (l e^(m - m_new) O + P V) / l_new for one row. What it does not see is never touched, so that a NaN
  // among the values reaches only the rows that attend to it.
  void update(std::int64_t i, const Tile& seen, A* s, const A* v) {
    const std::int64_t width = seen.end - seen.begin;
    RowStatistics<A>& statistics = t_.statistics[i];
    A* o = t_.o + i * p_.v_dim;
    finish_scores(head_, i, seen.begin, seen.end, s);
    A maximum = s[0];
    for (std::int64_t x = 1; x < width; ++x) maximum = s[x] <= maximum ? maximum : s[x];
    statistics.raise(maximum);
    for (std::int64_t c = 0; c < p_.v_dim; ++c) o[c] *= statistics.sum;  // already l e^(m - m_new)
    A sum = 0;
    for (std::int64_t x = 0; x < width; ++x) {
      s[x] = core::exp_relative(s[x], statistics.maximum);
      sum += s[x];
    }
    statistics.sum += sum;
    if (p_.dropout) apply_dropout(head_, i, seen.begin, seen.end, s);
    const auto product = careful_ ? accumulate_visible<A> : accumulate_product<A>;
    product(1, p_.v_dim, width, {s, kBlockK}, v, p_.v_dim, o, p_.v_dim);
    const A normaliser = statistics.normaliser();
    for (std::int64_t c = 0; c < p_.v_dim; ++c) o[c] *= normaliser;
  }

  const Head& head_;
  const core::Problem& p_;
  const ForwardMemory<A>& t_;
  bool careful_ = false;  // the bias may hide a value that is not finite
};

template <typename T>
std::size_t forward_bytes(const core::Problem& p) {
  Arena arena;
  ForwardMemory<Accumulator<T>>(arena, p);
  return arena.used();
}

// ---- backward --------------------------------------------------------------------------------------------

// The memory of one worker.
template <typename A>
struct BackwardMemory {
  BackwardTiles<A> tiles;
  A* grad_q;  // all rows of a group x d_qk

  BackwardMemory(Arena& arena, const core::Problem& p)
      : tiles(arena, p), grad_q(arena.take<A>(p.kv_heads == 0 ? 0 : p.group(), p.q_length, p.qk_dim)) {}
};

template <typename T>
void backward_task(const core::Problem& p, std::int64_t task, const BackwardMemory<Accumulator<T>>& memory,
                   const Delta<Accumulator<T>>& delta) {
  using A = Accumulator<T>;
  const BackwardTiles<A>& t = memory.tiles;
  const std::int64_t first_head = task % p.kv_heads * p.group();
  const Head owner(p, task / p.kv_heads, first_head);
  const std::int64_t q_length = owner.s.q_length;
  std::fill_n(memory.grad_q, p.group() * q_length * p.qk_dim, A{0});
  BackwardTile<T> tile(p, t, delta);
  const core::Tiling key_blocks = key_tiling(p, owner.s);
  for (std::int64_t b = 0; b < key_blocks.count(); ++b) {
    const Tile keys = key_blocks[b];
    tile.load_keys(owner, keys);
    std::fill_n(t.sum_first, (keys.end - keys.begin) * p.qk_dim, A{0});
    std::fill_n(t.sum_second, (keys.end - keys.begin) * p.v_dim, A{0});
    for (std::int64_t g = 0; g < p.group(); ++g) {
      const Head head(p, owner.s.index, first_head + g);
      core::for_each_query_tile(p, head.s, head.q_head, keys.begin, keys.end, kBlockQ, [&](const Tile& rows) {
        tile.load_queries(head, rows);
        for (std::int64_t i = rows.begin; i < rows.end; ++i) *delta.row(head, i) = row_delta<T>(head, i);
        const bool dense = tile.recompute(head, rows, keys, rows.kind);
        tile.issue_dq(dense, rows, keys, memory.grad_q + (g * q_length + rows.begin) * p.qk_dim);
        tile.issue_dkv(dense, rows, keys, t.sum_first, t.sum_second);
      });
    }
    if (p.has_grad_k) {  // q came scaled: dK needs no further factor
      store_rows<T>(keys.begin, keys.end, p.qk_dim, A{1}, t.sum_first,
                    [&](std::int64_t j) { return owner.key_row<T>(p.grad_k, j); });
    }
    if (p.has_grad_v) {
      store_rows<T>(keys.begin, keys.end, p.v_dim, A{1}, t.sum_second,
                    [&](std::int64_t j) { return owner.key_row<T>(p.grad_v, j); });
    }
  }
  for (std::int64_t g = 0; g < p.group() && p.has_grad_q; ++g) {
    const Head head(p, owner.s.index, first_head + g);
    store_rows<T>(0, q_length, p.qk_dim, static_cast<A>(p.scale), memory.grad_q + g * q_length * p.qk_dim,
                  [&](std::int64_t i) { return head.query_row<T>(p.grad_q, i); });
  }
}

template <typename T>
std::size_t backward_bytes(const core::Problem& p) {
  Arena arena;
  BackwardMemory<Accumulator<T>>(arena, p);
  return arena.used();
}

template <typename T>
std::size_t delta_bytes(const core::Problem& p) {
  Arena arena;
  arena.take<Accumulator<T>>(p.q_tokens, p.q_heads);
  return arena.used();
}

}  // namespace

core::Choice flash1_forward_choice(const core::Problem& p, int workers) {
  return core::with_type(
      p.dtype, [&]<typename T>() { return choice_for(p, p.q_heads, workers, forward_bytes<T>(p), 0); });
}

core::Choice flash1_backward_choice(const core::Problem& p, int workers) {
  core::Choice result = core::with_type(p.dtype, [&]<typename T>() {
    return choice_for(p, p.kv_heads, workers, backward_bytes<T>(p), delta_bytes<T>(p));
  });
  if (p.has_grad_bias) {
    const std::size_t bytes = flash2_backward_choice(p, result.workers).workspace_bytes;
    result.workspace_bytes = std::max(result.workspace_bytes, bytes);
  }
  return result;
}

void flash1_forward(const core::Problem& p, const core::Choice& choice, const core::Resources& resources) {
  core::with_type(p.dtype, [&]<typename T>() {
    const std::size_t bytes = forward_bytes<T>(p);
    parallel_for(*resources.executor, choice.workers, p.batch * p.q_heads,
                 [&](std::int64_t task, int worker) {
                   Arena arena(resources.workspace + bytes * static_cast<std::size_t>(worker));
                   const ForwardMemory<Accumulator<T>> memory(arena, p);
                   ForwardHead<T>(Head(p, task / p.q_heads, task % p.q_heads), memory).run();
                 });
  });
}

void flash1_backward(const core::Problem& p, const core::Choice& choice, const core::Resources& resources) {
  core::with_type(p.dtype, [&]<typename T>() {
    if (!p.has_grad_q && !p.has_grad_k && !p.has_grad_v) return;
    const Delta<Accumulator<T>> delta{reinterpret_cast<Accumulator<T>*>(resources.workspace)};
    const std::size_t bytes = backward_bytes<T>(p);
    std::byte* memory = resources.workspace + delta_bytes<T>(p);
    parallel_for(*resources.executor, choice.workers, p.batch * p.kv_heads,
                 [&](std::int64_t task, int worker) {
                   Arena arena(memory + bytes * static_cast<std::size_t>(worker));
                   backward_task<T>(p, task, BackwardMemory<Accumulator<T>>(arena, p), delta);
                 });
  });
  if (p.has_grad_bias) {  // a pass of its own: every sum of d(bias) has one owner
    core::Problem bias_only = p;
    bias_only.has_grad_q = bias_only.has_grad_k = bias_only.has_grad_v = false;
    flash2_backward(bias_only, choice, resources);
  }
}

}  // namespace tessera::cpu::portable
