// What this machine can do at best: loops that do nothing but one kind of work, at the highest rate
// there is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::lab {

// A kind of arithmetic. A step keeps enough independent sums in registers to hide the latency of
// the instruction; nothing is loaded or stored.
struct Arithmetic {
  const char* name = "";          // as in "fp32_fma"
  const char* instructions = "";  // as in "avx512"
  double flops_per_step = 0;
  float (*run)(std::int64_t steps) = nullptr;  // null: this machine does not have it ...
  const char* missing = "";                    // ... and this is why
};

// Reads every byte of a block once and returns something that depends on all of them. The size is a
// multiple of kReadUnit.
using ReadBlock = std::uint64_t (*)(const std::byte* data, std::size_t bytes);
inline constexpr std::size_t kReadUnit = 512;
inline constexpr std::size_t kReadBlock = std::size_t{4} << 20;

struct Reading {
  const char* instructions = "";
  ReadBlock memory = nullptr;  // fetches ahead
  ReadBlock cache = nullptr;   // does not
};

// fp32 FMA, bf16 dot products and bf16 AMX, in this order, each with the best instructions of this
// machine.
std::vector<Arithmetic> arithmetic_ceilings();

Reading reading_ceiling();

#if defined(__x86_64__)
// The loops for x86-64, for arithmetic_ceilings: only call what the CPU has.
namespace x86 {
constexpr int kSums = 16;      // in flight in the AVX-512 loops: two pipes with a latency of up to 8 cycles
constexpr int kSumsAvx2 = 12;  // two pipes with a latency of up to 5 cycles, in 16 registers
constexpr int kTiles = 6;      // tiles of sums in the AMX loop; the other two are its operands

float fma_avx2(std::int64_t steps);
float fma_avx512(std::int64_t steps);
float dot_avx512_bf16(std::int64_t steps);
std::uint64_t read_memory_avx512(const std::byte* data, std::size_t bytes);
std::uint64_t read_cache_avx512(const std::byte* data, std::size_t bytes);

// Whether the CPU has AMX for bf16 and the operating system lets this process use it; asks Linux
// for permission.
bool request_amx_bf16();
float dot_amx_bf16(std::int64_t steps);
}  // namespace x86
#endif

}  // namespace tessera::lab
