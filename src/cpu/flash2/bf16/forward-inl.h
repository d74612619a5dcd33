// cpu.flash2, forward, for bf16 on hardware that multiplies bf16: the schedule of
// flash2/forward_driver.h with products over pairs.
//
//   S^T = K Q^T             A: rows of K as they are; B: pairs along head_dim x rows of queries
//   P^T = 2^(c (S^T - max))  fp32 lane by lane, rounded to bf16: pairs of keys x rows of queries
//   O^T += V^T P^T          A: V transposed, packed once per head
//
// Contractions over keys begin and end at multiples of Multiplier::kDepth; scores outside the step
// are -inf there. Memory per worker: the tiles, and K and V of one head packed as bf16.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/flash2/bf16/pairs-inl.h"
#include "cpu/flash2/forward_driver.h"
#include "cpu/flash2/vector/product-inl.h"
#include "cpu/flash2/vector/scores-inl.h"
#include "cpu/head_view.h"
#include "cpu/machine/arena.h"

TESSERA_BF16_BEGIN
namespace tessera::cpu::HWY_NAMESPACE::bf16 {

inline constexpr std::int64_t kForwardRows = 64;  // queries per tile
// Unmasked steps end at multiples of this: whole register blocks and whole tiles of AMX.
inline constexpr std::int64_t kAlignment = 32;

// The memory of one worker.
template <typename Multiplier>
struct ForwardMemory {
  std::int64_t qk_row, v_row;  // head_dims in the multiplier's whole steps
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

  ForwardMemory(Arena& arena, const core::Problem& problem, const ForwardPlan& plan) {
    constexpr std::int64_t kTile = kForwardRows;
    const std::int64_t lines =
        round_up(plan.block_k, Multiplier::kRowStep) + Multiplier::kDepth + Multiplier::kRowStep;
    qk_row = round_up(problem.qk_dim, Multiplier::kDepth);
    v_row = round_up(problem.v_dim, Multiplier::kRowStep);
    const std::int64_t keys = padded_keys<Multiplier>(problem.k_length);
    q_rows = arena.take<std::uint16_t>(kTile * qk_row);
    q = arena.take<Pair>(qk_row / 2 * kTile);
    o = arena.take<float>(v_row * kTile);
    o_rows = arena.take<float>(kTile * problem.v_dim);
    s = arena.take<float>(lines * kTile);
    p = arena.take<Pair>(lines / 2 * kTile);
    bias = arena.take<float>(problem.has_bias ? lines * kTile : 0);
    bias_row = arena.take<float>(problem.has_bias ? bias_row_size<float>(plan.block_k) : 0);
    maximum = arena.take<float>(kTile);
    sum = arena.take<float>(kTile);
    k = arena.take<std::uint16_t>(keys * qk_row);
    v = arena.take<Pair>(Multiplier::transposed_size(keys, v_row));
    staged = arena.take<std::uint16_t>(kStagedKeys * v_row);
  }
};

// One tile of queries of one head.
template <typename Multiplier>
class ForwardTile {
 public:
  ForwardTile(const HeadView& head, const core::Interval& rows, const ForwardMemory<Multiplier>& memory,
              std::int64_t block_k)
      : head_(head),
        p_(head.p),
        rows_(rows),
        t_(memory),
        block_k_(block_k),
        width_(round_up(rows.length(), Multiplier::kStrip * kLanes)),
        vectors_(width_ / kLanes),
        v_stride_(Multiplier::transposed_stride(memory.v_row)),
        scaled_(has_features(head.p) || head.p.scale == 0),
        scale_(static_cast<float>(std::abs(head.p.scale))) {}

  // Writes out and LSE; see flash2/forward_driver.h.
  bool run(bool skip_zeros) {
    skip_zeros_ = skip_zeros;
    load_queries();
    next_queries_ = RowPrefetcher(head_.query_row<const BFloat16>(p_.q, rows_.end), p_.q.row_stride,
                                  std::min(kForwardRows, head_.s.q_length - rows_.end), p_.qk_dim);
    outputs_ = RowPrefetcher(head_.query_row<const BFloat16>(p_.out, rows_.begin), p_.out.row_stride,
                             rows_.length(), p_.v_dim);
    std::memset(t_.o, 0, static_cast<std::size_t>(t_.v_row * width_) * sizeof(float));
    std::fill_n(t_.maximum, width_, std::numeric_limits<float>::lowest());
    std::fill_n(t_.sum, width_, 0.0F);
    const core::VisibleSpan visible =
        core::with_aligned_full_part(core::visible_keys(p_, head_.s, head_.q_head, rows_), kAlignment);
    core::for_each_tile(visible, block_k_,
                        [&](const core::TileRange& keys) TESSERA_BF16_ATTR { visit(keys); });
    return finalize();
  }

