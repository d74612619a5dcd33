// How the passes over the rows of the matrices are launched.
#pragma once

#include "cuda/baselines/standard/passes.h"
#include "cuda/baselines/standard/row.cuh"
#include "cuda/common/host/device.h"

namespace tessera::cuda::standard {

struct PassArguments {
  core::Problem p;
  Matrices m;
  int rows;
  Step step;     // edit_scores
  void* matrix;  // dropout
};

inline PassArguments pass_arguments(const core::Problem& p, const Matrices& m) {
  return {p, m, static_cast<int>(p.batch * p.q_heads * p.q_length), Step::scale, nullptr};
}

// Calls f.template operator()<T>() with the GPU's type for the tensors.
template <typename F>
void with_device_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::fp16: return f.template operator()<Half>();
    case DType::bf16: return f.template operator()<BFloat16>();
    default: return f.template operator()<float>();
  }
}

}  // namespace tessera::cuda::standard
