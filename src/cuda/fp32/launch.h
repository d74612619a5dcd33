// fp32 attention on GPUs: cuda.flash2 computes each product by three fp16 products (compute
// capability 8.0 or newer), cuda.flash2_sm75 by plain multiply-adds. What the registry calls, and
// the choices behind it. docs/kernels/cuda-fp32.md describes the kernels.
#pragma once

#include <string>

#include "core/kernel.h"
#include "core/problem.h"
#include "cuda/fp32/config.h"

namespace tessera::cuda::fp32 {

template <Multiply M>
std::optional<core::Choice> choose_forward(const core::Problem& p, int workers, core::Reason reason);
std::string forward_details(const core::Problem& p, const core::Choice& choice);
void run_forward(const core::Problem& p, const core::Choice& choice, const core::Resources& resources);

template <Multiply M>
std::optional<core::Choice> choose_backward(const core::Problem& p, int workers, core::Reason reason);
std::string backward_details(const core::Problem& p, const core::Choice& choice);
void run_backward(const core::Problem& p, const core::Choice& choice, const core::Resources& resources);

}  // namespace tessera::cuda::fp32
