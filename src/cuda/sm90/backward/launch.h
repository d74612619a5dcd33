// cuda.hopper, backward for 16-bit types on GPUs of compute capability 9.0: the entries for the registry, and the choices
// behind them.
#pragma once

#include <span>
#include <string>

#include "core/kernel.h"
#include "core/problem.h"
#include "cuda/sm90/backward/config.h"

namespace tessera::cuda {

// The compiled instances of an element type, in the order of kBackwardConfigs.
std::span<const hopper::BackwardInstance> hopper_backward_bf16();
std::span<const hopper::BackwardInstance> hopper_backward_fp16();

// Which instance serves a problem; null: none. A pure function.
const hopper::BackwardInstance* choose_hopper_backward(std::span<const hopper::BackwardInstance> instances,
                                                       const core::Problem& p);

// Launches an instance, with what comes before and after it, on a stream. `report`: for instances with bounded waits, four words
// that the host can read.
void launch_hopper_backward(const hopper::BackwardInstance& instance, const core::Problem& p,
                            std::byte* workspace, void* stream, std::uint32_t* report = nullptr);

bool hopper_backward_limits(const core::Problem& p, core::Reason reason);
registry::Configuration hopper_backward_configuration(const core::Problem& p, int workers);
std::string hopper_backward_details(const core::Problem& p, const registry::Configuration& configuration);
void hopper_backward(const core::Problem& p, const registry::Configuration& configuration,
                     const registry::Resources& resources);

}  // namespace tessera::cuda
