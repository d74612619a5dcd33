// cpu.flash2, backward, in plain C++, for CPUs without a vector instruction set that we use: the
// schedule of flash2/backward_driver.h.
//
//   P = exp(S - LSE),  dS = P o (dropout(dO V^T) - delta)
//   dQ += dS K,  dV += P^T dO,  dK += dS^T Q
//
// Traffic: K, V, dK, dV of a task's keys once per tile of queries, from the cache where they fit;
// Q, dO, O, dQ once. Memory per worker: the tiles, and K, V, dK and dV of the task's keys.
#include <algorithm>

#include "core/visibility.h"
#include "cpu/flash2/backward_driver.h"
#include "cpu/flash2/bias_gradient.h"
#include "cpu/flash2/portable/backward_tile.h"

namespace tessera::cpu::portable {
namespace {

template <typename A>
struct BackwardMemory {
  PackedQueries<A> queries;  // of heads that are not split
  PackedKeys<A> keys;
  BackwardTiles<A> tiles;
  A *grad_k, *grad_v;  // the task's keys x head_dim

  BackwardMemory(Arena& arena, const core::Problem& p, const BackwardPlan& plan)
      : queries(arena, p, plan.unsplit_heads > 0 ? kBackwardTileRows : 0),
        keys(arena, p, largest_task(p, plan).range.end),
        tiles(arena, p, plan.block_k),
        grad_k(arena.take<A>(keys.room * p.qk_dim)),
        grad_v(arena.take<A>(keys.room * p.v_dim)) {}
};

// The Ops of flash2/backward_driver.h. dQ lies in rows of d_qk.
template <typename T>
class Backward {
  using A = core::Accumulator<T>;

 public:
  using Accumulator = A;
  using Memory = BackwardMemory<A>;

  static std::int64_t tile_rows() { return kBackwardTileRows; }

  static void take_queries(Arena& arena, const core::Problem& p, std::int64_t rows) {
    const PackedQueries<A> taken(arena, p, rows);
  }

  static std::int64_t grad_q_size(const core::Problem& p, std::int64_t rows) { return p.qk_dim * rows; }

  static void pack(const HeadView& head, const Interval& rows, std::byte* slot, const BackwardPlan& plan) {
    Arena arena(slot);
    pack_queries<T>(head, rows, PackedQueries<A>(arena, head.p, plan.slot_rows));
  }

  static void add(const A* from, std::int64_t count, A* to) {
    for (std::int64_t x = 0; x < count; ++x) to[x] += from[x];
  }

  static GradQPart part_of(const core::Problem& p, std::int64_t /*tile_rows*/, std::int64_t first,
                           std::int64_t count) {
    return {.offset = first * p.qk_dim, .lines = count, .width = p.qk_dim, .stride = p.qk_dim};
  }

  static void add_lines(const GradQLines<A>& left, const GradQLines<A>& right, const GradQPart& part, A* to) {
    for (std::int64_t line = 0; line < part.lines; ++line) {
      for (std::int64_t c = 0; c < part.width; ++c) {
        to[line * part.width + c] = left.data[line * left.stride + c] + right.data[line * right.stride + c];
      }
    }
  }

  static void store_part(const HeadView& head, std::int64_t first_row, std::int64_t count,
                         const GradQLines<A>& sum, A* rows) {
    if (sum.data == nullptr) std::fill_n(rows, count * head.p.qk_dim, A{0});
    store_grad_q(head, {first_row, first_row + count}, sum.data == nullptr ? rows : sum.data);
  }

  Backward(const core::Problem& p, const BackwardPlan& plan, const Memory& memory)
      : p_(p), plan_(plan), t_(memory) {}

  void load_keys(const HeadView& owner, const TaskKeys& keys) {
    range_ = keys.range;
    pack_keys<T>(owner, range_, t_.keys);
    std::fill_n(t_.grad_k, range_.length() * p_.qk_dim, A{0});
    std::fill_n(t_.grad_v, range_.length() * p_.v_dim, A{0});
  }

