// cpu.flash2, forward, for bf16 on a unit that multiplies bf16: the schedule of simd/flash2_forward-inl.h with
// products over pairs.
//
//   S^T = K Q^T             A: rows of K as they are; B: pairs along head_dim x rows of queries
//   P^T = 2^(c (S^T - max))  fp32 lane by lane, rounded to bf16: pairs of keys x rows of queries
//   O^T += V^T P^T          A: V transposed, packed once per head
//
// Units follow the unit's grain: contractions over keys start and end at multiples of Unit::kDepth, where the
// scores outside the step are -inf. Memory per worker: the tiles, and K and V of one head packed as bf16.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/flash2/bf16/pairs-inl.h"
#include "cpu/flash2/forward_plan.h"
#include "cpu/flash2/vector/product-inl.h"
#include "cpu/flash2/vector/scores-inl.h"
#include "cpu/head.h"
#include "cpu/machine/arena.h"

TESSERA_BF16_BEGIN
namespace tessera::cpu::HWY_NAMESPACE::bf16 {

inline constexpr std::int64_t kForwardRows = 64;  // queries per tile

template <typename Unit>
struct ForwardScratch {
  std::int64_t* held;          // which head k and v hold, counted from 1; first, for it must start as 0
  std::int64_t qk_row, v_row;  // head_dims in whole units
  std::uint16_t* q_rows;       // tile rows x qk_row
  Pair* q;                     // qk_row / 2 x tile rows
  float* o;                    // v_row x tile rows: outputs, not yet normalised
  float* o_rows;               // tile rows x v_dim
  float* s;                    // block_k (and what alignment adds) x tile rows
  Pair* p;                     // half as many
  float *bias, *bias_row;
  float *maximum, *sum;   // per row
  std::uint16_t* k;       // keys x qk_row
  Pair* v;                // transposed
  std::uint16_t* staged;  // a few keys' rows of V on their way there

  ForwardScratch(Arena& arena, const core::Problem& problem, const ForwardPlan& plan) {
    constexpr std::int64_t kTile = kForwardRows;
    const std::int64_t lines = round_up(plan.block_k, Unit::kRowStep) + Unit::kDepth + Unit::kRowStep;
    held = arena.take<std::int64_t>(1);
    qk_row = round_up(problem.qk_dim, Unit::kDepth);
    v_row = round_up(problem.v_dim, Unit::kRowStep);
    const std::int64_t keys = padded_keys<Unit>(problem.k_length);
    q_rows = arena.take<std::uint16_t>(kTile * qk_row);
    q = arena.take<Pair>(qk_row / 2 * kTile);
    o = arena.take<float>(v_row * kTile);
    o_rows = arena.take<float>(kTile * problem.v_dim);
    s = arena.take<float>(lines * kTile);
    p = arena.take<Pair>(lines / 2 * kTile);
    bias = arena.take<float>(problem.has_bias ? lines * kTile : 0);
    bias_row = arena.take<float>(problem.has_bias ? plan.block_k * kSquare<float> : 0);
    maximum = arena.take<float>(kTile);
    sum = arena.take<float>(kTile);
    k = arena.take<std::uint16_t>(keys * qk_row);
    v = arena.take<Pair>(Unit::transposed_size(keys, v_row));
    staged = arena.take<std::uint16_t>(kStagedKeys * v_row);
  }
};

// One tile of queries of one head.
template <typename Unit>
class ForwardTile {
 public:
  ForwardTile(const Head& head, core::Tile rows, const ForwardScratch<Unit>& scratch, std::int64_t block_k)
      : head_(head),
        p_(head.p),
        rows_(rows),
        t_(scratch),
        block_k_(block_k),
        width_(round_up(rows.end - rows.begin, Unit::kStrip * kLanes)),
        vectors_(width_ / kLanes),
        v_stride_(Unit::transposed_stride(scratch.v_row)),
        scaled_(has_features(head.p) || head.p.scale == 0),
        scale_(static_cast<float>(std::abs(head.p.scale))) {}

