// The gradient of a bias, for every vector instruction set: a pass of its own over the scores.
//
//   d(bias) = sum of dS (before softcap's derivative) over all that the bias was broadcast to
//
// A task owns a tile of the bias, rows x keys, and goes over the sequences and heads (and, where
// the rows were broadcast, all queries) that share it: every sum has one owner and a fixed order,
// whatever the number of threads. dS comes from the tile of backward_tile-inl.h, rows in lanes.
// Sums stay in that layout and are transposed once, at the end.
//
// Cost: two of the five products of backward. Traffic: Q, O, dO once per tile of keys, K and V once
// per tile of rows, for each head; the bias and its gradient once. Memory per worker: the tile and
// the sums.
//
// Included once per target.
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/visibility.h"
#include "cpu/flash2/bias_gradient.h"
#include "cpu/flash2/vector/backward_tile-inl.h"
#include "cpu/head_view.h"
#include "cpu/machine/arena.h"

// clang-format off
#if defined(TESSERA_CPU_SIMD_BIAS_GRADIENT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_SIMD_BIAS_GRADIENT_INL_H
#undef TESSERA_CPU_SIMD_BIAS_GRADIENT_INL_H
#else
#define TESSERA_CPU_SIMD_BIAS_GRADIENT_INL_H
#endif
// clang-format on

#if HWY_TARGET != HWY_SCALAR  // Target::portable is plain C++
HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

// Keys per step.
inline constexpr std::int64_t kBiasStep = 128;

// How the bias is cut into tiles. A tile of one broadcast row has fewer keys: it has no other rows
// to share the work with.
template <typename A>
struct BiasTiling {
  bool all_rows;  // one row for all queries
  core::Tiling rows;
  core::Tiling keys;

  explicit BiasTiling(const core::Problem& p)
      : all_rows(p.bias_rows == 1),
        rows{p.bias_rows, backward_tile_rows<A>(), p.blocks ? p.blocks.block_q : 0},
        keys{p.k_length, (all_rows ? 1 : 4) * kBiasStep, 0} {}

  // Sums of one key: one per row of the tile, or one per lane.
  [[nodiscard]] std::int64_t sum_row() const { return all_rows ? lanes<A>() : backward_tile_rows<A>(); }
};

// The memory of one worker.
template <typename A>
struct BiasMemory {
  BackwardTileMemory<A> tile;
  A *k, *v;
  A* sum;   // keys of a tile x sum_row
  A* line;  // one row of the gradient, transposed squares of them

  BiasMemory(Arena& arena, const core::Problem& p) : BiasMemory(arena, p, BiasTiling<A>(p)) {}

 private:
  BiasMemory(Arena& arena, const core::Problem& p, const BiasTiling<A>& tiling)
      : tile(arena, p, kBiasStep),
        k(arena.take<A>(tiling.keys.tile * p.qk_dim)),
        v(arena.take<A>(tiling.keys.tile * p.v_dim)),
        sum(arena.take<A>(tiling.keys.tile * tiling.sum_row())),
        line(arena.take<A>(tiling.keys.tile * (tiling.all_rows ? 1 : backward_tile_rows<A>()))) {}
};

// One tile of the bias.
template <typename T>
class BiasTile {
  using A = core::Accumulator<T>;

 public:
  BiasTile(const core::Problem& p, const BiasTiling<A>& tiling, const core::Interval& rows,
           const core::Interval& keys, const BiasMemory<A>& memory)
      : p_(p), tiling_(tiling), rows_(rows), keys_(keys), t_(memory) {
    std::fill_n(t_.sum, keys.length() * tiling.sum_row(), A{0});
  }

  // Adds dS of one head of one sequence, which may be shorter than the bias.
  void add(const HeadView& head) {
    const core::Interval keys{keys_.begin, std::min(keys_.end, head.s.k_length)};
    if (keys.empty()) return;
    KeyRange<A> range = key_range<T>(head, keys, t_.k, t_.v);
    range.finite = all_finite(range, p_);
    if (!tiling_.all_rows) {
      const core::Interval rows{rows_.begin, std::min(rows_.end, head.s.q_length)};
      if (!rows.empty()) add(head, rows, range);
      return;
    }
    const core::Tiling rows{head.s.q_length, backward_tile_rows<A>(), tiling_.rows.block};
    for (std::int64_t i = 0; i < rows.count(); ++i) add(head, rows[i], range);
  }

