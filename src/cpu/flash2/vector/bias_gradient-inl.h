// The gradient of a bias, for every vector instruction set: a pass of its own over the scores.
//
//   d(bias) = sum of dS (before softcap's derivative) over everything that the bias was broadcast to
//
// A task owns a tile of the bias, rows x keys, and walks over the sequences and heads (and, where the rows were
// broadcast, all queries) that share it: every sum has one owner and a fixed order, whatever the number of
// threads. dS comes from the tile of gradient_tile-inl.h, rows in lanes; sums stay in that layout and are
// transposed once, at the end.
//
// Cost: two of the five products of backward. Traffic: Q, O, dO once per tile of keys, K and V once per tile of
// rows, for each head; the bias and its gradient once. Memory per worker: the tile and the sums.
//
// Included once per target.
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/visibility.h"
#include "cpu/flash2/vector/backward_tile-inl.h"
#include "cpu/flash2/vector/bias_gradient.h"
#include "cpu/head.h"
#include "cpu/machine/arena.h"

// clang-format off
#if defined(TESSERA_CPU_SIMD_BIAS_GRADIENT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_SIMD_BIAS_GRADIENT_INL_H
#undef TESSERA_CPU_SIMD_BIAS_GRADIENT_INL_H
#else
#define TESSERA_CPU_SIMD_BIAS_GRADIENT_INL_H
#endif
// clang-format on

#if HWY_TARGET != HWY_SCALAR  // the portable kernel serves there
HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

// Keys per step.
inline constexpr std::int64_t kBiasStep = 128;

// How the bias is cut into tiles. A tile of one broadcast row has fewer keys: there are no others to share the
// work with.
template <typename A>
struct BiasTiling {
  bool all_rows;  // one row for all queries
  core::Tiling rows;
  core::Tiling keys;

  explicit BiasTiling(const core::Problem& p)
      : all_rows(p.bias_rows == 1),
        rows{p.bias_rows, gradient_tile_rows<A>(), p.blocks ? p.blocks.block_q : 0},
        keys{p.k_length, (all_rows ? 1 : 4) * kBiasStep, 0} {}

  // What a line of sums has per key: one per row of the tile, or one per lane.
  [[nodiscard]] std::int64_t sum_row() const { return all_rows ? lanes<A>() : gradient_tile_rows<A>(); }
};

// The memory of one worker.
template <typename A>
struct BiasScratch {
  GradientMemory<A> tile;
  A *k, *v;
  A* sum;   // keys of a tile x sum_row
  A* line;  // one row of the gradient, transposed squares of them

  BiasScratch(Arena& arena, const core::Problem& p) : BiasScratch(arena, p, BiasTiling<A>(p)) {}

 private:
  BiasScratch(Arena& arena, const core::Problem& p, const BiasTiling<A>& tiling)
      : tile(arena, p, kBiasStep),
        k(arena.take<A>(tiling.keys.tile * p.qk_dim)),
        v(arena.take<A>(tiling.keys.tile * p.v_dim)),
        sum(arena.take<A>(tiling.keys.tile * tiling.sum_row())),
        line(arena.take<A>(tiling.keys.tile * (tiling.all_rows ? 1 : gradient_tile_rows<A>()))) {}
};

// One tile of the bias.
template <typename T>
class BiasTile {
  using A = core::Accumulator<T>;

 public:
  BiasTile(const core::Problem& p, const BiasTiling<A>& tiling, const core::Tile& rows,
           const core::Tile& keys, const BiasScratch<A>& scratch)
      : p_(p), tiling_(tiling), rows_(rows), keys_(keys), t_(scratch) {
    std::fill_n(t_.sum, (keys.end - keys.begin) * tiling.sum_row(), A{0});
  }

