// A tile of queries of one head for backward in bf16: Q and dO in the forms that the products read,
// LSE and delta. A task packs it for itself; of split heads it is packed once for all tasks.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>

#include "cpu/flash2/bf16/pairs-inl.h"
#include "cpu/head_view.h"
#include "cpu/machine/arena.h"

TESSERA_BF16_BEGIN
namespace tessera::cpu::HWY_NAMESPACE::bf16 {

// A tile of queries in the forms that the products read.
template <typename Multiplier>
struct PackedQueries {
  std::int64_t qk_row, v_row;                  // head_dims in the multiplier's whole steps
  std::int64_t qk_lanes, v_lanes;              // and in whole vectors
  std::uint16_t *q, *grad_out;                 // tile rows x head_dim
  Pair *q_t, *grad_out_t;                      // head_dim / 2 x tile rows
  Pair *q_interleaved, *grad_out_interleaved;  // tile rows / 2 x head_dim in vectors
  float *lse, *delta;                          // per row; LSE in units of log2
  bool* finite;                                // whether q and grad_out are, everywhere

  PackedQueries(Arena& arena, const core::Problem& problem, std::int64_t rows)
      : qk_row(round_up(problem.qk_dim, Multiplier::kRowStep)),
        v_row(round_up(problem.v_dim, Multiplier::kRowStep)),
        qk_lanes(round_up(problem.qk_dim, Multiplier::kStrip * kLanes)),
        v_lanes(round_up(problem.v_dim, Multiplier::kStrip * kLanes)),
        q(arena.take<std::uint16_t>(rows * qk_row)),
        grad_out(arena.take<std::uint16_t>(rows * v_row)),
        q_t(arena.take<Pair>(qk_row / 2 * line_stride(rows))),
        grad_out_t(arena.take<Pair>(v_row / 2 * line_stride(rows))),
        q_interleaved(arena.take<Pair>(rows / 2 * line_stride(qk_lanes))),
        grad_out_interleaved(arena.take<Pair>(rows / 2 * line_stride(v_lanes))),
        lse(arena.take<float>(rows)),
        delta(arena.take<float>(rows)),
        finite(arena.take<bool>(1)) {}
};

// Packs one tile of queries of one head.
template <typename Multiplier>
class QueryPacker {
 public:
  QueryPacker(const HeadView& head, const core::Interval& rows, const PackedQueries<Multiplier>& memory)
      : head_(head),
        p_(head.p),
        rows_(rows),
        count_(rows.length()),
        width_(round_up(count_, Multiplier::kStrip * kLanes)),
        t_(memory) {}

  // Q is multiplied by the sign of the scale. Rows past the end are 0 and have an LSE of +inf, like
  // rows that see nothing: their P is 0.
  void pack() {
    const PackedRows q{t_.q, t_.qk_row}, grad_out{t_.grad_out, t_.v_row};
    copy_rows(count_, p_.qk_dim, p_.scale < 0 ? 0x8000 : 0, q, [&](std::int64_t r) TESSERA_BF16_ATTR {
      return head_.query_row<const BFloat16>(p_.q, rows_.begin + r);
    });
    copy_rows(count_, p_.v_dim, 0, grad_out, [&](std::int64_t r) TESSERA_BF16_ATTR {
      return head_.query_row<const BFloat16>(p_.grad_out, rows_.begin + r);
    });
    const auto rest = static_cast<std::size_t>(width_ - count_);
    std::memset(t_.q + count_ * t_.qk_row, 0, rest * static_cast<std::size_t>(t_.qk_row) * sizeof(*t_.q));
    std::memset(t_.grad_out + count_ * t_.v_row, 0,
                rest * static_cast<std::size_t>(t_.v_row) * sizeof(*t_.q));
    std::fill_n(t_.lse, width_, std::numeric_limits<float>::infinity());
    std::fill_n(t_.delta, width_, 0.0F);
    for (std::int64_t i = rows_.begin; i < rows_.end; ++i) {
      prefetch_row(head_.query_row<const BFloat16>(p_.out, i), p_.v_dim);
    }
    for (std::int64_t r = 0; r < count_; ++r) {
      const float lse = *head_.query_row<const float>(p_.lse, rows_.begin + r);
      if (lse == core::kMinusInfinity<float>) continue;
      t_.lse[r] = lse * kLog2E;
      t_.delta[r] = delta_of(r);
    }
    *t_.finite = all_finite(q, count_) && all_finite(grad_out, count_);
    transpose_pairs(q, width_, t_.q_t, line_stride(width_));
    transpose_pairs(grad_out, width_, t_.grad_out_t, line_stride(width_));
    interleave_rows(q, width_, t_.q_interleaved, line_stride(t_.qk_lanes));
    interleave_rows(grad_out, width_, t_.grad_out_interleaved, line_stride(t_.v_lanes));
  }

 private:
  // The dot product of rows of dO and O, minus the gradient of the LSE.
  float delta_of(std::int64_t r) const {
    const auto* out =
        reinterpret_cast<const std::uint16_t*>(head_.query_row<const BFloat16>(p_.out, rows_.begin + r));
    const std::uint16_t* grad_out = t_.grad_out + r * t_.v_row;
    __m512 sum = _mm512_setzero_ps();
    for (std::int64_t c = 0; c < p_.v_dim; c += kLanes) {
      const std::int64_t left = p_.v_dim - c;
      const __mmask16 valid = left >= kLanes ? 0xFFFF : static_cast<__mmask16>((1U << left) - 1);
      auto load = [&](const std::uint16_t* from) TESSERA_BF16_ATTR {
        return _mm512_castsi512_ps(
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(valid, from + c)), 16));
      };
      sum = _mm512_fmadd_ps(load(out), load(grad_out), sum);
    }
    const float delta = _mm512_reduce_add_ps(sum);
    return p_.has_grad_lse ? delta - *head_.query_row<const float>(p_.grad_lse, rows_.begin + r) : delta;
  }

  const HeadView& head_;
  const core::Problem& p_;
  core::Interval rows_;
  std::int64_t count_;
  std::int64_t width_;
  const PackedQueries<Multiplier>& t_;
};

}  // namespace tessera::cpu::HWY_NAMESPACE::bf16
TESSERA_BF16_END
