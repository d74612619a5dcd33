// Workspace in device memory cut into arrays: the same code counts the bytes (without memory) and hands them out
// (with it).
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace tessera::cuda {

class Arena {
 public:
  // Without memory the arena only counts.
  explicit Arena(std::byte* memory = nullptr) : memory_(memory) {}

  // An array of `count` elements of `size` bytes, aligned for every kind of access. Sizes beyond what a number holds
  // stay the largest there is: allocating that fails as it should.
  void* take_bytes(std::size_t count, std::size_t size) {
    constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max() / 4;
    void* array = memory_ == nullptr ? nullptr : memory_ + used_;
    std::size_t bytes = 0;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > kMost - used_) {
      used_ = kMost;
    } else {
      used_ += (bytes + kLine - 1) / kLine * kLine;
    }
    return array;
  }

  template <typename T>
  T* take(std::int64_t count) {
    return static_cast<T*>(take_bytes(static_cast<std::size_t>(count), sizeof(T)));
  }

  [[nodiscard]] std::size_t used() const { return used_; }

 private:
  static constexpr std::size_t kLine = 256;
  std::byte* memory_;
  std::size_t used_ = 0;
};

}  // namespace tessera::cuda
