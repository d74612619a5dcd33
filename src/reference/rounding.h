// How far rounding alone may be expected to move each result, for any implementation that computes in the
// accumulator type and keeps out and LSE in their own types between forward and backward. It knows what the
// size of a result does not show, such as a gradient of 0 that is the difference of two large numbers, or a
// probability recomputed from scores of 1e5.
#pragma once

#include "reference/oracle.h"
#include "tessera/attention.h"

namespace tessera::reference {

// In the shapes of out and lse, as absolute errors.
Forward rounding_forward(const Attention& attention, const ForwardTensors& tensors);

// In the shapes of the gradients, as absolute errors.
Gradients rounding_backward(const Attention& attention, const BackwardTensors& tensors);

}  // namespace tessera::reference
