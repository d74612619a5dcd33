// The exponential of the vector kernels by itself, for the test that measures its error.
#pragma once

#include <cstdint>

#include "cpu/machine/target.h"

namespace tessera::cpu {

// y[i] = 2^x[i] for x[i] <= 0, as one instruction set computes it.
struct Exp2Engine {
  void (*fp32)(const float* x, std::int64_t count, float* y);
  void (*fp64)(const double* x, std::int64_t count, double* y);
};

// Null for Target::portable, which uses std::exp.
const Exp2Engine* exp2_engine(Target target);

}  // namespace tessera::cpu
