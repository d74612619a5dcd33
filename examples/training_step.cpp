// One training step: causal attention with dropout, forward and backward, and a
// gradient-descent step on the values that brings the output closer to a target.
#include <cstdio>
#include <random>
#include <vector>

#include "tessera/tessera.h"

namespace {

constexpr tessera::Extents kShape{2, 64, 4, 16};  // batch, sequence, heads, head_dim
constexpr std::size_t kElements = 2 * 64 * 4 * 16;

std::vector<float> random_values(unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(kElements);
  for (float& value : values) value = normal(generator);
  return values;
}

double squared_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += 0.5 * (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

}  // namespace

int main() {
  std::vector<float> q = random_values(1), k = random_values(2), v = random_values(3);
  const std::vector<float> target = random_values(4);
  std::vector<float> out(kElements), lse(2 * 4 * 64), grad_out(kElements);
  std::vector<float> grad_q(kElements), grad_k(kElements), grad_v(kElements);
  auto view = [](std::vector<float>& values) { return tessera::tensor(values.data(), kShape); };
  const tessera::Tensor lse_view = tessera::tensor(lse.data(), {2, 4, 64, 1});

  double loss = 0, first_loss = 0;
  for (int step = 0; step < 3; ++step) {
    // The offset counts the steps: each step drops other elements; backward drops
    // those of its forward.
    const tessera::Attention attention{
        .mask = tessera::causal(),
        .dropout = {.probability = 0.1, .seed = 42, .offset = static_cast<std::uint64_t>(step)}};

    // Backward needs the output of forward and the log-sum-exp of each row.
    tessera::forward(attention,
                     {.q = view(q), .k = view(k), .v = view(v), .out = view(out), .lse = lse_view});
    loss = squared_distance(out, target);
    if (step == 0) first_loss = loss;
    for (std::size_t i = 0; i < kElements; ++i) grad_out[i] = out[i] - target[i];

    tessera::backward(attention, {.q = view(q),
                                  .k = view(k),
                                  .v = view(v),
                                  .out = view(out),
                                  .lse = lse_view,
                                  .grad_out = view(grad_out),
                                  .grad_q = view(grad_q),
                                  .grad_k = view(grad_k),
                                  .grad_v = view(grad_v)});
    for (std::size_t i = 0; i < kElements; ++i) {
      q[i] -= 0.2F * grad_q[i];
      k[i] -= 0.2F * grad_k[i];
      v[i] -= 0.2F * grad_v[i];
    }
    std::printf("step %d: loss %.1f\n", step, loss);
  }
  const bool falls = loss < first_loss;
  std::printf("the loss %s\n", falls ? "falls" : "does not fall");
  return falls ? 0 : 1;
}
