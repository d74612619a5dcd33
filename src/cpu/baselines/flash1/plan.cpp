#include "cpu/baselines/flash1/plan.h"

#include <algorithm>

namespace tessera::cpu {
namespace {

// The paper's rule: a quarter of the fast memory each for K, V, Q and O. So half of the
// second-level cache holds what stays for all queries, `row_elements` accumulators per key.
std::int64_t keys_that_stay(const core::Problem& p, std::int64_t row_elements, std::int64_t multiple,
                            std::int64_t l2_bytes) {
  const auto element = static_cast<std::int64_t>(size_of(accumulator_of(p.dtype)));
  const std::int64_t fitting = l2_bytes / 2 / (element * row_elements);
  return std::clamp<std::int64_t>(fitting / multiple * multiple, multiple, 512);
}

}  // namespace

Flash1Plan flash1_forward_plan(const core::Problem& p, std::int64_t tile_rows, std::int64_t l2_bytes) {
  const std::int64_t keys = keys_that_stay(p, p.qk_dim + p.v_dim, 64, l2_bytes);
  return {tile_rows, keys, keys};
}

// dK and dV stay with K and V.
Flash1Plan flash1_backward_plan(const core::Problem& p, std::int64_t tile_rows, std::int64_t l2_bytes) {
  constexpr std::int64_t kStepKeys = 128;
  return {tile_rows, keys_that_stay(p, 2 * (p.qk_dim + p.v_dim), kStepKeys, l2_bytes), kStepKeys};
}

}  // namespace tessera::cpu
