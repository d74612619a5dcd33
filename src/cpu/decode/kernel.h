// cpu.decode: the forward entry for few queries and long keys.
#pragma once

#include <string>

#include "core/kernel.h"
#include "core/problem.h"

namespace tessera::cpu {

// cpu.flash2 has the queries of one head in its lanes: with few of them most of its work is wasted,
// whatever the group. Measured in fp32: over 8192 keys 16 queries take half the time here, 48 as
// long; over 64 keys 16 queries take as long.
inline constexpr std::int64_t kMostDecodeQueries = 16;

// Whether, and why, the kernel cannot serve a problem.
bool decode_limits(const core::Problem& p, core::Reason reason);

// Whether, and why, cpu.flash2 serves a problem better.
bool decode_yields(const core::Problem& p, core::Reason reason);

registry::Configuration decode_configuration(const core::Problem& p, int workers);

std::string decode_details(const core::Problem& p, const registry::Configuration& configuration);

void decode_forward(const core::Problem& p, const registry::Configuration& configuration,
                    const registry::Resources& resources);

}  // namespace tessera::cpu
