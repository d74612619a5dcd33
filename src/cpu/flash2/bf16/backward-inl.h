// cpu.flash2, backward, for bf16 on hardware that multiplies bf16: the schedule of
// flash2/backward_driver.h with products over pairs.
//
//   S^T = K Q^T,  dP^T = V dO^T      A: rows of K and V; B: pairs along head_dim x rows of queries
//   P^T = 2^(c S^T - LSE),  dS^T = P^T o (dP^T - delta)
//                                    fp32, then bf16: rows, and dS also as pairs of keys
//   dQ^T += K^T dS^T                      A: K transposed; B: pairs of keys x rows of queries
//   dV += P^T dO,  dK += dS^T Q           A: rows of P^T and dS^T; B: pairs of queries x head_dim
//
// A tile of queries is packed in four forms (Q and dO, along head_dim and along rows), of split
// heads once for all tasks; K and V are packed once per task. Around the diagonal a strip of
// vectors computes the keys that it sees; the rest of P and dS is 0. Gradients are summed in fp32
// and rounded once.
#pragma once

#include <algorithm>
#include <cmath>

#include "cpu/flash2/backward_driver.h"
#include "cpu/flash2/bf16/pairs-inl.h"
#include "cpu/flash2/bf16/query_packer-inl.h"
#include "cpu/flash2/vector/backward-inl.h"
#include "cpu/flash2/vector/product-inl.h"
#include "cpu/flash2/vector/scores-inl.h"
#include "cpu/flash2/vector/visible-inl.h"
#include "cpu/head_view.h"
#include "cpu/machine/arena.h"

TESSERA_BF16_BEGIN
namespace tessera::cpu::HWY_NAMESPACE::bf16 {

inline constexpr std::int64_t kBackwardRows = 256;  // queries per tile

// The memory of one worker.
template <typename Multiplier>
struct BackwardMemory : PackedQueries<Multiplier> {
  using PackedQueries<Multiplier>::qk_row, PackedQueries<Multiplier>::v_row;
  using PackedQueries<Multiplier>::qk_lanes, PackedQueries<Multiplier>::v_lanes;
  float* grad_q;                                               // tile rows x head_dim
  std::uint16_t *p, *ds;                                       // lines x tile rows
  Pair* ds_interleaved;                                        // lines / 2 x tile rows
  float *scores, *grad_scores, *keep, *cap, *bias, *bias_row;  // lines x tile rows, with features
  VisibleWord<float>* visible;                                 // bits of tile rows, with a boolean mask
  std::uint16_t *k, *v;                                        // the task's keys x head_dim
  Pair* k_t;                                                   // transposed
  std::uint16_t* staged;
  std::int64_t keys;       // of the task, with room past them
  float *grad_k, *grad_v;  // the task's keys x head_dim, one panel of columns after the other

  // Queries of split heads lie elsewhere.
  BackwardMemory(Arena& arena, const core::Problem& problem, const BackwardPlan& plan)
      : PackedQueries<Multiplier>(arena, problem, plan.unsplit_heads > 0 ? kBackwardRows : 0) {
    constexpr std::int64_t kTile = kBackwardRows, kLine = line_stride(kTile);
    keys = padded_keys<Multiplier>(largest_task(problem, plan).range.end);
    const std::int64_t lines =
        round_up(plan.block_k, Multiplier::kRowStep) + Multiplier::kDepth + Multiplier::kRowStep;
    const std::int64_t block = lines * kLine;
    const bool features = has_features(problem) || problem.dropout;
    grad_q = arena.take<float>(plan.unsplit_heads > 0 ? kTile * problem.qk_dim : 0);
    p = arena.take<std::uint16_t>(block);
    ds = arena.take<std::uint16_t>(block);
    ds_interleaved = arena.take<Pair>(block / 2);
    scores = arena.take<float>(features ? block : 0);
    grad_scores = arena.take<float>(features ? block : 0);
    keep = arena.take<float>(problem.dropout ? block : 0);
    cap = arena.take<float>(problem.softcap != 0 ? block : 0);
    bias = arena.take<float>(problem.has_bias ? block : 0);
    bias_row = arena.take<float>(problem.has_bias ? bias_row_size<float>(plan.block_k) : 0);
    visible =
        arena.take<VisibleWord<float>>(problem.has_visible ? visible_words<float>(kTile, plan.block_k) : 0);
    k = arena.take<std::uint16_t>(keys * qk_row);
    v = arena.take<std::uint16_t>(keys * v_row);
    k_t = arena.take<Pair>(Multiplier::transposed_size(keys, qk_row));
    staged = arena.take<std::uint16_t>(kStagedKeys * qk_row);
    grad_k = arena.take<float>(panels_size(qk_lanes));
    grad_v = arena.take<float>(panels_size(v_lanes));
  }

