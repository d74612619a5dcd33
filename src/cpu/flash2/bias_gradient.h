// The gradient of a bias: a pass of its own, in which every sum has one owner, for the backward kernels that run
// on vectors.
#pragma once

#include <cstddef>

#include "core/kernel.h"
#include "core/problem.h"
#include "cpu/machine/target.h"

namespace tessera::cpu {

// Workspace of `workers` workers; 0 when grad_bias is not requested. The target must have vectors.
std::size_t bias_gradient_bytes(const core::Problem& p, Target target, int workers);

// Fills grad_bias.
void bias_gradient(const core::Problem& p, Target target, int workers, const core::Resources& resources);

}  // namespace tessera::cpu