 private:
  // Q times the sign of the scale, as pairs in lanes; lanes past the end are 0.
  void load_queries() {
    const std::int64_t count = rows_.length();
    const PackedRows rows{t_.q_rows, t_.qk_row};
    copy_rows(count, p_.qk_dim, p_.scale < 0 ? 0x8000 : 0, rows, [&](std::int64_t r) TESSERA_BF16_ATTR {
      return head_.query_row<const BFloat16>(p_.q, rows_.begin + r);
    });
    std::memset(t_.q_rows + count * t_.qk_row, 0,
                static_cast<std::size_t>((width_ - count) * t_.qk_row) * sizeof(std::uint16_t));
    transpose_pairs(rows, width_, t_.q, width_);
  }

  // A full tile takes all vectors of rows at once. Around the diagonal each strip of vectors takes
  // what it sees.
  void visit(const core::TileRange& keys) {
    if (keys.kind == core::TileKind::full) return step(keys, 0, vectors_, false);
    for (std::int64_t v = 0; v < vectors_; v += Multiplier::kStrip) {
      const std::int64_t begin = rows_.begin + v * kLanes;
      if (begin >= rows_.end) break;
      const core::Interval strip{begin, std::min(begin + Multiplier::kStrip * kLanes, rows_.end)};
      const core::VisibleRange part = core::visible_part(head_.s.band, strip, keys);
      if (!part.empty()) step({part.begin, part.end}, v, Multiplier::kStrip, !part.full());
    }
  }

  void step(const core::Interval& keys, std::int64_t first_vector, std::int64_t vectors, bool masked) {
    if constexpr (Multiplier::kStrip == 1) {
      if (vectors == 1) return step_of<1>(keys, first_vector, masked);
      if (vectors == 3) return step_of<3>(keys, first_vector, masked);
    }
    if (vectors == 2) return step_of<2>(keys, first_vector, masked);
    return step_of<4>(keys, first_vector, masked);
  }

