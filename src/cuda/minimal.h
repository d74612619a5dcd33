// cuda.minimal: the teaching kernel. Forward only, fp32, one thread per row.
#pragma once

#include <string>

#include "registry/kernel.h"

namespace tessera::cuda {

// The row of the registry.
bool minimal_limits(const core::Problem& problem, core::Reason reason);
registry::Configuration minimal_configuration(const core::Problem& problem, int workers);
std::string minimal_details(const core::Problem& problem, const registry::Configuration& configuration);
void minimal_forward(const core::Problem& problem, const registry::Configuration& configuration,
                     const registry::Resources& resources);

}  // namespace tessera::cuda