  // The size of all panels of `lanes` columns. One follows the other, so that they are read and
  // written in order.
  [[nodiscard]] std::int64_t panels_size(std::int64_t lanes) const {
    return keys * round_up(lanes, kPanelLanes<Multiplier>);
  }

  // The same memory with queries that lie elsewhere.
  [[nodiscard]] BackwardMemory with(const PackedQueries<Multiplier>& queries) const {
    BackwardMemory memory = *this;
    static_cast<PackedQueries<Multiplier>&>(memory) = queries;
    return memory;
  }
};

// One tile of queries of one head, which are packed, against the keys of a task.
template <typename Multiplier>
class BackwardTile {
 public:
  // `non_finite`: bit c says that chunk c of the task's keys has a NaN or an infinity.
  BackwardTile(const HeadView& head, const core::Interval& rows, const TaskKeys& own,
               std::uint32_t non_finite, const BackwardMemory<Multiplier>& memory)
      : head_(head),
        p_(head.p),
        rows_(rows),
        count_(rows.length()),
        own_(own),
        range_(own.range),
        t_(memory),
        vectors_(round_up(count_, Multiplier::kStrip * kLanes) / kLanes),
        width_(vectors_ * kLanes),
        line_(line_stride(width_)),
        k_stride_(Multiplier::transposed_stride(memory.qk_row)),
        features_(has_features(head.p) || head.p.dropout),
        scale_(static_cast<float>(std::abs(head.p.scale))),
        non_finite_(non_finite) {}

  // P and dS of a step. dK and dV grow; the first step of a chunk writes dQ^T (not yet scaled, for
  // q times the sign of the scale), the others add to it.
  void step(const core::TileRange& keys, float* grad_q_t, bool first) {
    grad_q_t_ = grad_q_t;
    const std::int64_t chunk = (keys.begin - range_.begin) / own_.chunk_keys;
    skip_zeros_ = !*t_.finite || (non_finite_ >> chunk & 1) != 0;
    visible_ =
        keys.mixed ? load_visible<float>(head_, rows_, width_, keys, t_.visible) : VisibleBits<float>();
    run(keys, first);
  }

  // dQ^T has rows of queries in lines as long as this.
  [[nodiscard]] std::int64_t width() const { return width_; }

 private:
  static constexpr std::int64_t kPanel = kPanelLanes<Multiplier>;

  // Lines of P and dS begin at a key (of the task) that the multiplier can begin with.
  void run(const core::TileRange& keys, bool first) {
    const std::int64_t base = range_.begin + round_down(keys.begin - range_.begin, Multiplier::kDepth);
    const std::int64_t lines = round_up(keys.end - base, Multiplier::kDepth);
    const bool full = keys.kind == core::TileKind::full;
    if (first && (!full || skip_zeros_)) std::fill_n(grad_q_t_, t_.qk_row * width_, 0.0F);
    bool any_visible = false;  // to some row; else P and dS are 0, and no product is needed
    if (full) {
      std::int64_t v = 0;
      for (; v + 2 <= vectors_; v += 2) any_visible |= score_gradients<2>(base, keys, v, false);
      if constexpr (Multiplier::kStrip == 1) {
        if (v < vectors_) any_visible |= score_gradients<1>(base, keys, v, false);
      }
      if (!any_visible) {
        if (first) std::fill_n(grad_q_t_, t_.qk_row * width_, 0.0F);
        return;
      }
      zero_pairs(0, (keys.begin - base) / 2);
      zero_pairs((keys.end - base + 1) / 2, lines / 2);
      add_dq(base, keys, 0, vectors_, first);
    } else {
      const auto elements = static_cast<std::size_t>(lines * line_);
      std::memset(t_.p, 0, elements * sizeof(*t_.p));
      std::memset(t_.ds, 0, elements * sizeof(*t_.ds));
      std::memset(t_.ds_interleaved, 0, elements / 2 * sizeof(*t_.ds_interleaved));
      for (std::int64_t v = 0; v < vectors_; v += Multiplier::kStrip) {
        const std::int64_t begin = rows_.begin + v * kLanes;
        if (begin >= rows_.end) break;
        const core::Interval strip{begin, std::min(begin + Multiplier::kStrip * kLanes, rows_.end)};
        const core::VisibleRange part = core::visible_part(head_.s.band, strip, keys);
        if (part.empty()) continue;
        // Only the keys on the diagonal are masked one by one: those that the whole strip sees are
        // not.
        const core::Interval all_see = whole_depths(base, {part.full_begin, part.full_end});
        auto compute = [&](std::int64_t from, std::int64_t to, bool masked) TESSERA_BF16_ATTR {
          if (from < to) any_visible |= score_gradients<Multiplier::kStrip>(base, {from, to}, v, masked);
        };
        if (!all_see.empty()) {
          compute(part.begin, all_see.begin, true);
          compute(all_see.begin, all_see.end, false);
          compute(all_see.end, part.end, true);
        } else {
          compute(part.begin, part.end, true);
        }
        add_dq(base, {part.begin, part.end}, v, Multiplier::kStrip, false);
      }
      if (!any_visible) return;
    }
    add_dkv(base, keys);
  }

