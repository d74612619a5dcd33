// cpu.flash2: what the registry calls. Each function uses the best instruction set of this CPU.
#pragma once

#include <string>

#include "core/kernel.h"
#include "core/problem.h"

namespace tessera::cpu {

registry::Configuration flash2_forward_configuration(const core::Problem& p, int workers);
registry::Configuration flash2_backward_configuration(const core::Problem& p, int workers);

std::string flash2_forward_details(const core::Problem& p, const registry::Configuration& configuration);
std::string flash2_backward_details(const core::Problem& p, const registry::Configuration& configuration);

void flash2_forward(const core::Problem& p, const registry::Configuration& configuration,
                    const registry::Resources& resources);
// The same without the sequences of at most so many queries.
void flash2_forward_longer_than(const core::Problem& p, const registry::Configuration& configuration,
                                const registry::Resources& resources, std::int64_t queries);
void flash2_backward(const core::Problem& p, const registry::Configuration& configuration,
                     const registry::Resources& resources);

}  // namespace tessera::cpu
