// Causal attention over four tokens, in twenty lines.
#include <cstdio>
#include <vector>

#include "tessera/tessera.h"

int main() {
  // Tensors are views of your memory: batch, sequence, heads, head_dim.
  const tessera::Extents shape{1, 4, 1, 2};
  const std::vector<float> q{1, 0, 0, 1, 1, 1, 0, 0};
  const std::vector<float> k{1, 0, 0, 1, 1, 1, 0, 0};
  const std::vector<float> v{1, 10, 2, 20, 3, 30, 4, 40};
  std::vector<float> out(8);

  tessera::forward({.mask = tessera::causal()}, {.q = tessera::tensor(q.data(), shape),
                                                 .k = tessera::tensor(k.data(), shape),
                                                 .v = tessera::tensor(v.data(), shape),
                                                 .out = tessera::tensor(out.data(), shape)});

  for (int row = 0; row < 4; ++row) std::printf("%.3f %.3f\n", out[2 * row], out[2 * row + 1]);
}
