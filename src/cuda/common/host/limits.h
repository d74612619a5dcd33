// What a GPU and a grid allow a kernel, for the functions that choose one. All of it is arithmetic
// on numbers that the host knows: no function here asks the GPU.
//
// A limit returns true when it is exceeded and gives the reason, whose subject is the kernel:
// "requires ...".
#pragma once

#include <climits>
#include <cstdint>
#include <iosfwd>

#include "core/base/reason.h"
#include "core/problem.h"
#include "cuda/common/host/device.h"

namespace tessera::cuda {

inline constexpr std::int64_t kMostBlocks = 0x7FFFFFFF;  // thread blocks of a grid
// Shared memory that CUDA itself takes for each thread block.
inline constexpr int kReservedPerBlock = 1024;

// A compute capability, 10 * major + minor, that prints as "8.0".
struct Capability {
  int value = 0;
};

std::ostream& operator<<(std::ostream& stream, Capability capability);

// The compute capabilities that a kernel is compiled for.
struct Capabilities {
  int least = 0;
  int most = INT_MAX;
};

// The problem's GPU cannot be used, has another compute capability, or this build has no code for
// it.
bool gpu_limit(const core::Problem& p, Capabilities capabilities, Code code, core::Reason reason);

// A thread block of the problem's GPU cannot have `bytes` of shared memory when it runs code of
// this kind.
bool shared_memory_limit(const core::Problem& p, Code code, std::int64_t bytes, core::Reason reason);

// A sequence is too long for positions of 32 bits (kLongestWalk).
bool length_limit(const core::Problem& p, core::Reason reason);

// A sequence is too long, or a grid with a thread block for every `tile_rows` queries or keys of a
// head is too large.
bool size_limits(const core::Problem& p, std::int64_t tile_rows, core::Reason reason);

// The rows of all heads, `length` of each, exceed 31 bits.
bool row_limit(const core::Problem& p, std::int64_t length, core::Reason reason);

// A grid of `blocks` thread blocks, counted without overflow, cannot be launched.
bool grid_limit(std::int64_t blocks, core::Reason reason);

// Whether every row begins on a 16-byte boundary.
bool aligned(const core::View& view, DType dtype);

// The same, and rows of `columns` numbers are whole 16-byte chunks.
bool aligned(const core::View& view, std::int64_t columns, DType dtype);

// How many heads should advance together, in groups of equal size: as many as give every
// multiprocessor two tiles, and as many as keep the `bytes_per_head` that their tiles revisit
// within `cache_bytes`.
std::int64_t heads_together(std::int64_t heads, std::int64_t tiles, std::int64_t bytes_per_head,
                            std::size_t cache_bytes, int multiprocessors);

// The product of sizes that are not negative; INT64_MAX when it overflows.
template <typename... Sizes>
constexpr std::int64_t product(Sizes... sizes) {
  std::int64_t result = 1;
  bool overflows = false;
  ((overflows = __builtin_mul_overflow(result, static_cast<std::int64_t>(sizes), &result) || overflows), ...);
  const bool empty = ((sizes == 0) || ...);
  return empty ? 0 : overflows ? INT64_MAX : result;
}

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

}  // namespace tessera::cuda