  // The part of `keys` that is whole multiples of kDepth, counted from `base`; empty where there
  // are none.
  static core::Interval whole_depths(std::int64_t base, const core::Interval& keys) {
    const std::int64_t begin = base + round_up(keys.begin - base, Multiplier::kDepth);
    return {begin, std::max(begin, base + round_down(keys.end - base, Multiplier::kDepth))};
  }

  // Lines of pairs of dS that no score reaches.
  void zero_pairs(std::int64_t begin, std::int64_t end) {
    std::fill(t_.ds_interleaved + begin * line_, t_.ds_interleaved + std::max(begin, end) * line_, Pair{0});
  }

  // P^T (after dropout) and dS^T of `part`, in lines that begin at key `base`, for some vectors of
  // rows. Returns whether the bias leaves anything visible.
  template <int Vectors>
  HWY_NOINLINE bool score_gradients(std::int64_t base, const core::Interval& part, std::int64_t first_vector,
                                    bool masked) {
    if (features_) return score_gradients_with_features<Vectors>(base, part, first_vector, masked);
    // Pairs of keys are written whole: begin and end at whole pairs, with 0 for keys outside
    // `part`.
    const std::int64_t first = base + round_down(part.begin - base, 2),
                       end = first + round_up(part.end - first, 2);
    for (std::int64_t key = first; key < end; key += kKeys) {
      const std::int64_t count = std::min(kKeys, end - key);
      if (masked || visible_ || skip_zeros_ || key < part.begin || key + count > part.end) {
        score_gradients_of<Vectors, true>(key, count, part, first_vector, masked, base);
      } else {
        score_gradients_of<Vectors, false>(key, count, part, first_vector, masked, base);
      }
    }
    return true;
  }

  // As many keys at a time as stay in the first-level cache beside the queries, with all that is
  // written for them.
  static constexpr std::int64_t kKeys = 32;

  // The same for keys [key, key + count). Checked: some may be masked out, or something is
  // non-finite.
  template <int Vectors, bool Checked>
  HWY_INLINE void score_gradients_of(std::int64_t key, std::int64_t count, const core::Interval& part,
                                     std::int64_t first_vector, bool masked, std::int64_t base) {
    constexpr std::int64_t kWidth = Vectors * kLanes;
    alignas(64) float first[kKeys * kWidth], second[kKeys * kWidth];
    if constexpr (Multiplier::kStoresSums) {
      const std::int64_t lane = first_vector * kLanes;
      Multiplier::template product<Vectors>(key_rows(t_.k, t_.qk_row, key), t_.qk_row / 2, t_.q_t + lane,
                                            line_, t_.qk_row / 2, count, first, kWidth);
      Multiplier::template product<Vectors>(key_rows(t_.v, t_.v_row, key), t_.v_row / 2, t_.grad_out_t + lane,
                                            line_, t_.v_row / 2, count, second, kWidth);
      finish_sums<Vectors, Checked>(key, count, part, first_vector, masked, base, first, second);
    } else {
      scores<Vectors, Checked>(key, count, part, first_vector, masked, base, first);
      gradients<Vectors, Checked>(key, count, first_vector, base, first, second);
    }
  }

