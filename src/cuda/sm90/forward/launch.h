// cuda.hopper, forward for 16-bit types on GPUs of compute capability 9.0: the entries for the registry, and the choices
// behind them.
#pragma once

#include <span>
#include <string>

#include "core/kernel.h"
#include "core/problem.h"
#include "cuda/common/host/device.h"
#include "cuda/sm90/forward/config.h"

namespace tessera::cuda {

// The compiled instances of an element type, in the order of kConfigs.
std::span<const sm90::forward::Instance> hopper_forward_bf16();
std::span<const sm90::forward::Instance> hopper_forward_fp16();

// Which instance serves a problem that has no limits: a pure function.
const sm90::forward::Instance& choose_hopper(std::span<const sm90::forward::Instance> instances,
                                             const core::Problem& p);

// The order of its tiles on a GPU with so many multiprocessors.
sm90::forward::Schedule hopper_schedule(const sm90::forward::Config& config, const core::Problem& p,
                                        int multiprocessors);

// Workspace of a call: 0 where tiles are equal.
std::size_t hopper_workspace(const sm90::forward::Schedule& schedule);

// Launches an instance on a stream. `report`: for instances with bounded waits, four words that the host can read.
void launch_hopper(const sm90::forward::Instance& instance, const core::Problem& p, std::byte* workspace,
                   void* stream, std::uint32_t* report = nullptr);

bool hopper_forward_limits(const core::Problem& p, core::Reason reason);
registry::Configuration hopper_forward_configuration(const core::Problem& p, int workers);
std::string hopper_forward_details(const core::Problem& p, const registry::Configuration& configuration);
void hopper_forward(const core::Problem& p, const registry::Configuration& configuration,
                    const registry::Resources& resources);

}  // namespace tessera::cuda
