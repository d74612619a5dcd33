// cpu.decode: the forward entry for few queries and long keys.
#pragma once

#include <string>

#include "core/problem.h"
#include "registry/kernel.h"

namespace tessera::cpu {

// Whether, and why, the kernel cannot serve a problem.
bool decode_limits(const core::Problem& p, core::Reason reason);

// Whether, and why, cpu.flash2 serves a problem better.
bool decode_yields(const core::Problem& p, core::Reason reason);

registry::Configuration decode_configuration(const core::Problem& p, int workers);

std::string decode_details(const core::Problem& p, const registry::Configuration& configuration);

void decode_forward(const core::Problem& p, const registry::Configuration& configuration,
                    const registry::Resources& resources);

}  // namespace tessera::cpu