  // P and dS, from S and dP in memory.
  template <int Vectors, bool Checked>
  HWY_INLINE void finish_sums(std::int64_t key, std::int64_t count, const core::Interval& part,
                              std::int64_t first_vector, bool masked, std::int64_t base, const float* scores,
                              const float* grad_probabilities) {
    const std::int64_t lane = first_vector * kLanes, line = line_;
    const __m512 c = _mm512_set1_ps(scale_ * kLog2E);
    __m512 lse[Vectors], delta[Vectors];
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      lse[v] = _mm512_loadu_ps(t_.lse + lane + v * kLanes);
      delta[v] = _mm512_loadu_ps(t_.delta + lane + v * kLanes);
    }
    std::uint16_t *p = t_.p + (key - base) * line + lane, *ds = t_.ds + (key - base) * line + lane;
    Pair* pairs = t_.ds_interleaved + (key - base) / 2 * line + lane;
    for (std::int64_t i = 0; i < count; i += 2, p += 2 * line, ds += 2 * line, pairs += line) {
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) {
        auto finish = [&](std::int64_t j, __m512& probability) TESSERA_BF16_ATTR {
          const std::int64_t at = (j * Vectors + v) * kLanes;
          probability = exp2(_mm512_fmsub_ps(_mm512_loadu_ps(scores + at), c, lse[v]));
          const __m512 factor = _mm512_sub_ps(_mm512_loadu_ps(grad_probabilities + at), delta[v]);
          if constexpr (!Checked) return _mm512_mul_ps(probability, factor);
          probability = _mm512_maskz_mov_ps(visible(key + j, part, first_vector + v, masked), probability);
          const __mmask16 counts = _mm512_cmp_ps_mask(probability, _mm512_setzero_ps(), _CMP_NEQ_UQ);
          return _mm512_maskz_mul_ps(counts, probability, factor);
        };
        __m512 p0, p1;
        const __m512 ds0 = finish(i, p0), ds1 = finish(i + 1, p1);
        store_lines(to_bf16(p0, p1), p + v * kLanes, line);
        store_gradient(ds0, ds1, ds + v * kLanes, line, pairs + v * kLanes);
      }
    }
  }

  // P of keys [key, key + count): fp32 for gradients(), bf16 in its lines.
  template <int Vectors, bool Checked>
  HWY_INLINE void scores(std::int64_t key, std::int64_t count, const core::Interval& part,
                         std::int64_t first_vector, bool masked, std::int64_t base, float* probabilities) {
    const std::int64_t lane = first_vector * kLanes;
    const __m512 c = _mm512_set1_ps(scale_ * kLog2E);
    std::uint16_t* p = t_.p + (key - base) * line_ + lane;
    const float* all_lse = t_.lse + lane;
    const std::int64_t stride = line_;
    Multiplier::template product<Vectors>(
        key_rows(t_.k, t_.qk_row, key), t_.qk_row / 2, t_.q_t + lane, line_, t_.qk_row / 2, count,
        probabilities, Vectors * kLanes,
        [=, this]<int Rows, int Columns>(std::int64_t row, int vector,
                                         __m512(&sum)[Rows][Columns]) TESSERA_BF16_ATTR {
          static_assert(Rows % 2 == 0);
#pragma GCC unroll 8
          for (int v = 0; v < Columns; ++v) {
            const __m512 lse = _mm512_loadu_ps(all_lse + (vector + v) * kLanes);
            auto finish = [&](int r) TESSERA_BF16_ATTR {
              __m512 x = exp2(_mm512_fmsub_ps(sum[r][v], c, lse));
              if constexpr (Checked) {
                x = _mm512_maskz_mov_ps(visible(key + row + r, part, first_vector + vector + v, masked), x);
              }
              _mm512_storeu_ps(probabilities + ((row + r) * Vectors + vector + v) * kLanes, x);
              return x;
            };
#pragma GCC unroll 8
            for (int r = 0; r < Rows; r += 2) {
              const __m512 a = finish(r), b = finish(r + 1);
              store_lines(to_bf16(a, b), p + (row + r) * stride + (vector + v) * kLanes, stride);
            }
          }
        });
  }

  // dS of the same keys, from their P.
  template <int Vectors, bool Checked>
  HWY_INLINE void gradients(std::int64_t key, std::int64_t count, std::int64_t first_vector,
                            std::int64_t base, const float* probabilities, float* sums) {
    const std::int64_t lane = first_vector * kLanes;
    std::uint16_t* ds = t_.ds + (key - base) * line_ + lane;
    Pair* pairs = t_.ds_interleaved + (key - base) / 2 * line_ + lane;
    const float* all_delta = t_.delta + lane;
    const std::int64_t stride = line_;
    Multiplier::template product<Vectors>(
        key_rows(t_.v, t_.v_row, key), t_.v_row / 2, t_.grad_out_t + lane, line_, t_.v_row / 2, count, sums,
        Vectors * kLanes,
        [=]<int Rows, int Columns>(std::int64_t row, int vector,
                                   __m512(&sum)[Rows][Columns]) TESSERA_BF16_ATTR {
          static_assert(Rows % 2 == 0);
#pragma GCC unroll 8
          for (int v = 0; v < Columns; ++v) {
            const __m512 delta = _mm512_loadu_ps(all_delta + (vector + v) * kLanes);
            auto finish = [&](int r) TESSERA_BF16_ATTR {
              const __m512 p = _mm512_loadu_ps(probabilities + ((row + r) * Vectors + vector + v) * kLanes);
              const __m512 x = _mm512_mul_ps(p, _mm512_sub_ps(sum[r][v], delta));
              if constexpr (!Checked) return x;
              return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(p, _mm512_setzero_ps(), _CMP_NEQ_UQ), x);
            };
#pragma GCC unroll 8
            for (int r = 0; r < Rows; r += 2) {
              store_gradient(finish(r), finish(r + 1), ds + (row + r) * stride + (vector + v) * kLanes,
                             stride, pairs + (row + r) / 2 * stride + (vector + v) * kLanes);
            }
          }
        });
  }

  // Two lines of dS as rows of bf16 (at `line` and `line + stride`) and as pairs.
  static HWY_INLINE void store_gradient(__m512 a, __m512 b, std::uint16_t* line, std::int64_t stride,
                                        Pair* pairs) {
    const __m512i both = to_bf16(a, b);
    store_lines(both, line, stride);
    _mm512_storeu_si512(pairs, interleave(both));
  }

  // Lanes of a vector of rows that see key j of the sequence, which must lie in `part`.
  [[nodiscard]] __mmask16 visible(std::int64_t j, const core::Interval& part, std::int64_t vector,
                                  bool masked) const {
    if (j < part.begin || j >= part.end) return 0;
    __mmask16 seen = 0xFFFF;
    if (visible_) {
      const std::int64_t x = j - visible_.first_key;
      const auto* words = visible_.words + x / 32 * visible_.rows + vector * kLanes;
      seen = _mm512_test_epi32_mask(_mm512_loadu_si512(words),
                                    _mm512_set1_epi32(static_cast<int>(1U << x % 32)));
    }
    if (!masked) return seen;
    const core::Band& band = head_.s.band;
    const std::int64_t diagonal =
        j - band.diagonal - rows_.begin - vector * kLanes;  // the lane on the diagonal
    const std::int64_t first =
        band.right == core::kUnbounded ? 0 : std::clamp<std::int64_t>(diagonal - band.right, 0, 16);
    const std::int64_t last =
        band.left == core::kUnbounded ? 15 : std::clamp<std::int64_t>(diagonal + band.left, -1, 15);
    return static_cast<__mmask16>((0xFFFFU << first) & (0xFFFFU >> (15 - last)) & seen);
  }

  // The same with softcap, bias, ALiBi or dropout: one pass after the other over fp32 lines.
  template <int Vectors>
  bool score_gradients_with_features(std::int64_t base, const core::Interval& part, std::int64_t first_vector,
                                     bool masked) {
    const std::int64_t lane = first_vector * kLanes, line = line_;
    const std::int64_t first = base + round_down(part.begin - base, 2), count = round_up(part.end - first, 2);
    const std::int64_t begin = (first - base) * line_ + lane, at = begin + (part.begin - first) * line_;
    const ScoreBlock<float> block{t_.scores + at, line_, Vectors, rows_.begin + lane, part};
    if (p_.has_bias && !load_bias(head_, block, rows_.end, t_.bias_row, t_.bias + at)) {
      for (std::int64_t i = 0; i < count; ++i) {
        std::fill_n(t_.p + begin + i * line, Vectors * kLanes, std::uint16_t{0});
        std::fill_n(t_.ds + begin + i * line, Vectors * kLanes, std::uint16_t{0});
        if (i % 2 == 0) {
          std::fill_n(t_.ds_interleaved + (first - base + i) / 2 * line + lane, Vectors * kLanes, Pair{0});
        }
      }
      return false;
    }
    auto multiply = [&](const std::uint16_t* rows, std::int64_t row_size, const Pair* queries, float factor,
                        float* to) TESSERA_BF16_ATTR {
      Multiplier::template product<Vectors>(
          key_rows(rows, row_size, first), row_size / 2, queries + lane, line, row_size / 2, count, to, line,
          [=]<int Rows, int Columns>(std::int64_t row, int vector, __m512(&sum)[Rows][Columns])
              TESSERA_BF16_ATTR {
                for (int r = 0; r < Rows; ++r) {
                  for (int v = 0; v < Columns; ++v) {
                    _mm512_storeu_ps(to + (row + r) * line + (vector + v) * kLanes,
                                     _mm512_mul_ps(sum[r][v], _mm512_set1_ps(factor)));
                  }
                }
              });
    };
    multiply(t_.k, t_.qk_row, t_.q_t, scale_, t_.scores + begin);
    multiply(t_.v, t_.v_row, t_.grad_out_t, 1.0F, t_.grad_scores + begin);
    apply_score_features<float>(head_, block, masked, p_.has_bias ? t_.bias + at : nullptr, nullptr,
                                p_.softcap != 0 ? t_.cap + at : nullptr);
    if (visible_) hide_invisible<float>(visible_, block, nullptr);
    if (p_.dropout) {
      for (std::int64_t i = 0; i < count; ++i)
        std::fill_n(t_.keep + begin + i * line_, Vectors * kLanes, 1.0F);
      apply_dropout(head_, ScoreBlock<float>{t_.keep + at, line_, Vectors, rows_.begin + lane, part});
    }
    for (std::int64_t i = 0; i < count; i += 2) {
      for (int v = 0; v < Vectors; ++v) {
        auto finish = [&](std::int64_t line, __m512& p) TESSERA_BF16_ATTR {
          const std::int64_t x = begin + line * line_ + v * kLanes, j = first + line;
          p = _mm512_setzero_ps();
          if (j < part.begin || j >= part.end) return p;
          const __m512 score = _mm512_loadu_ps(t_.scores + x);
          const __m512 lse = _mm512_loadu_ps(t_.lse + lane + v * kLanes);
          const __mmask16 seen =
              _mm512_cmp_ps_mask(score, _mm512_set1_ps(core::kMinusInfinity<float>), _CMP_NEQ_UQ);
          p = _mm512_maskz_mov_ps(seen, exp2(_mm512_fmsub_ps(score, _mm512_set1_ps(kLog2E), lse)));
          const __mmask16 counts = _mm512_cmp_ps_mask(p, _mm512_setzero_ps(), _CMP_NEQ_UQ);
          const __m512 undropped = p;
          __m512 gradient = _mm512_loadu_ps(t_.grad_scores + x);
          if (p_.dropout) {
            const __m512 keep = _mm512_loadu_ps(t_.keep + x);
            gradient = _mm512_mul_ps(gradient, keep);
            p = _mm512_mul_ps(p, keep);
          }
          gradient = _mm512_sub_ps(gradient, _mm512_loadu_ps(t_.delta + lane + v * kLanes));
          gradient = _mm512_maskz_mul_ps(counts, undropped, gradient);
          return p_.softcap != 0 ? _mm512_maskz_mul_ps(counts, gradient, _mm512_loadu_ps(t_.cap + x))
                                 : gradient;
        };
        __m512 p0, p1;
        const __m512 ds0 = finish(i, p0), ds1 = finish(i + 1, p1);
        const std::int64_t x = begin + i * line_ + v * kLanes;
        store_lines(to_bf16(p0, p1), t_.p + x, line_);
        store_gradient(ds0, ds1, t_.ds + x, line_,
                       t_.ds_interleaved + (first - base + i) / 2 * line_ + lane + v * kLanes);
      }
    }
    return true;
  }

  // Rows of K or V from key j on, as pairs.
  [[nodiscard]] const Pair* key_rows(const std::uint16_t* rows, std::int64_t row_size, std::int64_t j) const {
    return reinterpret_cast<const Pair*>(rows + (j - range_.begin) * row_size);
  }

  // dQ^T += K^T dS^T over `keys` for some vectors of rows. The contraction is rounded to whole
  // multiples of kDepth; the other pairs of dS in it are 0.
  void add_dq(std::int64_t base, const core::Interval& keys, std::int64_t first_vector, std::int64_t vectors,
              bool first) {
    const std::int64_t lane = first_vector * kLanes;
    if (skip_zeros_) return add_dq_skipping_zeros(base, keys, lane, vectors);
    const core::Interval part{base + round_down(keys.begin - base, Multiplier::kDepth),
                              base + round_up(keys.end - base, Multiplier::kDepth)};
    const core::Interval all{0, part.length() / 2};
    const Accumulators grad_q{grad_q_t_ + lane, width_, kPanel, nullptr, first};
    Multiplier::template accumulate<Walk::columns>(
        t_.k_t + Multiplier::transposed_offset(k_stride_, part.begin - range_.begin), k_stride_,
        t_.ds_interleaved + (part.begin - base) / 2 * line_ + lane, line_, grad_q, p_.qk_dim, vectors,
        [&](std::int64_t, std::int64_t) TESSERA_BF16_ATTR { return all; });
  }

  // dV += P^T dO and dK += dS^T Q for the keys, over the rows that see them.
  void add_dkv(std::int64_t base, const core::TileRange& keys) {
    const std::int64_t count = keys.length(), line = (keys.begin - base) * line_;
    const std::int64_t offset = keys.begin - range_.begin;
    const bool partial = keys.kind != core::TileKind::full;
    auto seeing = [&](std::int64_t r, std::int64_t rows) TESSERA_BF16_ATTR {
      if (!partial) return core::Interval{0, width_ / 2};
      const core::VisibleRange seen =
          core::visible_part(head_.s.band.transposed(), {keys.begin + r, keys.begin + r + rows}, rows_);
      return core::Interval{round_down(seen.begin - rows_.begin, Multiplier::kDepth) / 2,
                            round_up(seen.end - rows_.begin, Multiplier::kDepth) / 2};
    };
    auto issue = [&](const std::uint16_t* lines, const PackedRows& rows, const Pair* pairs,
                     std::int64_t lanes, float* to) TESSERA_BF16_ATTR {
      if (skip_zeros_) return multiply_skipping_zeros(lines, count, rows, lanes, to + offset * kPanel);
      const Accumulators sums{to + offset * kPanel, kPanel, t_.keys * kPanel};
      Multiplier::template accumulate<Walk::rows>(reinterpret_cast<const Pair*>(lines), line_ / 2, pairs,
                                                  line_stride(lanes), sums, count, lanes / kLanes, seeing);
    };
    if (p_.has_grad_v) {
      issue(t_.p + line, PackedRows{t_.grad_out, t_.v_row}, t_.grad_out_interleaved, t_.v_lanes, t_.grad_v);
    }
    if (p_.has_grad_k) {
      issue(t_.ds + line, PackedRows{t_.q, t_.qk_row}, t_.q_interleaved, t_.qk_lanes, t_.grad_k);
    }
  }

  // The products without the terms in which P or dS is 0, so that a NaN on the other side does not
  // spread.
  void multiply_skipping_zeros(const std::uint16_t* lines, std::int64_t count, const PackedRows& rows,
                               std::int64_t lanes, float* to) const {
    for (std::int64_t j = 0; j < count; ++j) {
      for (std::int64_t r = 0; r < count_; ++r) {
        const float factor = core::Element<BFloat16>::load(BFloat16{lines[j * line_ + r]});
        if (factor == 0) continue;
        for (std::int64_t c = 0; c < std::min(rows.row, lanes); ++c) {
          to[round_down(c, kPanel) * t_.keys + j * kPanel + c % kPanel] +=
              factor * core::Element<BFloat16>::load(BFloat16{rows.data[r * rows.row + c]});
        }
      }
    }
  }

  // Over `keys` alone: the other lines of dS hold what an earlier tile left.
  void add_dq_skipping_zeros(std::int64_t base, const core::Interval& keys, std::int64_t lane,
                             std::int64_t vectors) {
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      const std::uint16_t* k = t_.k + (j - range_.begin) * t_.qk_row;
      for (std::int64_t v = 0; v < vectors; ++v) {
        const __m512 ds = load_bf16(t_.ds + (j - base) * line_ + lane + v * kLanes);
        const __mmask16 counts = _mm512_cmp_ps_mask(ds, _mm512_setzero_ps(), _CMP_NEQ_UQ);
        for (std::int64_t c = 0; c < p_.qk_dim; ++c) {
          float* to = grad_q_t_ + c * width_ + lane + v * kLanes;
          const __m512 factor = _mm512_set1_ps(core::Element<BFloat16>::load(BFloat16{k[c]}));
          _mm512_storeu_ps(to, _mm512_mask3_fmadd_ps(factor, ds, _mm512_loadu_ps(to), counts));
        }
      }
    }
  }

  const HeadView& head_;
  const core::Problem& p_;
  core::Interval rows_;
  std::int64_t count_;
  TaskKeys own_;
  core::Interval range_;
  const BackwardMemory<Multiplier>& t_;
  float* grad_q_t_ = nullptr;  // of the chunk at hand
  std::int64_t vectors_;
  std::int64_t width_;  // rows in whole vectors: lines of dQ^T
  std::int64_t line_;   // from one line of everything else with rows in lanes to the next
  std::int64_t k_stride_;
  bool features_;
  float scale_;  // its absolute value: the sign is in q
  std::uint32_t non_finite_;
  bool skip_zeros_ = false;
  VisibleBits<float> visible_;  // of the step at hand
};

