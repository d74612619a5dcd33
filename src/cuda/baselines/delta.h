// What the backward passes of several baselines begin with.
#pragma once

#include "core/problem.h"

namespace tessera::cuda {

// delta = <dO, O> - dLSE of row i of a head of a sequence, to delta[(sequence * q_heads + head) * q_length + i]; 0 past the end
// of a sequence. Tensors of any type; only in builds with CUDA.
void row_delta(const core::Problem& p, float* delta, void* stream);

}  // namespace tessera::cuda
