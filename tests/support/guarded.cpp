#include "support/guarded.h"

#include <algorithm>
#include <cstring>
#include <random>

namespace tessera::test {
namespace {

constexpr std::byte kBandByte{0xFF};
constexpr std::size_t kAlignment = 256;

bool untouched(const std::byte* begin, const std::byte* end) {
  return std::all_of(begin, end, [](std::byte b) { return b == kBandByte; });
}

}  // namespace

void fill(void* data, std::size_t bytes, Fill how) {
  switch (how) {
    case Fill::nan: std::memset(data, 0xFF, bytes); break;
    case Fill::zero: std::memset(data, 0, bytes); break;
    case Fill::random: {
      std::mt19937 engine(static_cast<std::uint32_t>(bytes));
      auto* at = static_cast<std::uint8_t*>(data);
      for (std::size_t i = 0; i < bytes; ++i) at[i] = static_cast<std::uint8_t>(engine());
      break;
    }
  }
}

GuardedBuffer::GuardedBuffer(std::size_t bytes, Fill how, std::size_t misalignment) : bytes_(bytes) {
  memory_bytes_ = bytes + 2 * kBandBytes + kAlignment + misalignment;
  memory_ = std::make_unique<std::byte[]>(memory_bytes_);
  std::memset(memory_.get(), static_cast<int>(kBandByte), memory_bytes_);
  const auto first = reinterpret_cast<std::uintptr_t>(memory_.get()) + kBandBytes;
  const std::uintptr_t aligned = (first + kAlignment - 1) / kAlignment * kAlignment;
  body_ = memory_.get() + kBandBytes + (aligned - first) + misalignment;
  fill(body_, bytes, how);
}

bool GuardedBuffer::intact() const {
  return untouched(memory_.get(), body_) && untouched(body_ + bytes_, memory_.get() + memory_bytes_);
}

void* GuardedAllocator::allocate(std::size_t bytes, std::size_t alignment, void* /*stream*/) {
  const std::lock_guard lock(mutex_);
  if (bytes == 0) complaints_ += "asked for 0 bytes\n";
  if (alignment > kAlignment || (alignment & (alignment - 1)) != 0) {
    complaints_ += "asked for an alignment of " + std::to_string(alignment) + "\n";
    return nullptr;
  }
  GuardedBuffer buffer(bytes, fill_);
  void* data = buffer.data();
  live_.emplace(data, std::move(buffer));
  ++calls_;
  current_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, current_bytes_);
  return data;
}

void GuardedAllocator::deallocate(void* data, std::size_t bytes, std::size_t /*alignment*/,
                                  void* /*stream*/) {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(data);
  if (found == live_.end()) {
    complaints_ += "got back memory it never gave\n";
    return;
  }
  if (found->second.bytes() != bytes) complaints_ += "got back another size than it gave\n";
  if (!found->second.intact()) complaints_ += "workspace was written beyond its bounds\n";
  current_bytes_ -= found->second.bytes();
  live_.erase(found);
}

std::string GuardedAllocator::complaints() const {
  const std::lock_guard lock(mutex_);
  std::string all = complaints_;
  if (!live_.empty()) all += std::to_string(live_.size()) + " allocations were never given back\n";
  return all;
}

}  // namespace tessera::test
