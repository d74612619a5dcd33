// The steps of problem_of, by argument. Each one checks its argument and stores it in the problem;
// they run in the order of this file, because later ones read sizes that earlier ones stored.
#pragma once

#include "api/tensor_checks.h"
#include "core/problem.h"
#include "tessera/attention.h"

namespace tessera::api {

// The sizes, type and device of the problem, from q, k and v.
void take_inputs(const Argument& q, const Argument& k, const Argument& v, Data data, core::Problem& p);

// Packed sequences: how many, and the longest of each kind.
void take_lengths(const Mask& mask, const Argument& q, const Argument& k, Data data, core::Problem& p);

// Bounds of what kernels count, once lengths are known.
void check_sizes(const core::Problem& p);

// The band around the diagonal, and the block mask.
void take_mask(const Mask& mask, core::Problem& p);

// Algorithm, scale, softcap, dropout, ALiBi and origin.
void take_options(const Attention& attention, core::Problem& p);

// The bias, when it is given.
void take_bias(const Argument& bias, Data data, core::Problem& p);

// The boolean mask, when it is given.
void take_visible(const Argument& visible, Data data, core::Problem& p);

}  // namespace tessera::api