// Bit c says whether chunk c has a NaN or an infinity. By chunks: products that skip zeros round
// differently, and the number of threads decides which chunks a task has.
inline std::uint32_t non_finite_chunks(const PackedRows& k, const PackedRows& v, const TaskKeys& own) {
  static_assert(2 * kMaxChunks <= 32);
  const std::int64_t keys = own.range.end - own.range.begin;
  std::uint32_t chunks = 0;
  for (std::int64_t c = 0, begin = 0; begin < keys; ++c, begin += own.chunk_keys) {
    const std::int64_t count = std::min(own.chunk_keys, keys - begin);
    const bool finite = all_finite(PackedRows{k.data + begin * k.row, k.row}, count) &&
                        all_finite(PackedRows{v.data + begin * v.row, v.row}, count);
    if (!finite) chunks |= 1U << c;
  }
  return chunks;
}

// The Ops of flash2/backward_driver.h. dQ^T has head_dims in whole steps of the multiplier.
template <typename Multiplier>
class PairBackward : public VectorSums<BFloat16> {
 public:
  using Accumulator = float;
  using Memory = BackwardMemory<Multiplier>;

  static std::int64_t tile_rows() { return kBackwardRows; }

  static void take_queries(Arena& arena, const core::Problem& p, std::int64_t rows) {
    const PackedQueries<Multiplier> taken(arena, p, rows);
  }

