// The floating-point environment in which the library computes.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#elif !defined(__aarch64__)
#include <cfenv>
#endif

namespace tessera::cpu {

// The control and status registers: how to enter the default environment, and how to return.
// Reading them is what costs (6 ns on Zen 4, Nov 2026), so each is read once; <cfenv> would take
// ten times that.
#if defined(__x86_64__)
struct FloatRegisters {
  std::uint32_t mxcsr;

  static FloatRegisters enter_default() noexcept {
    const FloatRegisters before{_mm_getcsr()};
    _mm_setcsr(0x1F80);  // every exception masked, all other bits 0
    return before;
  }
  void restore() const noexcept { _mm_setcsr(mxcsr); }
};
#elif defined(__aarch64__)
struct FloatRegisters {
  std::uint64_t fpcr, fpsr;

  static FloatRegisters enter_default() noexcept {
    FloatRegisters before{};
    __asm__ volatile("mrs %0, fpcr" : "=r"(before.fpcr));
    __asm__ volatile("mrs %0, fpsr" : "=r"(before.fpsr));
    if (before.fpcr != 0) __asm__ volatile("msr fpcr, %0" : : "r"(std::uint64_t{0}));
    return before;
  }
  void restore() const noexcept {
    __asm__ volatile("msr fpsr, %0" : : "r"(fpsr));
    if (fpcr != 0) __asm__ volatile("msr fpcr, %0" : : "r"(fpcr));
  }
};
#else
struct FloatRegisters {
  std::fenv_t all;

  static FloatRegisters enter_default() noexcept {
    FloatRegisters before{};
    std::fegetenv(&before.all);
    std::fesetenv(FE_DFL_ENV);
    return before;
  }
  void restore() const noexcept { std::fesetenv(&all); }
};
#endif

// While one lives, the calling thread computes in the default environment: rounding to nearest,
// subnormal numbers kept, no exception trapped. Afterwards the caller's is back, exception flags
// included: those that the library raises say nothing about the caller's numbers (exp(-infinity),
// operations on padding).
//
// One lives wherever the library computes: during a call in the caller's thread (src/api), and in
// every worker (parallel.h), whose thread may be anybody's. Operands have to come from memory that
// is read while it lives: compilers do not move reads and writes across its begin and end, but
// arithmetic they may.
class DefaultFloats {
 public:
  DefaultFloats() noexcept : before_(FloatRegisters::enter_default()) { keep_order(); }
  DefaultFloats(const DefaultFloats&) = delete;
  DefaultFloats& operator=(const DefaultFloats&) = delete;
  ~DefaultFloats() {
    keep_order();
    before_.restore();
  }

 private:
  static void keep_order() noexcept { __asm__ volatile("" : : : "memory"); }

  FloatRegisters before_;
};

}  // namespace tessera::cpu
