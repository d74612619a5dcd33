// Tensors without data, for plans of shapes.
#pragma once

#include "tessera/attention.h"
#include "tessera/plan.h"

namespace tessera::api {

// Contiguous tensors of these shapes. Throw Error (invalid_argument) that names the field of
// `shapes`.
ForwardTensors forward_tensors(const Attention& attention, const Shapes& shapes, Device device);
BackwardTensors backward_tensors(const Attention& attention, const Shapes& shapes, Device device);

}  // namespace tessera::api
