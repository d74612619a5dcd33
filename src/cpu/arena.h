// Workspace cut into arrays: the same code counts the bytes (without memory) and hands them out (with it).
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::cpu {

class Arena {
 public:
  // Without memory the arena only counts.
  explicit Arena(std::byte* memory = nullptr) : memory_(memory) {}

  // An array of `count` elements, aligned to a cache line.
  template <typename T>
  T* take(std::int64_t count) {
    T* array = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + used_);
    used_ += (static_cast<std::size_t>(count) * sizeof(T) + kLine - 1) / kLine * kLine;
    return array;
  }

  [[nodiscard]] std::size_t used() const { return used_; }

 private:
  static constexpr std::size_t kLine = 64;
  std::byte* memory_;
  std::size_t used_ = 0;
};

}  // namespace tessera::cpu
