// The options of a call: algorithm, scale and softcap, dropout, ALiBi, origin.
#include <cmath>

#include "api/arguments.h"
#include "core/base/checked.h"
#include "core/philox.h"

namespace tessera::api {
namespace {

using core::kMaxPosition;
using core::Problem;

// Scale and softcap. Kernels also form their quotient, inverses and products with log2(e) and
// keep_scale, in the accumulator type: none of these may overflow or round to 0, or infinity * 0
// would make a NaN of finite scores.
void take_score_factors(const Attention& attention, Problem& p) {
  const bool fp64 = accumulator_of(p.dtype) == DType::fp64;
  const double most = fp64 ? 0x1p1000 : 0x1p100;
  auto in_range = [most](double x) { return std::abs(x) >= 1 / most && std::abs(x) <= most; };
  const char* range = fp64 ? "between 2^-1000 and 2^1000 in absolute value, since scores are summed in fp64"
                           : "between 2^-100 and 2^100 in absolute value, since scores are summed in fp32";

  p.scale = attention.scale.value_or(1.0 / std::sqrt(static_cast<double>(p.qk_dim)));
  if (!std::isfinite(p.scale)) refuse("attention.scale is ", p.scale, "; it must be finite");
  if (p.scale != 0 && !in_range(p.scale)) {
    refuse("attention.scale is ", p.scale, "; it must be 0 or ", range);
  }
  p.softcap = attention.softcap;
  if (!std::isfinite(p.softcap) || p.softcap < 0) {
    refuse("attention.softcap is ", p.softcap, "; it must be finite and at least 0 (off)");
  }
  if (p.softcap == 0) return;
  if (!in_range(p.softcap)) refuse("attention.softcap is ", p.softcap, "; it must be 0 (off) or ", range);
  if (p.scale != 0 && !in_range(p.scale / p.softcap)) {
    refuse("attention.softcap is ", p.softcap, " with a scale of ", p.scale, "; scale / softcap must be ",
           range);
  }
}

void take_alibi(const Alibi& alibi, Problem& p) {
  if (alibi.batch_stride < 0) {
    refuse("attention.alibi.batch_stride is ", alibi.batch_stride, "; it must not be negative");
  }
  check_aligned("attention.alibi.slopes", alibi.slopes);
  p.alibi_slopes = alibi.slopes;
  p.alibi_batch_stride = alibi.batch_stride;
  if (p.alibi_slopes != nullptr && !core::product_below(kMostElements, {p.batch, p.alibi_batch_stride})) {
    refuse("attention.alibi.batch_stride is ", p.alibi_batch_stride, "; for ", p.batch,
           " batch entries there must be fewer than 2^59 slopes");
  }
}

// GPUs count distances in 32 bits. Lengths are bounded by each kernel; a diagonal that follows from
// them is, too.
void check_alibi_distance(const Problem& p) {
  if (p.alibi_slopes == nullptr || (!p.explicit_diagonal && p.align == Align::bottom_right)) return;
  const std::int64_t diagonal = p.origin.row - p.origin.column + (p.explicit_diagonal ? p.diagonal : 0);
  if (std::abs(diagonal) < core::kFarthestAlibi) return;
  refuse("attention.alibi has a diagonal at ", diagonal,
         " (origin.row - origin.column + mask.diagonal); it must be less than 2^29 away from 0; pass larger "
         "distances as a bias");
}

void take_dropout(const Dropout& dropout, Problem& p) {
  if (!(dropout.probability >= 0 && dropout.probability < 1)) {
    refuse("attention.dropout.probability is ", dropout.probability, "; it must be in [0, 1)");
  }
  p.dropout = dropout.probability > 0;
  p.dropout_threshold = core::dropout_threshold(dropout.probability);
  if (p.dropout_threshold == core::kDropoutSteps) {
    refuse("attention.dropout.probability is ", dropout.probability,
           "; it must be below 1 - 2^-16, because it is rounded to steps of 2^-15");
  }
  p.keep_scale = core::dropout_keep_scale(p.dropout_threshold);
  p.seed = dropout.seed;
  p.offset = dropout.offset;
  p.dropout_state = dropout.state;
  check_aligned("attention.dropout.state", dropout.state);
}

void take_origin(const Origin& origin, Problem& p) {
  p.origin = origin;
  auto check_position = [](const char* name, std::int64_t first, std::int64_t count) {
    if (first < 0 || first > kMaxPosition - count) {
      refuse("attention.origin.", name, " is ", first,
             "; it must not be negative, and the last position must be below 2^32");
    }
  };
  check_position("row", p.origin.row, p.q_length);
  check_position("column", p.origin.column, p.k_length);
  check_position("batch", p.origin.batch, p.batch);
  check_position("head", p.origin.head, p.q_heads);
}

}  // namespace

void take_options(const Attention& attention, Problem& p) {
  if (attention.algorithm > Algorithm::minimal) {
    refuse("attention.algorithm is ", static_cast<int>(attention.algorithm),
           "; it must be automatic, standard, flash1, flash2, flash3 or minimal");
  }
  p.algorithm = attention.algorithm;
  p.deterministic = attention.deterministic;
  take_score_factors(attention, p);
  take_dropout(attention.dropout, p);
  take_alibi(attention.alibi, p);
  take_origin(attention.origin, p);
  check_alibi_distance(p);
}

}  // namespace tessera::api
