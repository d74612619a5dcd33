// cpu.standard: the entries for the registry.
#pragma once

#include <string>

#include "core/kernel.h"
#include "core/problem.h"

namespace tessera::cpu {

bool standard_limits(const core::Problem& p, core::Reason reason);
registry::Configuration standard_configuration(const core::Problem& p, int workers);
std::string standard_details(const core::Problem& p, const registry::Configuration& configuration);
void standard_forward(const core::Problem& p, const registry::Configuration& configuration,
                      const registry::Resources& resources);
void standard_backward(const core::Problem& p, const registry::Configuration& configuration,
                       const registry::Resources& resources);

}  // namespace tessera::cpu