  // Q came scaled, so dK needs no further factor.
  void store_grad_kv(const HeadView& owner) const {
    if (p_.has_grad_k) {
      store_rows<T>(range_, p_.qk_dim, A{1}, t_.grad_k,
                    [&](std::int64_t j) { return owner.key_row<T>(p_.grad_k, j); });
    }
    if (p_.has_grad_v) {
      store_rows<T>(range_, p_.v_dim, A{1}, t_.grad_v,
                    [&](std::int64_t j) { return owner.key_row<T>(p_.grad_v, j); });
    }
  }

  class Tile {
   public:
    Tile(const Backward& task, const HeadView& head, const Interval& rows)
        : Tile(task, head, rows, task.t_.queries) {
      pack_queries<T>(head, rows, queries_);
    }
    Tile(const Backward& task, const HeadView& head, const Interval& rows, std::byte* slot)
        : Tile(task, head, rows, packed_in(task, slot)) {}
    Tile(const Tile&) = delete;
    Tile& operator=(const Tile&) = delete;

    [[nodiscard]] std::int64_t grad_q_size() const { return task_.p_.qk_dim * rows_.length(); }

    void step(const TileRange& keys, A* grad_q, bool first) {
      if (first) std::fill_n(grad_q, grad_q_size(), A{0});
      tile_.recompute(keys, false);
      tile_.add_dq(keys, grad_q);
      tile_.add_dkv(keys, task_.t_.grad_k, task_.t_.grad_v);
    }

    void store_grad_q(const A* grad_q) const { Backward::store_grad_q(head_, rows_, grad_q); }

   private:
    Tile(const Backward& task, const HeadView& head, const Interval& rows, const PackedQueries<A>& queries)
        : task_(task),
          head_(head),
          rows_(rows),
          queries_(queries),
          tile_(head, rows, queries_, task.range_, task.t_.keys, task.t_.tiles) {}

    static PackedQueries<A> packed_in(const Backward& task, std::byte* slot) {
      Arena arena(slot);
      return PackedQueries<A>(arena, task.p_, task.plan_.slot_rows);
    }

    const Backward& task_;
    const HeadView& head_;
    Interval rows_;
    PackedQueries<A> queries_;
    BackwardTile<A> tile_;
  };

 private:
  static void store_grad_q(const HeadView& head, const Interval& rows, const A* grad_q) {
    store_rows<T>(rows, head.p.qk_dim, static_cast<A>(head.p.scale), grad_q,
                  [&](std::int64_t i) { return head.query_row<T>(head.p.grad_q, i); });
  }

  const core::Problem& p_;
  const BackwardPlan& plan_;
  const Memory& t_;
  Interval range_;
};

// ---- the gradient of a bias ---------------------------------------------------------------------

// A task owns a tile of the bias, queries x keys. It sums dS over the sequences, heads and (if rows
// were broadcast) queries that share the tile. Packed sequences may be shorter than the bias.
constexpr std::int64_t kBiasKeys = 128;

core::Tiling bias_rows(const core::Problem& p) {
  return {p.bias_rows, kBackwardTileRows, p.blocks ? p.blocks.block_q : 0};
}
core::Tiling bias_keys(const core::Problem& p) { return {p.k_length, kBiasKeys, 0}; }

template <typename A>
struct BiasMemory {
  PackedQueries<A> queries;
  PackedKeys<A> keys;
  BackwardTiles<A> tiles;
  A* sum;  // tile rows x kBiasKeys

  BiasMemory(Arena& arena, const core::Problem& p)
      : queries(arena, p, kBackwardTileRows),
        keys(arena, p, kBiasKeys),
        tiles(arena, p, kBiasKeys),
        sum(arena.take<A>(kBackwardTileRows * kBiasKeys)) {}
};

template <typename T>
class BiasTile {
  using A = core::Accumulator<T>;

 public:
  BiasTile(const core::Problem& p, const Interval& rows, const Interval& keys, const BiasMemory<A>& memory)
      : p_(p), rows_(rows), keys_(keys), t_(memory) {
    std::fill_n(t_.sum, rows.length() * kBiasKeys, A{0});
  }

