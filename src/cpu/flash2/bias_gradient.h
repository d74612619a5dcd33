// The gradient of a bias: a pass of its own, in which every sum has one owner, after any backward
// kernel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/kernel.h"
#include "core/problem.h"
#include "cpu/machine/target.h"

namespace tessera::cpu {

// The workspace of so many workers; 0 when the call requests no gradient of the bias.
std::size_t bias_gradient_bytes(const core::Problem& p, Target target, int workers);

// Fills grad_bias.
void bias_gradient(const core::Problem& p, Target target, int workers, const core::Resources& resources);

// The pass compiled for one instruction set.
struct BiasGradientOps {
  // The number of tasks: each owns a tile of the bias.
  std::int64_t (*tasks)(const core::Problem& p);
  // The memory of a worker.
  std::size_t (*worker_bytes)(const core::Problem& p);
  void (*run_task)(const core::Problem& p, std::int64_t task, std::byte* memory);
};

}  // namespace tessera::cpu
