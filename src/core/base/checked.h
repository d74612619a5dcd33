// Products and sums of sizes that may not fit their type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>

namespace tessera::core {

// Throws Error (out_of_memory): a call needs more bytes than a 64-bit machine can address. Counting
// throws it, before the call allocates anything. Handing out never does, because it takes the sizes
// that were counted.
[[noreturn]] void throw_workspace_too_large();

// Sizes in bytes of at most 2^63 - 1.
inline std::size_t checked_product(std::size_t a, std::size_t b) {
  std::size_t product = 0;
  if (__builtin_mul_overflow(a, b, &product) || product > std::numeric_limits<std::int64_t>::max()) {
    throw_workspace_too_large();
  }
  return product;
}

inline std::size_t checked_sum(std::size_t a, std::size_t b) {
  std::size_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum) || sum > std::numeric_limits<std::int64_t>::max()) {
    throw_workspace_too_large();
  }
  return sum;
}

// Whether the product of sizes, without those of 0, is below `limit`.
inline bool product_below(std::int64_t limit, std::initializer_list<std::int64_t> sizes) {
  std::int64_t product = 1;
  for (const std::int64_t size : sizes) {
    if (size != 0 && __builtin_mul_overflow(product, size, &product)) return false;
  }
  return product < limit;
}

}  // namespace tessera::core
