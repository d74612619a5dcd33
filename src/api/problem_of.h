// From the caller's description and tensors to a validated Problem, or an Error that names the
// argument, its value and what is allowed. Only lengths on the host are read through a pointer.
#pragma once

#include "api/tensor_checks.h"
#include "core/problem.h"
#include "tessera/attention.h"

namespace tessera::api {

core::Problem problem_of(const Attention& attention, const ForwardTensors& tensors, Data data);
core::Problem problem_of(const Attention& attention, const BackwardTensors& tensors, Data data);

// Whether every result is empty. The call then returns at once, however many heads and sequences it
// names.
bool writes_nothing(const core::Problem& problem);

}  // namespace tessera::api