  // Fills out and LSE. Returns false when the output is not finite: a NaN or infinity among the values may
  // then have reached a row that does not see it, as 0 * NaN; `careful` keeps to what each row sees.
  bool run(bool careful) {
    careful_ = careful;
    load_queries();
    next_queries_ = RowQueue(head_.query_row<const BFloat16>(p_.q, rows_.end), p_.q.row_stride,
                             std::min(kForwardRows, head_.s.q_length - rows_.end), p_.qk_dim);
    outputs_ = RowQueue(head_.query_row<const BFloat16>(p_.out, rows_.begin), p_.out.row_stride,
                        rows_.end - rows_.begin, p_.v_dim);
    std::memset(t_.o, 0, static_cast<std::size_t>(t_.v_row * width_) * sizeof(float));
    std::fill_n(t_.maximum, width_, std::numeric_limits<float>::lowest());
    std::fill_n(t_.sum, width_, 0.0F);
    core::for_each_key_tile(p_, head_.s, head_.q_head, rows_.begin, rows_.end, block_k_,
                            [&](const core::Tile& keys) TESSERA_BF16_ATTR { visit(keys); });
    return finalize();
  }

 private:
  // Q times the sign of the scale, as pairs in lanes; lanes past the end are 0.
  void load_queries() {
    const std::int64_t count = rows_.end - rows_.begin;
    const PackedRows rows{t_.q_rows, t_.qk_row};
    copy_rows(count, p_.qk_dim, p_.scale < 0 ? 0x8000 : 0, rows, [&](std::int64_t r) TESSERA_BF16_ATTR {
      return head_.query_row<const BFloat16>(p_.q, rows_.begin + r);
    });
    std::memset(t_.q_rows + count * t_.qk_row, 0,
                static_cast<std::size_t>((width_ - count) * t_.qk_row) * sizeof(std::uint16_t));
    transpose_pairs(rows, width_, t_.q, width_);
  }

  // A full tile takes all vectors of rows at once. Around the diagonal each strip of vectors takes what it sees.
  void visit(const core::Tile& keys) {
    if (keys.kind == core::TileKind::full) return step(keys, 0, vectors_, false);
    for (std::int64_t v = 0; v < vectors_; v += Unit::kStrip) {
      const std::int64_t begin = rows_.begin + v * kLanes;
      if (begin >= rows_.end) break;
      const core::VisibleRange seen = core::visible_range(
          head_.s.band, begin, std::min(begin + Unit::kStrip * kLanes, rows_.end), head_.s.k_length);
      const core::Tile part{std::clamp(seen.begin, keys.begin, keys.end),
                            std::clamp(seen.end, keys.begin, keys.end)};
      if (part.begin >= part.end) continue;
      step(part, v, Unit::kStrip, seen.kind(part.begin, part.end) != core::TileKind::full);
    }
  }

  void step(const core::Tile& keys, std::int64_t first_vector, std::int64_t vectors, bool masked) {
    if constexpr (Unit::kStrip == 1) {
      if (vectors == 1) return step_of<1>(keys, first_vector, masked);
      if (vectors == 3) return step_of<3>(keys, first_vector, masked);
    }
    if (vectors == 2) return step_of<2>(keys, first_vector, masked);
    return step_of<4>(keys, first_vector, masked);
  }

