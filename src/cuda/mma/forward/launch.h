// cuda.flash2 and cuda.flash2_sm75, forward for 16-bit types: what the registry calls, and the
// choices behind it.
#pragma once

#include <span>
#include <string>

#include "core/kernel.h"
#include "core/problem.h"
#include "cuda/common/host/device.h"
#include "cuda/mma/forward/config.h"

namespace tessera::cuda {

// The compiled instances of each family and element type, in the order of preference.
std::span<const mma::forward::Instance> flash2_forward_fp16();
std::span<const mma::forward::Instance> flash2_forward_bf16();
std::span<const mma::forward::Instance> flash2_sm75_forward_fp16();

}  // namespace tessera::cuda

namespace tessera::cuda::mma::forward {

// An instance, and the shared memory that it takes for a problem.
struct InstanceChoice {
  const Instance* instance = nullptr;
  int shared_memory = 0;
  bool bias_staged = false;  // the bias comes through shared memory
};

// Which instance runs a problem on a device: a pure function. Nothing, and the reason, when none
// fits.
std::optional<InstanceChoice> choose_instance(std::span<const Instance> instances, const DeviceLimits& device,
                                              const core::Problem& p, core::Reason reason = {});

// The variant that a problem requires.
Variant variant_of(const core::Problem& p);

// cuda.flash2: instances for compute capability 8.0 or newer.
std::optional<core::Choice> choose_from80(const core::Problem& p, int workers, core::Reason reason);
// cuda.flash2_sm75: instances for Turing, which newer GPUs run too.
std::optional<core::Choice> choose_sm75(const core::Problem& p, int workers, core::Reason reason);

std::string details(const core::Problem& p, const core::Choice& choice);
void run(const core::Problem& p, const core::Choice& choice, const core::Resources& resources);

}  // namespace tessera::cuda::mma::forward
