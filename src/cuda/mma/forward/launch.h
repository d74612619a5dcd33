// cuda.flash2 forward for 16-bit types: the entries for the registry, and the choices behind them.
#pragma once

#include <span>
#include <string>

#include "core/kernel.h"
#include "core/problem.h"
#include "cuda/common/host/device.h"
#include "cuda/mma/forward/config.h"

namespace tessera::cuda {

// The instances compiled for a path, per element type, in the order of preference.
std::span<const mma::forward::Instance> flash2_forward_fp16();
std::span<const mma::forward::Instance> flash2_forward_bf16();
std::span<const mma::forward::Instance> flash2_sm75_forward_fp16();

// Which instance serves a problem on a device: a pure function. Null: none, for the reason given.
const mma::forward::Instance* choose_forward(std::span<const mma::forward::Instance> instances,
                                             const DeviceLimits& device, const core::Problem& p,
                                             core::Reason reason = {});

// Which variant a problem needs.
Variant forward_variant(const core::Problem& p);

// For GPUs from sm_80 on.
bool flash2_forward_limits(const core::Problem& p, core::Reason reason);
registry::Configuration flash2_forward_configuration(const core::Problem& p, int workers);
std::string flash2_forward_details(const core::Problem& p, const registry::Configuration& configuration);
void flash2_forward(const core::Problem& p, const registry::Configuration& configuration,
                    const registry::Resources& resources);

// The path for Turing; it runs on newer GPUs too.
bool flash2_sm75_forward_limits(const core::Problem& p, core::Reason reason);
registry::Configuration flash2_sm75_forward_configuration(const core::Problem& p, int workers);
std::string flash2_sm75_forward_details(const core::Problem& p, const registry::Configuration& configuration);
void flash2_sm75_forward(const core::Problem& p, const registry::Configuration& configuration,
                         const registry::Resources& resources);

}  // namespace tessera::cuda
