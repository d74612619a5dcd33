// What is compiled for one instruction set: the entry points of every CPU kernel.
#pragma once

#include "cpu/machine/target.h"

namespace tessera::cpu {

struct ForwardOps;
struct BackwardOps;
struct BiasGradientOps;
struct DecodeOps;
struct Flash1ForwardOps;
struct Flash1BackwardOps;
struct SoftmaxRowsOps;

// One table an instruction set. A target that only adds instructions for bf16 shares the tables of
// the vectors that it is built on, except those of cpu.flash2.
struct Engine {
  const ForwardOps& forward;    // cpu.flash2 (flash2/forward_plan.h)
  const BackwardOps& backward;  // (flash2/backward_plan.h)
  const BiasGradientOps& bias_gradient;
  const SoftmaxRowsOps& softmax_rows;  // cpu.standard
  // Null in Target::portable: these kernels require vectors.
  const DecodeOps* decode;
  const Flash1ForwardOps* flash1_forward;
  const Flash1BackwardOps* flash1_backward;
};

// The engine of an available target, as target_for_type gives it (machine/target.h).
const Engine& engine(Target target) noexcept;

}  // namespace tessera::cpu
