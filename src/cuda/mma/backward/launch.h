// cuda.flash2 and cuda.flash2_sm75, backward for 16-bit types: what the registry calls, and the
// choices behind it.
#pragma once

#include <string>

#include "core/kernel.h"
#include "core/problem.h"
#include "cuda/common/host/device.h"
#include "cuda/mma/backward/arguments.h"

namespace tessera::cuda::mma::backward {

// Which kernels run a problem.
struct KernelChoice {
  const Instance* keys = nullptr;     // dK and dV, and dQ by reductions; null: not requested
  const Instance* queries = nullptr;  // dQ; null: not requested, or it comes with the keys
  const Instance* bias = nullptr;     // the gradient of the bias; null: not requested
  int head_dim = 0;                   // of the sums of dQ; 0: there are none
  bool in_turns = false;              // the sums are added in a fixed order
  bool bias_staged = false;           // for `keys` the bias comes through shared memory
};

// Which kernels of a family run a problem on a device: a pure function. Nothing, and the reason,
// when one is missing.
std::optional<KernelChoice> choose_kernels(const Family& family, const DeviceLimits& device,
                                           const core::Problem& p, core::Reason reason = {});

// cuda.flash2: kernels for compute capability 8.0 or newer.
std::optional<core::Choice> choose_from80(const core::Problem& p, int workers, core::Reason reason);
// cuda.flash2_sm75: kernels for Turing, which newer GPUs run too.
std::optional<core::Choice> choose_sm75(const core::Problem& p, int workers, core::Reason reason);

std::string details(const core::Problem& p, const core::Choice& choice);
void run(const core::Problem& p, const core::Choice& choice, const core::Resources& resources);

}  // namespace tessera::cuda::mma::backward
