// Memory with bands around it that nobody may touch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "tessera/execution.h"

namespace tessera::test {

inline constexpr std::size_t kBandBytes = 4096;

// How fresh memory is filled. All bits set is a NaN in every type.
enum class Fill { nan, random, zero };

// A block of memory between two bands of NaN: a stray write is found by `intact`, a
// stray read by the NaN it brings into the result.
class GuardedBuffer {
 public:
  // The body starts `misalignment` bytes after a multiple of 256.
  explicit GuardedBuffer(std::size_t bytes, Fill how = Fill::nan, std::size_t misalignment = 0);

  [[nodiscard]] void* data() const { return body_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  // Whether both bands are as they were made.
  [[nodiscard]] bool intact() const;

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::size_t memory_bytes_ = 0;
  std::byte* body_ = nullptr;
  std::size_t bytes_ = 0;
};

// Fills memory; `random` gives the same bits for the same size.
void fill(void* data, std::size_t bytes, Fill how);

// An allocator that counts, fills what it hands out, guards it, and notices misuse.
class GuardedAllocator final : public Allocator {
 public:
  explicit GuardedAllocator(Fill fill = Fill::nan) : fill_(fill) {}

  void* allocate(std::size_t bytes, std::size_t alignment, void* stream) override;
  void deallocate(void* data, std::size_t bytes, std::size_t alignment, void* stream) override;

  [[nodiscard]] std::size_t calls() const { return calls_; }
  [[nodiscard]] std::size_t current_bytes() const { return current_bytes_; }
  [[nodiscard]] std::size_t peak_bytes() const { return peak_bytes_; }
  // What went wrong so far, one line each: touched bands, foreign pointers, other sizes, leaks.
  [[nodiscard]] std::string complaints() const;

 private:
  mutable std::mutex mutex_;
  Fill fill_;
  std::unordered_map<void*, GuardedBuffer> live_;
  std::size_t calls_ = 0, current_bytes_ = 0, peak_bytes_ = 0;
  std::string complaints_{};
};

}  // namespace tessera::test
