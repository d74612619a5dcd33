#include "lab/measure/machine/counting_allocator.h"

#include <algorithm>
#include <new>

namespace tessera::lab {

CountingAllocator::CountingAllocator(std::size_t limit) : limit_(limit) {}

CountingAllocator::~CountingAllocator() { release(); }

void* CountingAllocator::allocate(std::size_t bytes, std::size_t alignment, void* /*stream*/) {
  const std::lock_guard lock(mutex_);
  void* data = nullptr;
  const auto kept = std::find_if(kept_.begin(), kept_.end(), [&](const Block& block) {
    return block.bytes == bytes && block.alignment == alignment;
  });
  if (kept != kept_.end()) {
    data = kept->data;
    kept_bytes_ -= bytes;
    kept_.erase(kept);
  } else {
    if (bytes > limit_ || in_use_ > limit_ - bytes) return nullptr;
    if (kept_bytes_ > limit_ - bytes - in_use_) release_locked();
    data = ::operator new(bytes, std::align_val_t(alignment), std::nothrow);
    if (data == nullptr) {  // kept blocks may hold the missing memory
      release_locked();
      data = ::operator new(bytes, std::align_val_t(alignment), std::nothrow);
    }
    if (data == nullptr) return nullptr;
  }
  in_use_ += bytes;
  peak_ = std::max(peak_, in_use_);
  return data;
}

void CountingAllocator::deallocate(void* data, std::size_t bytes, std::size_t alignment, void* /*stream*/) {
  const std::lock_guard lock(mutex_);
  in_use_ -= bytes;
  try {
    kept_.push_back({data, bytes, alignment});
    kept_bytes_ += bytes;
  } catch (const std::bad_alloc&) {
    ::operator delete(data, std::align_val_t(alignment));
  }
}

std::size_t CountingAllocator::peak() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

void CountingAllocator::reset_peak() {
  const std::lock_guard lock(mutex_);
  peak_ = in_use_;
}

std::size_t CountingAllocator::in_use() const {
  const std::lock_guard lock(mutex_);
  return in_use_;
}

void CountingAllocator::release() {
  const std::lock_guard lock(mutex_);
  release_locked();
}

void CountingAllocator::release_locked() {
  for (const Block& block : kept_) ::operator delete(block.data, std::align_val_t(block.alignment));
  kept_.clear();
  kept_bytes_ = 0;
}

}  // namespace tessera::lab
