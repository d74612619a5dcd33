// has_two_avx512_units: the question put to the hardware.
#include "cpu/machine/cpu_info.h"

#if defined(__x86_64__)
#include <algorithm>
#include <atomic>
#include <chrono>

namespace tessera::cpu {
namespace {

using Clock = std::chrono::steady_clock;

// A loop of twelve independent multiply-adds: more than two units with a latency of five cycles
// keep in flight. In assembly, so that it is the same loop whatever the compiler's options are.
#define TESSERA_FMA(vector, sum) "vfmadd231ps %%" vector "0, %%" vector "0, %%" vector #sum "\n"
#define TESSERA_MULTIPLY(vector, rounds)                                                                \
  asm volatile("vzeroall\n1:\n" TESSERA_FMA(vector, 1) TESSERA_FMA(vector, 2) TESSERA_FMA(vector, 3)    \
                   TESSERA_FMA(vector, 4) TESSERA_FMA(vector, 5) TESSERA_FMA(vector, 6) TESSERA_FMA(    \
                       vector, 7) TESSERA_FMA(vector, 8) TESSERA_FMA(vector, 9) TESSERA_FMA(vector, 10) \
                       TESSERA_FMA(vector, 11) TESSERA_FMA(vector, 12) "dec %0\njnz 1b\nvzeroupper"     \
               : "+r"(rounds)                                                                           \
               :                                                                                        \
               : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",  \
                 "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15")

void multiply_512(int rounds) noexcept { TESSERA_MULTIPLY("zmm", rounds); }
void multiply_256(int rounds) noexcept { TESSERA_MULTIPLY("ymm", rounds); }

Clock::duration time_of(void (*multiply)(int rounds) noexcept) noexcept {
  const Clock::time_point begin = Clock::now();
  multiply(200);  // half a microsecond or a whole one
  return Clock::now() - begin;
}

// Every CPU with AVX-512 starts two 256-bit multiply-adds per cycle. One with a single 512-bit unit
// takes twice as long for as many 512-bit ones, one with two units equally long. The shortest of
// several times counts: interruptions only lengthen them.
bool measure() noexcept {
  multiply_512(4000);  // 10 to 20 µs: some CPUs switch their upper lanes on first
  Clock::duration wide = Clock::duration::max(), narrow = Clock::duration::max();
  for (int trial = 0; trial < 12; ++trial) {
    wide = std::min(wide, time_of(multiply_512));
    narrow = std::min(narrow, time_of(multiply_256));
  }
  return wide * 2 < narrow * 3;
}

}  // namespace

bool has_two_avx512_units() noexcept {
  if (!__builtin_cpu_supports("avx512f")) return false;
  enum Answer : int { unknown, no, yes };
  static constinit std::atomic<Answer> answer{unknown};  // no static local: see core/base/lazy.h
  Answer found = answer.load(std::memory_order_relaxed);
  if (found == unknown) {
    const Answer measured = measure() ? yes : no;
    // Threads that measure at the same time agree on the first answer.
    if (answer.compare_exchange_strong(found, measured, std::memory_order_relaxed)) found = measured;
  }
  return found == yes;
}

}  // namespace tessera::cpu

#else

namespace tessera::cpu {

bool has_two_avx512_units() noexcept { return false; }

}  // namespace tessera::cpu

#endif