  template <int Vectors>
  HWY_NOINLINE void step_of(const core::Interval& keys, std::int64_t first_vector, bool masked) {
    constexpr std::int64_t kWidth = Vectors * kLanes;
    const std::int64_t lane = first_vector * kLanes, count = keys.length();
    // Lines of S and P begin at a key that the multiplier can begin with.
    const std::int64_t base = round_down(keys.begin, Multiplier::kDepth), lead = keys.begin - base;
    const std::int64_t lines = round_up(lead + count, Multiplier::kDepth);
    float* scores = t_.s + lead * kWidth;
    alignas(64) float maximum[kWidth];
    std::fill_n(maximum, kWidth, std::numeric_limits<float>::lowest());
    const ScoreBlock<float> block{scores, kWidth, Vectors, rows_.begin + lane, keys};
    if (p_.has_bias && !load_bias(head_, block, rows_.end, t_.bias_row, t_.bias)) return;  // all hidden
    multiply_qk<Vectors>(keys, lane, scores, maximum);
    if (scaled_ || masked) {
      std::fill_n(maximum, kWidth, std::numeric_limits<float>::lowest());
      apply_score_features<float>(head_, block, masked, p_.has_bias ? t_.bias : nullptr, maximum, nullptr);
    }
    std::fill_n(t_.s, lead * kWidth, core::kMinusInfinity<float>);
    std::fill_n(scores + count * kWidth, (lines - lead - count) * kWidth, core::kMinusInfinity<float>);
    alignas(64) float alpha[kWidth];
    const bool raised = raise_maximum<Vectors>(lane, maximum, alpha);
    if (p_.dropout) {
      exponentiate<Vectors, false>(lines, lane);
      apply_dropout(head_, block);
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
    const Pair* values = t_.v + Multiplier::transposed_offset(v_stride_, base);
    if (skip_zeros_ && (masked || lines != count || p_.has_bias)) {
      multiply_pv_skipping_zeros<Vectors>(values, lines / 2, lane, raised ? alpha : nullptr);
    } else {
      const core::Interval all{0, lines / 2};
      for (int v = 0; v < Vectors; v += static_cast<int>(kPanelWidth<Vectors> / kLanes)) {
        const Accumulators outputs{t_.o + lane + v * kLanes, width_, kPanelLanes<Multiplier>,
                                   raised ? alpha + v * kLanes : nullptr};
        Multiplier::template accumulate<Walk::columns>(
            values, v_stride_, probabilities<Vectors>(lines, v), kPanelWidth<Vectors>, outputs, p_.v_dim,
            kPanelWidth<Vectors> / kLanes, [&](std::int64_t, std::int64_t) TESSERA_BF16_ATTR { return all; });
      }
    }
  }

  // s = k q (scaled where features apply), and the largest score of each lane.
  template <int Vectors>
  HWY_INLINE void multiply_qk(const core::Interval& keys, std::int64_t lane, float* s, float* maximum) {
    constexpr std::int64_t kWidth = Vectors * kLanes;
    const std::int64_t count = keys.length();
    const __m512 factor = _mm512_set1_ps(scaled_ ? scale_ : 1.0F);
    const bool scaled = scaled_;
    RowPrefetcher *next_queries = &next_queries_, *outputs = &outputs_;
    Multiplier::template product<Vectors>(
        reinterpret_cast<const Pair*>(t_.k + keys.begin * t_.qk_row), t_.qk_row / 2, t_.q + lane, width_,
        t_.qk_row / 2, round_up(count, 2), s, kWidth,
        [=]<int Rows, int Columns>(std::int64_t row, int vector, __m512(&sum)[Rows][Columns])
            TESSERA_BF16_ATTR {
              next_queries->next();
              outputs->next();
#pragma GCC unroll 8
              for (int v = 0; v < Columns; ++v) {
                float* to = s + row * kWidth + (vector + v) * kLanes;
                __m512 largest = _mm512_loadu_ps(maximum + (vector + v) * kLanes);
#pragma GCC unroll 8
                for (int r = 0; r < Rows; ++r) {
                  const __m512 x = scaled ? _mm512_mul_ps(sum[r][v], factor) : sum[r][v];
                  if (scaled || !Multiplier::kStoresSums) _mm512_storeu_ps(to + r * kWidth, x);
                  if (row + r < count) largest = _mm512_max_ps(x, largest);
                }
                _mm512_storeu_ps(maximum + (vector + v) * kLanes, largest);
              }
            });
  }

  // P lies in panels as wide as those of accumulators: pairs of vector v lie kPanelWidth apart.
  template <int Vectors>
  static constexpr std::int64_t kPanelWidth = std::min<std::int64_t>(Vectors, Multiplier::kPanel) * kLanes;
  template <int Vectors>
  [[nodiscard]] Pair* probabilities(std::int64_t lines, int v) const {
    constexpr std::int64_t kPanel = kPanelWidth<Vectors>;
    return t_.p + round_down(v * kLanes, kPanel) * lines / 2 + v * kLanes % kPanel;
  }

  // Scores to units of log2.
  [[nodiscard]] float unit_scale() const { return scaled_ ? kLog2E : scale_ * kLog2E; }

  // Raises the running maximum to the largest scores of a step. Returns whether one rose; `alpha`
  // is then the factor for what the rows have accumulated so far.
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

  // Scores become 2^(c (score - maximum)), exactly 1 at the maximum, as pairs of keys or, without
  // ToPairs, in place. Sums grow.
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

  // o = alpha o + v p without the terms in which p is 0.
  template <int Vectors>
  HWY_NOINLINE void multiply_pv_skipping_zeros(const Pair* values, std::int64_t pairs, std::int64_t lane,
                                               const float* alpha) {
    for (std::int64_t c = 0; c < p_.v_dim; ++c) {
      for (int v = 0; v < Vectors; ++v) {
        float* o = t_.o + c * width_ + lane + v * kLanes;
        __m512 sum = _mm512_loadu_ps(o);
        if (alpha != nullptr) sum = _mm512_mul_ps(sum, _mm512_loadu_ps(alpha + v * kLanes));
        for (std::int64_t i = 0; i < pairs; ++i) {
          const __m512i factor =
              _mm512_set1_epi32(static_cast<int>(Multiplier::transposed_pair(values, v_stride_, c, i)));
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

  // Writes out = o / sum and LSE = maximum + log(sum); 0 and -inf for a row that sees nothing.
  bool finalize() {
    auto row = [&](std::int64_t r)
                   TESSERA_BF16_ATTR { return head_.query_row<BFloat16>(p_.out, rows_.begin + r); };
    const std::int64_t count = rows_.length();
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

  const HeadView& head_;
  const core::Problem& p_;
  core::Interval rows_;
  const ForwardMemory<Multiplier>& t_;
  std::int64_t block_k_;
  std::int64_t width_;
  std::int64_t vectors_;
  std::int64_t v_stride_;
  bool scaled_;  // S is scaled as it is stored, else in the exponential
  float scale_;  // its absolute value: the sign is in q
  bool skip_zeros_ = false;
  RowPrefetcher next_queries_, outputs_;
};

// The Ops of flash2/forward_driver.h.
template <typename Multiplier>
class PairForward {
 public:
  using Memory = ForwardMemory<Multiplier>;

  static std::int64_t tile_rows() { return kForwardRows; }

  PairForward(const core::Problem& p, const ForwardPlan& /*plan*/, const Memory& memory)
      : p_(p), t_(memory) {}

  void load_keys(const HeadView& head, bool cached) {
    if (cached) return;
    const core::Interval keys{0, head.s.k_length};
    pack_keys<Multiplier>(head, p_.k, p_.qk_dim, keys, PackedRows{t_.k, t_.qk_row});
    pack_transposed<Multiplier>(head, p_.v, p_.v_dim, keys, PackedRows{t_.staged, t_.v_row}, t_.v);
  }

  bool run_tile(const HeadView& head, const core::Interval& rows, std::int64_t block_k, bool skip_zeros) {
    return ForwardTile<Multiplier>(head, rows, t_, block_k).run(skip_zeros);
  }

 private:
  const core::Problem& p_;
  const Memory& t_;
  [[maybe_unused]] typename Multiplier::Session session_{};
};

}  // namespace tessera::cpu::HWY_NAMESPACE::bf16
TESSERA_BF16_END