  static std::int64_t grad_q_size(const core::Problem& p, std::int64_t rows) {
    return round_up(p.qk_dim, Multiplier::kRowStep) * rows;
  }

  static void pack(const HeadView& head, const core::Interval& rows, std::byte* slot,
                   const BackwardPlan& plan) {
    Arena arena(slot);
    const PackedQueries<Multiplier> memory(arena, head.p, plan.slot_rows);
    QueryPacker<Multiplier>(head, rows, memory).pack();
  }

  static GradQPart part_of(const core::Problem& p, std::int64_t tile_rows, std::int64_t first,
                           std::int64_t count) {
    return VectorSums<BFloat16>::part_of(p, tile_rows, first, count, Multiplier::kStrip * kLanes);
  }

  PairBackward(const core::Problem& p, const BackwardPlan& plan, const Memory& memory)
      : p_(p), plan_(plan), t_(memory) {}

  void load_keys(const HeadView& owner, const TaskKeys& keys) {
    keys_ = keys;
    const PackedRows k{t_.k, t_.qk_row}, v{t_.v, t_.v_row};
    pack_keys<Multiplier>(owner, p_.k, p_.qk_dim, keys.range, k);
    pack_keys<Multiplier>(owner, p_.v, p_.v_dim, keys.range, v);
    pack_transposed<Multiplier>(owner, p_.k, p_.qk_dim, keys.range, PackedRows{t_.staged, t_.qk_row}, t_.k_t);
    non_finite_ = non_finite_chunks(k, v, keys);
    std::fill_n(t_.grad_k, t_.panels_size(t_.qk_lanes), 0.0F);
    std::fill_n(t_.grad_v, t_.panels_size(t_.v_lanes), 0.0F);
  }

