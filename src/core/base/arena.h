// Workspace cut into arrays: the same code counts the bytes (without memory) and hands them out
// (with it).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/checked.h"

namespace tessera::core {

// The bytes that all workers share and those of each worker.
inline std::size_t workspace_bytes(std::size_t shared, std::size_t per_worker, int workers) {
  return checked_sum(shared, checked_product(per_worker, static_cast<std::size_t>(workers)));
}

// Arrays begin at multiples of `Line` bytes.
template <std::size_t Line>
class Arena {
 public:
  // Without memory the arena only counts.
  explicit Arena(std::byte* memory = nullptr) : memory_(memory) {}

  // Takes an array of `count` elements, or of the product of several counts. Sizes of a problem
  // that fit 63 bits one by one may not fit when multiplied: the product is checked.
  template <typename T, typename... Counts>
  T* take(std::int64_t count, Counts... counts) {
    std::size_t bytes = sizeof(T);
    bytes = checked_product(bytes, static_cast<std::size_t>(count));
    ((bytes = checked_product(bytes, static_cast<std::size_t>(counts))), ...);
    return static_cast<T*>(take_bytes(bytes));
  }

  void* take_bytes(std::size_t bytes) {
    void* array = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ = checked_sum(used_, checked_sum(bytes, Line - 1) / Line * Line);
    return array;
  }

  [[nodiscard]] std::size_t used() const { return used_; }

 private:
  std::byte* memory_;
  std::size_t used_ = 0;
};

}  // namespace tessera::core