  template <int Vectors>
  HWY_NOINLINE void step_of(const core::Tile& keys, std::int64_t first_vector, bool masked) {
    constexpr std::int64_t kWidth = Vectors * kLanes;
    const std::int64_t lane = first_vector * kLanes, count = keys.end - keys.begin;
    // Lines of S and P begin at a key that the unit can begin with.
    const std::int64_t base = round_down(keys.begin, Unit::kDepth), lead = keys.begin - base;
    const std::int64_t lines = round_up(lead + count, Unit::kDepth);
    float* scores = t_.s + lead * kWidth;
    alignas(64) float maximum[kWidth];
    std::fill_n(maximum, kWidth, std::numeric_limits<float>::lowest());
    issue_qk<Vectors>(keys, lane, scores, maximum);
    if (scaled_ || masked) {
      std::fill_n(maximum, kWidth, std::numeric_limits<float>::lowest());
      const ScoreBlock<float> block{scores, kWidth, Vectors, rows_.begin + lane, keys};
      if (p_.has_bias) load_bias(head_, block, rows_.end, t_.bias_row, t_.bias);
      finish_scores<float>(head_, block, masked, p_.has_bias ? t_.bias : nullptr, maximum, nullptr);
    }
    std::fill_n(t_.s, lead * kWidth, core::kMinusInfinity<float>);
    std::fill_n(scores + count * kWidth, (lines - lead - count) * kWidth, core::kMinusInfinity<float>);
    alignas(64) float alpha[kWidth];
    const bool raised = raise_maximum<Vectors>(lane, maximum, alpha);
    if (p_.dropout) {
      exponentiate<Vectors, false>(lines, lane);
      apply_dropout(head_, ScoreBlock<float>{scores, kWidth, Vectors, rows_.begin + lane, keys});
      for (std::int64_t i = 0; i < lines; i += 2) {
        for (int v = 0; v < Vectors; ++v) {
          const float* from = t_.s + i * kWidth + v * kLanes;
          _mm512_storeu_si512(probabilities<Vectors>(lines, v) + i / 2 * kPanelWidth<Vectors>,
                              to_pairs(_mm512_loadu_ps(from), _mm512_loadu_ps(from + kWidth)));
        }
      }
    } else {
      exponentiate<Vectors, true>(lines, lane);
    }
    const Pair* values = t_.v + Unit::transposed_offset(v_stride_, base);
    if (careful_ && (masked || lines != count || p_.has_bias)) {
      issue_pv_careful<Vectors>(values, lines / 2, lane, raised ? alpha : nullptr);
    } else {
      const core::Tile all{0, lines / 2};
      for (int v = 0; v < Vectors; v += static_cast<int>(kPanelWidth<Vectors> / kLanes)) {
        const Accumulators outputs{t_.o + lane + v * kLanes, width_, kPanelLanes<Unit>,
                                   raised ? alpha + v * kLanes : nullptr};
        Unit::template accumulate<Walk::columns>(
            values, v_stride_, probabilities<Vectors>(lines, v), kPanelWidth<Vectors>, outputs, p_.v_dim,
            kPanelWidth<Vectors> / kLanes, [&](std::int64_t, std::int64_t) TESSERA_BF16_ATTR { return all; });
      }
    }
  }

  // s = k q (scaled, where features want it), and the largest score of each lane.
  template <int Vectors>
  HWY_INLINE void issue_qk(const core::Tile& keys, std::int64_t lane, float* s, float* maximum) {
    constexpr std::int64_t kWidth = Vectors * kLanes;
    const std::int64_t count = keys.end - keys.begin;
    const __m512 factor = _mm512_set1_ps(scaled_ ? scale_ : 1.0F);
    const bool scaled = scaled_;
    RowQueue *next_queries = &next_queries_, *outputs = &outputs_;
    Unit::template product<Vectors>(
        reinterpret_cast<const Pair*>(t_.k + keys.begin * t_.qk_row), t_.qk_row / 2, t_.q + lane, width_,
        t_.qk_row / 2, round_up(count, 2), s, kWidth,
        [=]<int Rows, int Columns>(std::int64_t row, int vector, __m512(&sum)[Rows][Columns])
            TESSERA_BF16_ATTR {
              next_queries->ask();
              outputs->ask();
#pragma GCC unroll 8
              for (int v = 0; v < Columns; ++v) {
                float* to = s + row * kWidth + (vector + v) * kLanes;
                __m512 largest = _mm512_loadu_ps(maximum + (vector + v) * kLanes);
#pragma GCC unroll 8
                for (int r = 0; r < Rows; ++r) {
                  const __m512 x = scaled ? _mm512_mul_ps(sum[r][v], factor) : sum[r][v];
                  if (scaled || !Unit::kStoresSums) _mm512_storeu_ps(to + r * kWidth, x);
                  if (row + r < count) largest = _mm512_max_ps(x, largest);
                }
                _mm512_storeu_ps(maximum + (vector + v) * kLanes, largest);
              }
            });
  }

