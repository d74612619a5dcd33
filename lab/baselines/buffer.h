// Memory of a baseline.
#pragma once

#include <cstddef>
#include <new>
#include <utility>

#include "tessera/execution.h"

namespace tessera::lab {

// Memory of the allocator that measures the call.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Execution& execution, std::size_t bytes)
      : allocator_(execution.allocator), stream_(execution.stream), bytes_(bytes) {
    data_ = allocator_->allocate(bytes_, kAlignment, stream_);
    if (data_ == nullptr) throw std::bad_alloc();
  }
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(allocator_, other.allocator_);
    std::swap(stream_, other.stream_);
    std::swap(bytes_, other.bytes_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~Buffer() {
    if (data_ != nullptr) allocator_->deallocate(data_, bytes_, kAlignment, stream_);
  }
  [[nodiscard]] void* data() const { return data_; }

 private:
  static constexpr std::size_t kAlignment = 256;

  Allocator* allocator_ = nullptr;
  void* stream_ = nullptr;
  std::size_t bytes_ = 0;
  void* data_ = nullptr;
};

}  // namespace tessera::lab
