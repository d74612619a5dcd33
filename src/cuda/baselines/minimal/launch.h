// cuda.minimal: the teaching kernel. Forward only, fp32, one thread per row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/host_device.h"
#include "core/kernel.h"
#include "core/problem.h"
#include "core/task_order.h"

namespace tessera::cuda {

// What the kernel is given: a thread block takes the tile of queries that the order gives to its
// number.
struct MinimalArguments {
  core::Problem problem;
  core::BasicTaskOrder<std::uint32_t> order;
};

inline constexpr int kMinimalTile = 32;  // rows of Q, and keys of a step

// A tile of rows in shared memory; each row is one float longer than what it holds.
TESSERA_HD constexpr std::size_t minimal_tile_floats(std::int64_t dim) {
  return static_cast<std::size_t>(kMinimalTile * (dim + 1));
}

void (*minimal_kernel())(MinimalArguments);

// What the registry calls.
namespace minimal {

std::optional<core::Choice> choose(const core::Problem& p, int workers, core::Reason reason);
std::string details(const core::Problem& p, const core::Choice& choice);
void run(const core::Problem& p, const core::Choice& choice, const core::Resources& resources);

}  // namespace minimal
}  // namespace tessera::cuda