  // The sign of the scale is in Q.
  void store_grad_kv(const HeadView& owner) const {
    constexpr std::int64_t kPanel = kPanelLanes<Multiplier>;
    const std::int64_t count = keys_.range.length();
    auto store = [&](const core::View& view, const float* from, std::int64_t dim,
                     float scale) TESSERA_BF16_ATTR {
      auto to = [&](std::int64_t j)
                    TESSERA_BF16_ATTR { return owner.key_row<BFloat16>(view, keys_.range.begin + j); };
      for (std::int64_t j = 0; j < count; ++j) {
        prefetch_row(to(std::min(j + 12, count - 1)), dim);
        for (std::int64_t c = 0; c < dim; c += kPanel) {
          store_row_bf16(from + c * t_.keys + j * kPanel, std::min(dim - c, kPanel), scale, to(j) + c);
        }
      }
    };
    if (p_.has_grad_k) store(p_.grad_k, t_.grad_k, p_.qk_dim, static_cast<float>(std::abs(p_.scale)));
    if (p_.has_grad_v) store(p_.grad_v, t_.grad_v, p_.v_dim, 1.0F);
  }

  class Tile {
   public:
    Tile(const PairBackward& task, const HeadView& head, const core::Interval& rows)
        : head_(head),
          rows_(rows),
          task_(task),
          memory_(task.t_),
          tile_(head, rows, task.keys_, task.non_finite_, memory_) {
      QueryPacker<Multiplier>(head, rows, memory_).pack();
    }
    Tile(const PairBackward& task, const HeadView& head, const core::Interval& rows, std::byte* slot)
        : head_(head),
          rows_(rows),
          task_(task),
          memory_(task.with_slot(slot)),
          tile_(head, rows, task.keys_, task.non_finite_, memory_) {}
    Tile(const Tile&) = delete;
    Tile& operator=(const Tile&) = delete;

