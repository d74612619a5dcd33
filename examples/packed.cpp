// Packed sequences of different lengths with grouped heads: no padding, and no
// copies of keys and values.
#include <cmath>
#include <cstdio>
#include <vector>

#include "tessera/tessera.h"

namespace {

constexpr std::int64_t kHeads = 4, kKeyValueHeads = 2, kDim = 8;  // two query heads share a key/value head
constexpr std::int32_t kOffsets[] = {0, 3, 3, 10};                // sequences of 3, 0 and 7 tokens
constexpr std::int64_t kTokens = 10;

std::vector<float> wave(std::int64_t elements, float step) {
  std::vector<float> values(static_cast<std::size_t>(elements));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(step * static_cast<float>(i));
  return values;
}

}  // namespace

int main() {
  const std::vector<float> q = wave(kTokens * kHeads * kDim, 0.7F);
  const std::vector<float> k = wave(kTokens * kKeyValueHeads * kDim, 0.3F);
  const std::vector<float> v = wave(kTokens * kKeyValueHeads * kDim, 0.9F);
  std::vector<float> packed(q.size()), alone(q.size());

  // All sequences in one call: the tensors have a batch of 1 and hold all tokens in order.
  const tessera::Lengths lengths{.q = kOffsets, .k = kOffsets, .count = 3};
  tessera::forward({.mask = tessera::causal() & tessera::packed(lengths)},
                   {.q = tessera::tensor(q.data(), {1, kTokens, kHeads, kDim}),
                    .k = tessera::tensor(k.data(), {1, kTokens, kKeyValueHeads, kDim}),
                    .v = tessera::tensor(v.data(), {1, kTokens, kKeyValueHeads, kDim}),
                    .out = tessera::tensor(packed.data(), {1, kTokens, kHeads, kDim})});

  // The same, one sequence at a time.
  for (int s = 0; s < 3; ++s) {
    const std::int64_t begin = kOffsets[s], count = kOffsets[s + 1] - begin;
    const std::int64_t at_q = begin * kHeads * kDim, at_k = begin * kKeyValueHeads * kDim;
    tessera::forward({.mask = tessera::causal()},
                     {.q = tessera::tensor(q.data() + at_q, {1, count, kHeads, kDim}),
                      .k = tessera::tensor(k.data() + at_k, {1, count, kKeyValueHeads, kDim}),
                      .v = tessera::tensor(v.data() + at_k, {1, count, kKeyValueHeads, kDim}),
                      .out = tessera::tensor(alone.data() + at_q, {1, count, kHeads, kDim})});
    std::printf("sequence %d: %lld tokens\n", s, static_cast<long long>(count));
  }
  std::printf("packed and alone: %s\n", packed == alone ? "bitwise equal" : "different");
  return packed == alone ? 0 : 1;
}