  // Adds dS of one head of one sequence.
  void add(const HeadView& head) {
    const Interval keys{keys_.begin, std::min(keys_.end, head.s.k_length)};
    if (keys.empty()) return;
    pack_keys<T>(head, keys, t_.keys);
    if (p_.bias_rows != 1) {
      const Interval rows{rows_.begin, std::min(rows_.end, head.s.q_length)};
      if (!rows.empty()) add(head, rows, keys);
      return;
    }
    const core::Tiling tiling{head.s.q_length, kBackwardTileRows, p_.blocks ? p_.blocks.block_q : 0};
    for (std::int64_t t = 0; t < tiling.count(); ++t) add(head, tiling[t], keys);
  }

  void store(std::int64_t bias_batch, std::int64_t bias_head) const {
    core::with_type(p_.bias_dtype, [&]<typename B>() {
      for (std::int64_t i = rows_.begin; i < rows_.end; ++i) {
        B* to = p_.grad_bias.row<B>(bias_batch, bias_head, i) + keys_.begin;
        const A* sum = t_.sum + (i - rows_.begin) * kBiasKeys;
        for (std::int64_t x = 0; x < keys_.length(); ++x) {
          to[x] = core::Element<B>::store(static_cast<core::Accumulator<B>>(sum[x]));
        }
      }
    });
  }

 private:
  void add(const HeadView& head, const Interval& rows, const Interval& range) {
    const core::VisibleSpan span = core::visible_keys(p_, head.s, head.q_head, rows);
    if (!core::any_visible(span, range)) return;
    pack_queries<T>(head, rows, t_.queries);
    BackwardTile<A> tile(head, rows, t_.queries, range, t_.keys, t_.tiles);
    core::for_each_tile(span, range, kBiasKeys, [&](const TileRange& keys) {
      tile.recompute(keys, true);
      for (std::int64_t r = 0; r < rows.length(); ++r) {
        const std::int64_t line = p_.bias_rows == 1 ? 0 : rows.begin + r - rows_.begin;
        A* sum = t_.sum + line * kBiasKeys + (keys.begin - keys_.begin);
        const A* ds = t_.tiles.ds + r * kBiasKeys;
        for (std::int64_t x = t_.tiles.visible[r].begin; x < t_.tiles.visible[r].end; ++x) sum[x] += ds[x];
      }
    });
  }

  const core::Problem& p_;
  Interval rows_, keys_;
  const BiasMemory<A>& t_;
};

template <typename T>
void bias_gradient_task(const core::Problem& p, std::int64_t task, std::byte* bytes) {
  Arena arena(bytes);
  const BiasMemory<core::Accumulator<T>> memory(arena, p);
  const core::Tiling rows = bias_rows(p), keys = bias_keys(p);
  const std::int64_t owner = task / keys.count() / rows.count();
  const std::int64_t bias_head = owner % p.bias_heads, bias_batch = owner / p.bias_heads;
  BiasTile<T> tile(p, rows[task / keys.count() % rows.count()], keys[task % keys.count()], memory);
  const std::int64_t batch = p.q_length > 0 ? p.batch : 0;  // heads without queries add nothing
  for (std::int64_t b = bias_batch; b < batch; b += p.bias_batch) {
    for (std::int64_t h = bias_head; h < p.q_heads; h += p.bias_heads) tile.add(HeadView(p, b, h));
  }
  tile.store(bias_batch, bias_head);
}

}  // namespace

extern const BackwardOps kBackwardOps;
constinit const BackwardOps kBackwardOps = backward_ops<Backward>();

extern const BiasGradientOps kBiasGradientOps;
constinit const BiasGradientOps kBiasGradientOps{
    .tasks =
        [](const core::Problem& p) {
          return p.bias_batch * p.bias_heads * bias_rows(p).count() * bias_keys(p).count();
        },
    .worker_bytes =
        [](const core::Problem& p) {
          Arena arena;
          core::with_type(p.dtype, [&]<typename T>() { BiasMemory<core::Accumulator<T>>(arena, p); });
          return arena.used();
        },
    .run_task =
        [](const core::Problem& p, std::int64_t task, std::byte* memory) {
          core::with_type(p.dtype, [&]<typename T>() { bias_gradient_task<T>(p, task, memory); });
        }};

}  // namespace tessera::cpu::portable