  // P lies in panels as wide as accumulators', one after the other: pairs of vector v, kPanelWidth apart.
  template <int Vectors>
  static constexpr std::int64_t kPanelWidth = std::min<std::int64_t>(Vectors, Unit::kPanel) * kLanes;
  template <int Vectors>
  [[nodiscard]] Pair* probabilities(std::int64_t lines, int v) const {
    constexpr std::int64_t kPanel = kPanelWidth<Vectors>;
    return t_.p + round_down(v * kLanes, kPanel) * lines / 2 + v * kLanes % kPanel;
  }

  // Scores to units of log2.
  [[nodiscard]] float unit_scale() const { return scaled_ ? kLog2E : scale_ * kLog2E; }

  // The running maximum after a step whose largest scores are given. Returns whether one rose; `alpha` is then the
  // factor for what was accumulated before.
  template <int Vectors>
  HWY_INLINE bool raise_maximum(std::int64_t lane, const float* largest, float* alpha) {
    const __m512 c = _mm512_set1_ps(unit_scale());
    __mmask16 raised = 0;
    for (int v = 0; v < Vectors; ++v) {
      float* maximum = t_.maximum + lane + v * kLanes;
      float* sum = t_.sum + lane + v * kLanes;
      const __m512 before = _mm512_loadu_ps(maximum);
      const __m512 now = _mm512_max_ps(_mm512_loadu_ps(largest + v * kLanes), before);
      const __m512 factor = exp2(_mm512_mul_ps(_mm512_sub_ps(before, now), c));
      raised |= _mm512_cmp_ps_mask(now, before, _CMP_GT_OQ);
      _mm512_storeu_ps(alpha + v * kLanes, factor);
      _mm512_storeu_ps(maximum, now);
      _mm512_storeu_ps(sum, _mm512_mul_ps(_mm512_loadu_ps(sum), factor));
    }
    return raised != 0;
  }

  // Scores become 2^(c (score - maximum)), exactly 1 at the maximum, as pairs of keys (or, without ToPairs, in place); sums grow.
  template <int Vectors, bool ToPairs>
  HWY_NOINLINE void exponentiate(std::int64_t lines, std::int64_t lane) {
    constexpr std::int64_t kWidth = Vectors * kLanes;
    const __m512 c = _mm512_set1_ps(unit_scale());
    __m512 largest[Vectors], total[Vectors];
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      largest[v] = _mm512_loadu_ps(t_.maximum + lane + v * kLanes);
      total[v] = _mm512_setzero_ps();
    }
    float* s = t_.s;
    Pair* p[Vectors];
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) p[v] = probabilities<Vectors>(lines, v);
    for (std::int64_t i = 0; i < lines; i += 2, s += 2 * kWidth) {
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) {
        const __m512 a = exp2(_mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(s + v * kLanes), largest[v]), c));
        const __m512 b =
            exp2(_mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(s + kWidth + v * kLanes), largest[v]), c));
        total[v] = _mm512_add_ps(total[v], _mm512_add_ps(a, b));
        if constexpr (ToPairs) {
          _mm512_storeu_si512(p[v], to_pairs(a, b));
          p[v] += kPanelWidth<Vectors>;
        } else {
          _mm512_storeu_ps(s + v * kLanes, a);
          _mm512_storeu_ps(s + kWidth + v * kLanes, b);
        }
      }
    }
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      float* sum = t_.sum + lane + v * kLanes;
      _mm512_storeu_ps(sum, _mm512_add_ps(_mm512_loadu_ps(sum), total[v]));
    }
  }

  // o = alpha o + v p without the products in which p is 0.
  template <int Vectors>
  HWY_NOINLINE void issue_pv_careful(const Pair* values, std::int64_t pairs, std::int64_t lane,
                                     const float* alpha) {
    for (std::int64_t c = 0; c < p_.v_dim; ++c) {
      for (int v = 0; v < Vectors; ++v) {
        float* o = t_.o + c * width_ + lane + v * kLanes;
        __m512 sum = _mm512_loadu_ps(o);
        if (alpha != nullptr) sum = _mm512_mul_ps(sum, _mm512_loadu_ps(alpha + v * kLanes));
        for (std::int64_t i = 0; i < pairs; ++i) {
          const __m512i factor =
              _mm512_set1_epi32(static_cast<int>(Unit::transposed_pair(values, v_stride_, c, i)));
          const __m512i p =
              _mm512_loadu_si512(probabilities<Vectors>(2 * pairs, v) + i * kPanelWidth<Vectors>);
          auto add = [&](__m512 x, __m512 probability) TESSERA_BF16_ATTR {
            const __mmask16 visible = _mm512_cmp_ps_mask(probability, _mm512_setzero_ps(), _CMP_NEQ_UQ);
            sum = _mm512_mask3_fmadd_ps(x, probability, sum, visible);
          };
          add(first_of(factor), first_of(p));
          add(second_of(factor), second_of(p));
        }
        _mm512_storeu_ps(o, sum);
      }
    }
  }

  // out = o / sum and LSE = maximum + log(sum); 0 and -inf for a row that saw nothing.
  bool finalize() {
    auto row = [&](std::int64_t r)
                   TESSERA_BF16_ATTR { return head_.query_row<BFloat16>(p_.out, rows_.begin + r); };
    const std::int64_t count = rows_.end - rows_.begin;
    transpose(t_.o, width_, p_.v_dim, width_, t_.o_rows, p_.v_dim);
    bool finite = true;
    for (std::int64_t r = 0; r < count; ++r) {
      const float sum = t_.sum[r];
      const float factor = sum == 0 ? 0.0F : 1.0F / sum;
      finite &= store_row_bf16(t_.o_rows + r * p_.v_dim, p_.v_dim, factor, row(r));
      if (p_.has_lse) {
        *head_.query_row<float>(p_.lse, rows_.begin + r) =
            sum == 0 ? core::kMinusInfinity<float>
                     : static_cast<float>(double{t_.maximum[r]} * (scaled_ ? 1.0 : double{scale_}) +
                                          double{std::log(sum)});
      }
    }
    return finite;
  }

  const Head& head_;
  const core::Problem& p_;
  core::Tile rows_;
  const ForwardScratch<Unit>& t_;
  std::int64_t block_k_;
  std::int64_t width_;
  std::int64_t vectors_;
  std::int64_t v_stride_;
  bool scaled_;  // S is scaled as it is stored, else in the exponential
  float scale_;  // its absolute value: the sign is in q
  bool careful_ = false;
  RowQueue next_queries_, outputs_;
};

