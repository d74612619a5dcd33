// The gradient of a bias on vectors: the entry points of each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/problem.h"
#include "cpu/machine/target.h"

namespace tessera::cpu {

// The pass compiled for one instruction set.
struct BiasGradientEngine {
  // Tasks: each owns a tile of the bias.
  std::int64_t (*tasks)(const core::Problem& p);
  // Memory that a worker needs.
  std::size_t (*worker_bytes)(const core::Problem& p);
  void (*run_task)(const core::Problem& p, std::int64_t task, std::byte* memory);
};

// Null for Target::portable.
const BiasGradientEngine* bias_gradient_engine(Target target);

}  // namespace tessera::cpu
