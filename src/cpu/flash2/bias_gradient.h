// The gradient of a bias: a pass of its own, in which every sum has one owner, for the backward kernels that run
// on vectors.
#pragma once

#include <cstddef>

#include "core/kernel.h"
#include "core/problem.h"

namespace tessera::cpu {

// Workspace of so many workers; 0 when no gradient of a bias is asked for. The active target must have vectors.
std::size_t bias_gradient_bytes(const core::Problem& p, int workers);

// Fills grad_bias.
void bias_gradient(const core::Problem& p, int workers, const registry::Resources& resources);

}  // namespace tessera::cpu
