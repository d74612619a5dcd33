// Workspace for measurements: counts the memory in use, enforces a limit, and keeps freed blocks so
// that no measured call pays for fresh pages.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include "tessera/execution.h"

namespace tessera::lab {

// An allocator that knows what was in use at most.
class MeasuringAllocator : public Allocator {
 public:
  // The most that was in use at once since the last reset.
  [[nodiscard]] virtual std::size_t peak() const = 0;
  virtual void reset_peak() = 0;
};

// Host memory.
class CountingAllocator final : public MeasuringAllocator {
 public:
  // Never more than `limit` bytes at a time, kept blocks included.
  explicit CountingAllocator(std::size_t limit);
  ~CountingAllocator() override;
  CountingAllocator(const CountingAllocator&) = delete;
  CountingAllocator& operator=(const CountingAllocator&) = delete;

  void* allocate(std::size_t bytes, std::size_t alignment, void* stream) override;
  void deallocate(void* data, std::size_t bytes, std::size_t alignment, void* stream) override;

  [[nodiscard]] std::size_t peak() const override;
  void reset_peak() override;

  // Bytes in use now.
  [[nodiscard]] std::size_t in_use() const;

  // Gives kept blocks back to the system.
  void release();

 private:
  struct Block {
    void* data;
    std::size_t bytes;
    std::size_t alignment;
  };

  void release_locked();

  mutable std::mutex mutex_;
  std::size_t limit_;
  std::size_t in_use_ = 0;
  std::size_t peak_ = 0;
  std::size_t kept_bytes_ = 0;
  std::vector<Block> kept_;
};

}  // namespace tessera::lab
