// The model that sets tolerances: plain attention as a framework computes it in the type of the
// tensors. Each step is an operation of its own whose result is rounded to that type. Products
// accumulate one after the other in the accumulator type (fp32; fp64 for fp64), and the softmax
// runs in the accumulator type.
#pragma once

#include "reference/oracle/oracle.h"
#include "tessera/attention.h"

namespace tessera::reference {

// Output and LSE of standard attention in the type of q.
Forward model_forward(const Attention& attention, const ForwardTensors& tensors);

// Its gradients, from the model's own forward.
Gradients model_backward(const Attention& attention, const BackwardTensors& tensors);

}  // namespace tessera::reference
