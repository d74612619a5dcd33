// Replaces the global operator new of the program that includes this (in one file
// only) by one that counts and, when told to, fails.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::int64_t> live_blocks{0};
std::atomic<std::int64_t> blocks_taken{0};
std::atomic<std::int64_t> until_failure{-1};  // allocations that still succeed; negative: all
std::atomic<bool> fails_from_then_on{false};
std::atomic<bool> has_failed{false};

void* take(std::size_t bytes, std::size_t alignment) noexcept {
  if (until_failure.load() >= 0 && until_failure.fetch_sub(1) <= 0) {
    has_failed = true;
    if (fails_from_then_on) until_failure = 0;
    return nullptr;
  }
  const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  void* data = alignment <= alignof(std::max_align_t) ? std::malloc(bytes > 0 ? bytes : 1)
                                                      : std::aligned_alloc(alignment, rounded);
  if (data != nullptr) {
    ++live_blocks;
    ++blocks_taken;
  }
  return data;
}

void* take_or_throw(std::size_t bytes, std::size_t alignment) {
  void* data = take(bytes, alignment);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

void give_back(void* data) noexcept {
  if (data == nullptr) return;
  --live_blocks;
  std::free(data);
}

// Allocations fail within the lifetime of this object: number `n` alone, or all from there on.
class Failing {
 public:
  Failing(std::int64_t n, bool from_then_on) {
    has_failed = false;
    fails_from_then_on = from_then_on;
    until_failure = n;
  }
  Failing(const Failing&) = delete;
  Failing& operator=(const Failing&) = delete;
  ~Failing() { until_failure = -1; }
};

constexpr std::size_t kPlain = alignof(std::max_align_t);
std::size_t size_of(std::align_val_t alignment) { return static_cast<std::size_t>(alignment); }

}  // namespace

// NOLINTBEGIN(misc-definitions-in-headers): replacements may not be inline
void* operator new(std::size_t n) { return take_or_throw(n, kPlain); }
void* operator new[](std::size_t n) { return take_or_throw(n, kPlain); }
void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return take(n, kPlain); }
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept { return take(n, kPlain); }
void* operator new(std::size_t n, std::align_val_t a) { return take_or_throw(n, size_of(a)); }
void* operator new[](std::size_t n, std::align_val_t a) { return take_or_throw(n, size_of(a)); }
void* operator new(std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return take(n, size_of(a));
}
void* operator new[](std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return take(n, size_of(a));
}
void operator delete(void* p) noexcept { give_back(p); }
void operator delete[](void* p) noexcept { give_back(p); }
void operator delete(void* p, std::size_t) noexcept { give_back(p); }
void operator delete[](void* p, std::size_t) noexcept { give_back(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { give_back(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { give_back(p); }
void operator delete(void* p, std::align_val_t) noexcept { give_back(p); }
void operator delete[](void* p, std::align_val_t) noexcept { give_back(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { give_back(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { give_back(p); }
void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept { give_back(p); }
void operator delete[](void* p, std::align_val_t, const std::nothrow_t&) noexcept { give_back(p); }
// NOLINTEND(misc-definitions-in-headers)
