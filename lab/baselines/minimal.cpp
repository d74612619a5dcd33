// The teaching kernel on the CPU: cuda/baselines/minimal/kernel.cu with its threads one after the
// other. One row at a time, 32 keys at a time, running maximum and sum; one thread, no vectors by
// hand. Forward only.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "lab/baselines/baseline.h"
#include "lab/problem/theory.h"
#include "tessera/error.h"

namespace tessera::lab {
namespace {

constexpr std::int64_t kTile = 32;
constexpr std::int64_t kMostDims = 256;
constexpr double kCache = 1 << 20;  // K and V of a head stay in a second-level cache of about this size

const float* row_of(const Tensor& tensor, std::int64_t batch, std::int64_t row, std::int64_t head) {
  const Extents& n = tensor.shape;  // contiguous: batch, row, head, dim
  return static_cast<const float*>(tensor.data) + ((batch * n[1] + row) * n[2] + head) * n[3];
}

void attend(const ForwardTensors& t, std::int64_t batch, std::int64_t head, std::int64_t row, float scale) {
  const std::int64_t dim = t.q.shape[3], keys = t.k.shape[1];
  const float* q = row_of(t.q, batch, row, head);
  std::array<float, kMostDims> sums{};
  float row_max = -std::numeric_limits<float>::infinity(), row_sum = 0;
  for (std::int64_t begin = 0; begin < keys; begin += kTile) {
    const std::int64_t count = std::min(kTile, keys - begin);
    std::array<float, kTile> scores{};
    float tile_max = row_max;
    for (std::int64_t j = 0; j < count; ++j) {
      const float* k = row_of(t.k, batch, begin + j, head);
      float score = 0;
      for (std::int64_t d = 0; d < dim; ++d) score += q[d] * k[d];
      scores[j] = score * scale;
      tile_max = std::max(tile_max, scores[j]);
    }
    const float alpha = std::exp(row_max - tile_max);  // 0 for the first tile
    row_max = tile_max;
    row_sum *= alpha;
    for (std::int64_t d = 0; d < dim; ++d) sums[d] *= alpha;
    for (std::int64_t j = 0; j < count; ++j) {
      const float probability = std::exp(scores[j] - row_max);
      row_sum += probability;
      const float* v = row_of(t.v, batch, begin + j, head);
      for (std::int64_t d = 0; d < dim; ++d) sums[d] += probability * v[d];
    }
  }
  auto* out = const_cast<float*>(row_of(t.out, batch, row, head));
  for (std::int64_t d = 0; d < dim; ++d) out[d] = sums[d] / row_sum;
}

class Minimal final : public Baseline {
 public:
  Plan plan(const Operation& operation, const Tensors& tensors, Direction direction,
            const Execution& execution) const override {
    require_plain("minimal", operation);
    require_fp32_on_cpu("minimal", operation, tensors);
    if (direction == Direction::backward)
      throw Error(ErrorCode::unsupported, "the baseline minimal has no backward");
    Plan plan = tessera::plan(operation.attention(Algorithm::automatic), tensors.forward(), execution);
    plan.kernel = "lab.minimal";
    plan.algorithm = Algorithm::minimal;
    plan.threads = 1;
    plan.block_q = 1;
    plan.block_k = kTile;
    plan.workspace_bytes = 0;
    plan.traffic_bytes = cost_of(operation, direction, Algorithm::minimal, 1, kTile, kCache).traffic_bytes;
    return plan;
  }

  void run(const Operation& operation, const Tensors& tensors, Direction, const Execution&) override {
    const Shapes& s = operation.shapes();
    const ForwardTensors t = tensors.forward();
    const float scale = 1 / std::sqrt(static_cast<float>(s.qk_dim));
    for (std::int64_t batch = 0; batch < s.batch; ++batch) {
      for (std::int64_t head = 0; head < s.q_heads; ++head) {
        for (std::int64_t row = 0; row < s.q_length; ++row) attend(t, batch, head, row, scale);
      }
    }
  }

  bool exact() const override { return true; }
};

}  // namespace

std::unique_ptr<Baseline> make_minimal() { return std::make_unique<Minimal>(); }

}  // namespace tessera::lab