    [[nodiscard]] std::int64_t grad_q_size() const { return memory_.qk_row * tile_.width(); }

    void step(const core::TileRange& keys, float* grad_q_t, bool first) { tile_.step(keys, grad_q_t, first); }

    void store_grad_q(const float* grad_q_t) const {
      const core::Problem& p = task_.p_;
      auto to = [&](std::int64_t r)
                    TESSERA_BF16_ATTR { return head_.query_row<BFloat16>(p.grad_q, rows_.begin + r); };
      transpose(grad_q_t, tile_.width(), p.qk_dim, tile_.width(), memory_.grad_q, p.qk_dim);
      for (std::int64_t r = 0; r < rows_.length(); ++r) prefetch_row(to(r), p.qk_dim);
      for (std::int64_t r = 0; r < rows_.length(); ++r) {
        store_row_bf16(memory_.grad_q + r * p.qk_dim, p.qk_dim, static_cast<float>(p.scale), to(r));
      }
    }

   private:
    const HeadView& head_;
    core::Interval rows_;
    const PairBackward& task_;
    Memory memory_;
    BackwardTile<Multiplier> tile_;
  };

 private:
  // The worker's memory with queries that were packed before.
  [[nodiscard]] Memory with_slot(std::byte* slot) const {
    Arena arena(slot);
    return t_.with(PackedQueries<Multiplier>(arena, p_, plan_.slot_rows));
  }

  const core::Problem& p_;
  const BackwardPlan& plan_;
  const Memory& t_;
  TaskKeys keys_;
  std::uint32_t non_finite_ = 0;
  [[maybe_unused]] typename Multiplier::Session session_{};
};

}  // namespace tessera::cpu::HWY_NAMESPACE::bf16
TESSERA_BF16_END
