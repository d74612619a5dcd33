// From the caller's description and tensors to a validated Problem, or an Error that names the argument, its
// value and what is allowed. Nothing is read through a pointer except host-side lengths.
#pragma once

#include "core/problem.h"
#include "tessera/attention.h"
#include "tessera/execution.h"
#include "tessera/plan.h"

namespace tessera::api {

// Whether the tensors must have data, or only shapes (planning).
enum class Data { required, optional };

core::Problem make_problem(const Attention& attention, const ForwardTensors& tensors, Data data);
core::Problem make_problem(const Attention& attention, const BackwardTensors& tensors, Data data);

// Refuses workspace that shares memory with anything the call reads or writes.
void check_workspace(const Workspace& lent, const core::Problem& problem, const ForwardTensors& tensors);
void check_workspace(const Workspace& lent, const core::Problem& problem, const BackwardTensors& tensors);

// Whether every result is empty: the call then returns at once, however many heads and sequences it names.
bool writes_nothing(const core::Problem& problem);

// Contiguous tensors without data, for planning; what is wrong is named as in `shapes`.
ForwardTensors forward_tensors(const Attention& attention, const Shapes& shapes, Device device);
BackwardTensors backward_tensors(const Attention& attention, const Shapes& shapes, Device device);

}  // namespace tessera::api