  // Adds dS of one head of one sequence, which may be shorter than the bias.
  void add(const Head& head) {
    const core::Tile keys{keys_.begin, std::min(keys_.end, head.s.k_length)};
    if (keys.begin >= keys.end) return;
    KeyBlock<A> block = key_block<T>(head, keys, t_.k, t_.v);
    block.finite = all_finite(block, p_);
    if (!tiling_.all_rows) {
      const core::Tile rows{rows_.begin, std::min(rows_.end, head.s.q_length)};
      if (rows.begin < rows.end) add(head, rows, block);
      return;
    }
    const core::Tiling rows{head.s.q_length, gradient_tile_rows<A>(), tiling_.rows.block};
    for (std::int64_t i = 0; i < rows.count(); ++i) add(head, rows[i], block);
  }

  void store(std::int64_t bias_batch, std::int64_t bias_head) {
    const std::int64_t count = keys_.end - keys_.begin, rows = rows_.end - rows_.begin;
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
  void add(const Head& head, const core::Tile& rows, const KeyBlock<A>& block) {
    GradientTile<A> tile(head, rows, block, t_.tile);
    bool loaded = false;
    core::for_each_key_tile_within(p_, head.s, head.q_head, rows.begin, rows.end, block.keys, kBiasStep,
                                   [&](const core::Tile& part) HWY_ATTR {
                                     if (!loaded) tile.template load_queries<T>();
                                     loaded = true;
                                     tile.recompute(part, true);
                                     add_tile(part, tile.width(), tile.line());
                                   });
  }

  // Rows that count for nothing (past the end, or with everything at -inf: their LSE is +inf here) may hold
  // 0 * NaN.
  void add_tile(const core::Tile& part, std::int64_t width, std::int64_t stride) {
    const Tag<A> d;
    const Vector<A> infinite = hn::Set(d, std::numeric_limits<A>::infinity());
    for (std::int64_t x = 0; x < part.end - part.begin; ++x) {
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
  core::Tile rows_, keys_;
  const BiasScratch<A>& t_;
};

template <typename T>
void bias_gradient_task(const core::Problem& p, std::int64_t task, std::byte* memory) {
  using A = core::Accumulator<T>;
  Arena arena(memory);
  const BiasScratch<A> scratch(arena, p);
  const BiasTiling<A> tiling(p);
  const std::int64_t columns = tiling.keys.count(), row_tiles = tiling.rows.count();
  const std::int64_t owner = task / columns / row_tiles;
  const std::int64_t bias_head = owner % p.bias_heads, bias_batch = owner / p.bias_heads;
  BiasTile<T> tile(p, tiling, tiling.rows[task / columns % row_tiles], tiling.keys[task % columns], scratch);
  const std::int64_t batch = p.q_length > 0 ? p.batch : 0;  // heads without queries add nothing
  for (std::int64_t b = bias_batch; b < batch; b += p.bias_batch) {
    for (std::int64_t h = bias_head; h < p.q_heads; h += p.bias_heads) tile.add(Head(p, b, h));
  }
  tile.store(bias_batch, bias_head);
}

void run_bias_gradient_task(const core::Problem& p, std::int64_t task, std::byte* memory) {
  core::with_type(p.dtype, [&]<typename T>() HWY_ATTR { bias_gradient_task<T>(p, task, memory); });
}

template <typename A>
std::int64_t bias_gradient_tasks_of(const core::Problem& p) {
  const BiasTiling<A> tiling(p);
  return p.bias_batch * p.bias_heads * tiling.rows.count() * tiling.keys.count();
}

std::int64_t bias_gradient_tasks(const core::Problem& p) {
  return p.dtype == DType::fp64 ? bias_gradient_tasks_of<double>(p) : bias_gradient_tasks_of<float>(p);
}

std::size_t bias_gradient_worker_bytes(const core::Problem& p) {
  Arena arena;
  if (p.dtype == DType::fp64) {
    BiasScratch<double>(arena, p);
  } else {
    BiasScratch<float>(arena, p);
  }
  return arena.used();
}

inline constexpr BiasGradientEngine kBiasGradientEngine{bias_gradient_tasks, bias_gradient_worker_bytes,
                                                        run_bias_gradient_task};

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target include guard
