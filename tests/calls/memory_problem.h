// A problem whose result is known, and an allocator that counts: for the tests of memory.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "tessera/error.h"
#include "tessera/tessera.h"

namespace tessera::test {

// A problem whose result is known: all scores equal, so each output is the mean of the values.
struct Problem {
  static constexpr std::int64_t kBatch = 2, kRows = 70, kKeys = 90, kHeads = 2, kDim = 8;
  std::vector<float> q, k, v, out, lse, grad_out, grad_q, grad_k, grad_v;
  ForwardTensors forward_tensors;
  BackwardTensors backward_tensors;

  Problem()
      : q(kBatch * kRows * kHeads * kDim),
        k(kBatch * kKeys * kHeads * kDim),
        v(k.size(), 3.0F),
        out(q.size()),
        lse(kBatch * kHeads * kRows),
        grad_out(q.size(), 1.0F),
        grad_q(q.size()),
        grad_k(k.size()),
        grad_v(k.size()) {
    const Extents rows{kBatch, kRows, kHeads, kDim}, keys{kBatch, kKeys, kHeads, kDim};
    const Extents per_row{kBatch, kHeads, kRows, 1};
    forward_tensors = {.q = tensor(q.data(), rows),
                       .k = tensor(k.data(), keys),
                       .v = tensor(v.data(), keys),
                       .out = tensor(out.data(), rows),
                       .lse = tensor(lse.data(), per_row)};
    backward_tensors = {.q = forward_tensors.q,
                        .k = forward_tensors.k,
                        .v = forward_tensors.v,
                        .out = forward_tensors.out,
                        .lse = forward_tensors.lse,
                        .grad_out = tensor(grad_out.data(), rows),
                        .grad_q = tensor(grad_q.data(), rows),
                        .grad_k = tensor(grad_k.data(), keys),
                        .grad_v = tensor(grad_v.data(), keys)};
    spoil();
  }

  void spoil() {
    std::fill(out.begin(), out.end(), -1.0F);
    std::fill(grad_v.begin(), grad_v.end(), -1.0F);
  }

  // Whether forward wrote what it should; the output is spoilt again for the next call.
  bool forward_is_right() {
    const bool right = all_near(out, 3.0) && all_near(lse, std::log(static_cast<double>(kKeys)));
    std::fill(out.begin(), out.end(), -1.0F);
    return right;
  }

  // dV is the sum over the rows of 1 / keys.
  bool backward_is_right() {
    const bool right = all_near(grad_v, static_cast<double>(kRows) / kKeys) && all_near(grad_q, 0);
    std::fill(grad_v.begin(), grad_v.end(), -1.0F);
    return right;
  }

  static bool all_near(const std::vector<float>& values, double expected) {
    return std::all_of(values.begin(), values.end(), [&](float x) { return std::abs(x - expected) < 1e-4; });
  }
};

// Whether this machine has the algorithm (the standard one needs OpenBLAS).
inline bool served(Algorithm algorithm) {
  try {
    (void)plan({.algorithm = algorithm}, Shapes{.q_length = 8, .k_length = 8});
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Counts what is asked for, and can have nothing to give.
class Counting final : public Allocator {
 public:
  void* allocate(std::size_t bytes, std::size_t alignment, void* stream) override {
    EXPECT_GT(bytes, 0U);
    EXPECT_EQ(stream, nullptr);
    EXPECT_EQ(alignment & (alignment - 1), 0U);
    if (empty) return nullptr;
    asked += bytes;
    ++blocks;
    return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  }
  void deallocate(void* data, std::size_t bytes, std::size_t, void*) override {
    returned += bytes;
    --blocks;
    std::free(data);
  }
  std::size_t asked = 0, returned = 0;
  int blocks = 0;
  bool empty = false;
};

}  // namespace tessera::test
