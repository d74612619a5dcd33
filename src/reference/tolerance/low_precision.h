// The model that sets tolerances: what a framework's plain attention does in the type of the tensors. Each
// step is its own operation whose result is rounded to that type, products accumulate in the accumulator type
// (fp32, fp64 for fp64) one after the other, and softmax runs in the accumulator type.
#pragma once

#include "reference/oracle/oracle.h"
#include "tessera/attention.h"

namespace tessera::reference {

// Output and LSE as standard attention in the type of q gives them.
Forward model_forward(const Attention& attention, const ForwardTensors& tensors);

// Gradients likewise, from the model's own forward.
Gradients model_backward(const Attention& attention, const BackwardTensors& tensors);

}  // namespace tessera::reference
