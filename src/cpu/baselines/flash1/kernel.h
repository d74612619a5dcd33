// cpu.flash1: what the registry calls. Each function uses the best instruction set of this CPU.
#pragma once

#include <string>

#include "core/kernel.h"
#include "core/problem.h"

namespace tessera::cpu {

// Whether the kernel cannot support a problem, and why.
bool flash1_limits(const core::Problem& p, core::Reason reason);

registry::Configuration flash1_forward_configuration(const core::Problem& p, int workers);
registry::Configuration flash1_backward_configuration(const core::Problem& p, int workers);

std::string flash1_details(const core::Problem& p, const registry::Configuration& configuration);

void flash1_forward(const core::Problem& p, const registry::Configuration& configuration,
                    const registry::Resources& resources);
void flash1_backward(const core::Problem& p, const registry::Configuration& configuration,
                     const registry::Resources& resources);

}  // namespace tessera::cpu
