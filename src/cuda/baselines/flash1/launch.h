// cuda.flash1: the entries for the registry. Only in builds with CUDA.
#pragma once

#include <string>

#include "core/kernel.h"
#include "core/problem.h"
#include "cuda/common/host/device.h"

namespace tessera::cuda {

bool flash1_limits(const core::Problem& p, core::Reason reason);
registry::Configuration flash1_configuration(const core::Problem& p, int workers);
std::string flash1_details(const core::Problem& p, const registry::Configuration& configuration);
void flash1_run(const core::Problem& p, const registry::Configuration& configuration,
                const registry::Resources& resources);

// The path for compute capability 7.5, on any GPU.
bool flash1_sm75_limits(const core::Problem& p, core::Reason reason);
registry::Configuration flash1_sm75_configuration(const core::Problem& p, int workers);
std::string flash1_sm75_details(const core::Problem& p, const registry::Configuration& configuration);
void flash1_sm75_run(const core::Problem& p, const registry::Configuration& configuration,
                     const registry::Resources& resources);

}  // namespace tessera::cuda
