// What the backward passes of several baselines need first.
#pragma once

#include "core/problem.h"

namespace tessera::cuda {

// delta = <dO, O> - dLSE of row i of a head of a sequence, stored at delta[(sequence * q_heads +
// head) * q_length + i]. 0 beyond the end of a sequence. For tensors of any type; only in builds
// with CUDA.
void row_delta(const core::Problem& p, float* delta, void* stream);

}  // namespace tessera::cuda
