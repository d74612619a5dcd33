// The error that rounding alone may add to each result, for any implementation that computes in the
// accumulator type and keeps out and LSE in their own types between forward and backward. It covers
// errors that the size of a result does not show: a gradient of 0 that is the difference of two
// large numbers, or a probability computed again from scores of 1e5.
#pragma once

#include "reference/oracle/oracle.h"
#include "tessera/attention.h"

namespace tessera::reference {

// Absolute errors, in the shapes of the results.
struct Rounding {
  Forward forward;
  Gradients gradients;
};

Rounding expected_rounding(const Attention& attention, const BackwardTensors& tensors);

}  // namespace tessera::reference