template <typename Unit>
void run_forward_task(const core::Problem& p, const ForwardPlan& plan, std::int64_t task, std::byte* memory) {
  Arena arena(memory);
  const ForwardScratch<Unit> scratch(arena, p, plan);
  const typename Unit::Session session;
  const ForwardTask own = task_of(plan, p.batch * p.q_heads, task);
  const Head head(p, own.head / p.q_heads, own.head % p.q_heads);
  const std::int64_t kv_index = head.s.index * p.kv_heads + head.kv_head;
  if (*scratch.held != kv_index + 1) {
    const core::Tile keys{0, head.s.k_length};
    pack_keys<Unit>(head, p.k, p.qk_dim, keys, PackedRows{scratch.k, scratch.qk_row});
    pack_transposed<Unit>(head, p.v, p.v_dim, keys, PackedRows{scratch.staged, scratch.v_row}, scratch.v);
    *scratch.held = kv_index + 1;
  }
  const core::Tiling tiling{head.s.q_length, kForwardRows, p.blocks ? p.blocks.block_q : 0};
  for (std::int64_t t = own.first_tile; t < std::min(own.end_tile, tiling.count()); ++t) {
    ForwardTile<Unit> tile(head, tiling[t], scratch, plan.keys_per_step(head.s.k_length));
    if (!tile.run(false)) tile.run(true);
  }
}

template <typename Unit>
std::size_t forward_worker_bytes(const core::Problem& p, const ForwardPlan& plan) {
  Arena arena;
  const ForwardScratch<Unit> scratch(arena, p, plan);
  return arena.used();
}

inline std::int64_t forward_tile_rows(bool /*fp64*/) { return kForwardRows; }

template <typename Unit>
inline constexpr ForwardEngine kForwardEngine{forward_tile_rows, forward_worker_bytes<Unit>,
                                              run_forward_task<Unit>};

}  // namespace tessera::cpu::HWY_NAMESPACE::bf16
TESSERA_BF16_END
