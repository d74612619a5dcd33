// cpu.packed: forward of packed sequences of which some may be short: each by the kernel that it
// has alone.
#pragma once

#include <string>

#include "core/kernel.h"
#include "core/problem.h"

namespace tessera::cpu {

// Whether, and why, the kernel cannot support a problem.
bool packed_limits(const core::Problem& p, core::Reason reason);

registry::Configuration packed_configuration(const core::Problem& p, int workers);

std::string packed_details(const core::Problem& p, const registry::Configuration& configuration);

void packed_forward(const core::Problem& p, const registry::Configuration& configuration,
                    const registry::Resources& resources);

}  // namespace tessera::cpu
