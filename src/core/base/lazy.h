// Static data that is made on first use.
#pragma once

#include <atomic>
#include <memory>

namespace tessera::core {

// A value that `get` makes on first use and that is never destroyed:
//
//   constinit core::Lazy<Library> library;
//   ... library.get(load)
//
// It differs from a static local variable in two ways. Destructors that run late may still use it.
// And no thread waits for another one to make it: a child that is forked meanwhile would wait for a
// thread that it does not have. Threads that come at the same time may each make a value; the first
// one to finish wins and the others drop theirs.
template <typename T>
class Lazy {
 public:
  constexpr Lazy() = default;
  Lazy(const Lazy&) = delete;
  Lazy& operator=(const Lazy&) = delete;

  template <typename Make>
  T& get(const Make& make) {
    T* value = value_.load(std::memory_order_acquire);
    if (value != nullptr) return *value;
    std::unique_ptr<T> fresh(new T(make()));
    if (value_.compare_exchange_strong(value, fresh.get(), std::memory_order_acq_rel))
      return *fresh.release();
    return *value;
  }

  // Null before the first `get`.
  [[nodiscard]] T* find() const { return value_.load(std::memory_order_acquire); }

  // Makes the next `get` make another value. The old one is not destroyed.
  void forget() { value_.store(nullptr, std::memory_order_release); }

 private:
  std::atomic<T*> value_{nullptr};
};

}  // namespace tessera::core