  void store(std::int64_t bias_batch, std::int64_t bias_head) {
    const std::int64_t count = keys_.length(), rows = rows_.length();
    if (tiling_.all_rows) {
      const Tag<A> d;
      for (std::int64_t x = 0; x < count; ++x) {
        t_.line[x] = hn::GetLane(hn::SumOfLanes(d, hn::LoadU(d, t_.sum + x * lanes<A>())));
      }
    } else {
      transpose(t_.sum, tiling_.sum_row(), count, rows, t_.line, count);
    }
    core::with_type(p_.bias_dtype, [&]<typename B>() HWY_ATTR {
      for (std::int64_t r = 0; r < rows; ++r) {
        const A* from = t_.line + r * count;
        B* to = p_.grad_bias.template row<B>(bias_batch, bias_head, rows_.begin + r) + keys_.begin;
        if constexpr (std::is_same_v<core::Accumulator<B>, A>) {
          store_row(from, count, A{1}, to);
        } else {
          for (std::int64_t x = 0; x < count; ++x) {
            to[x] = core::Element<B>::store(static_cast<core::Accumulator<B>>(from[x]));
          }
        }
      }
    });
  }

 private:
  void add(const HeadView& head, const core::Interval& rows, const KeyRange<A>& range) {
    BackwardTile<A> tile(head, rows, range, t_.tile);
    bool loaded = false;
    core::for_each_tile(core::visible_keys(p_, head.s, head.q_head, rows), range.keys, kBiasStep,
                        [&](const core::TileRange& part) HWY_ATTR {
                          if (!loaded) tile.template pack_queries<T>();
                          loaded = true;
                          if (tile.recompute(part, true)) add_tile(part, tile.width(), tile.line());
                        });
  }

  // Rows that do not count (past the end, or with all scores at -inf) may hold 0 * NaN; their LSE
  // is +inf here.
  void add_tile(const core::Interval& part, std::int64_t width, std::int64_t stride) {
    const Tag<A> d;
    const Vector<A> infinite = hn::Set(d, std::numeric_limits<A>::infinity());
    for (std::int64_t x = 0; x < part.length(); ++x) {
      const A* ds = t_.tile.ds + x * stride;
      A* sum = t_.sum + (part.begin - keys_.begin + x) * tiling_.sum_row();
      for (std::int64_t lane = 0; lane < width; lane += lanes<A>()) {
        A* to = tiling_.all_rows ? sum : sum + lane;
        const auto idle = hn::Eq(hn::LoadU(d, t_.tile.lse + lane), infinite);
        const Vector<A> term = hn::IfThenZeroElse(idle, hn::LoadU(d, ds + lane));
        hn::StoreU(hn::Add(hn::LoadU(d, to), term), d, to);
      }
    }
  }

  const core::Problem& p_;
  const BiasTiling<A>& tiling_;
  core::Interval rows_, keys_;
  const BiasMemory<A>& t_;
};

template <typename T>
void bias_gradient_task(const core::Problem& p, std::int64_t task, std::byte* memory) {
  using A = core::Accumulator<T>;
  Arena arena(memory);
  const BiasMemory<A> memory_of_task(arena, p);
  const BiasTiling<A> tiling(p);
  const std::int64_t columns = tiling.keys.count(), row_tiles = tiling.rows.count();
  const std::int64_t owner = task / columns / row_tiles;
  const std::int64_t bias_head = owner % p.bias_heads, bias_batch = owner / p.bias_heads;
  BiasTile<T> tile(p, tiling, tiling.rows[task / columns % row_tiles], tiling.keys[task % columns],
                   memory_of_task);
  const std::int64_t batch = p.q_length > 0 ? p.batch : 0;  // heads without queries add nothing
  for (std::int64_t b = bias_batch; b < batch; b += p.bias_batch) {
    for (std::int64_t h = bias_head; h < p.q_heads; h += p.bias_heads) tile.add(HeadView(p, b, h));
  }
  tile.store(bias_batch, bias_head);
}

constexpr BiasGradientOps bias_gradient_ops() {
  return {.tasks =
              [](const core::Problem& p) {
                return core::with_type(p.dtype, [&]<typename T>() HWY_ATTR {
                  const BiasTiling<core::Accumulator<T>> tiling(p);
                  return p.bias_batch * p.bias_heads * tiling.rows.count() * tiling.keys.count();
                });
              },
          .worker_bytes =
              [](const core::Problem& p) {
                Arena arena;
                core::with_type(p.dtype,
                                [&]<typename T>() HWY_ATTR { BiasMemory<core::Accumulator<T>>(arena, p); });
                return arena.used();
              },
          .run_task =
              [](const core::Problem& p, std::int64_t task, std::byte* memory) {
                core::with_type(p.dtype,
                                [&]<typename T>() HWY_ATTR { bias_gradient_task<T>(p, task, memory); });
              }};
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target include guard
