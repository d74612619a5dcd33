// Block-sparse attention: a BigBird pattern under a causal mask, what it keeps, and what it saves.
#include <cstdio>
#include <iostream>
#include <vector>

#include "tessera/tessera.h"

int main() {
  const std::int64_t length = 1024;
  const tessera::BlockLayout layout{.q_length = length, .k_length = length, .block_q = 64, .block_k = 64};

  // One block each side of the diagonal, the first block row and column, and one
  // random block per row.
  const tessera::BlockMask blocks = tessera::BlockMask::big_bird(layout, 1, 1, 1, /*seed=*/7);
  std::cout << blocks.draw();
  std::printf("kept: %lld of %lld blocks\n", static_cast<long long>(blocks.kept()),
              static_cast<long long>(blocks.q_blocks() * blocks.k_blocks()));

  // Masks combine: a key is visible when every part keeps it visible.
  const tessera::Attention dense{.mask = tessera::causal()};
  const tessera::Attention sparse{.mask = tessera::causal() & tessera::block_sparse(blocks)};
  const tessera::Shapes shapes{.q_length = length, .k_length = length};
  const double share = tessera::plan(sparse, shapes).flops / tessera::plan(dense, shapes).flops;
  std::printf("work: %.0f %% of dense causal attention\n", 100 * share);

  // With equal values every output is that value, however few keys are visible.
  const tessera::Extents shape{1, length, 1, 64};
  const std::vector<float> q(length * 64, 0.5F), k(length * 64, 0.25F), v(length * 64, 3.0F);
  std::vector<float> out(length * 64);
  tessera::forward(sparse, {.q = tessera::tensor(q.data(), shape),
                            .k = tessera::tensor(k.data(), shape),
                            .v = tessera::tensor(v.data(), shape),
                            .out = tessera::tensor(out.data(), shape)});
  std::printf("out: %.3f ... %.3f\n", out.front(), out.back());
  return share < 1 && out.front() > 2.999F && out.back() < 3.001F ? 0 : 1;
}
