// cuda.standard and cuda.standard_fused: the entries for the registry. Only in builds with CUDA.
#pragma once

#include <string>

#include "core/kernel.h"
#include "core/problem.h"
#include "cuda/common/host/device.h"

namespace tessera::cuda {

bool standard_limits(const core::Problem& p, core::Reason reason);
std::string standard_details(const core::Problem& p, const registry::Configuration& configuration);

registry::Configuration standard_configuration(const core::Problem& p, int workers);
void standard_forward(const core::Problem& p, const registry::Configuration& configuration,
                      const registry::Resources& resources);
void standard_backward(const core::Problem& p, const registry::Configuration& configuration,
                       const registry::Resources& resources);

registry::Configuration standard_fused_configuration(const core::Problem& p, int workers);
void standard_fused_forward(const core::Problem& p, const registry::Configuration& configuration,
                            const registry::Resources& resources);
void standard_fused_backward(const core::Problem& p, const registry::Configuration& configuration,
                             const registry::Resources& resources);

}  // namespace tessera::cuda
