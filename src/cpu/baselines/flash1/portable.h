// cpu.flash1 in portable C++, for CPUs without a vector instruction set that we use.
#pragma once

#include "core/kernel.h"
#include "core/problem.h"

namespace tessera::cpu::portable {

registry::Configuration flash1_forward_configuration(const core::Problem& p, int workers);
registry::Configuration flash1_backward_configuration(const core::Problem& p, int workers);

void flash1_forward(const core::Problem& p, const registry::Configuration& configuration,
                    const registry::Resources& resources);
void flash1_backward(const core::Problem& p, const registry::Configuration& configuration,
                     const registry::Resources& resources);

}  // namespace tessera::cpu::portable
