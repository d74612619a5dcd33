// cpu.decode: the forward entry for few queries and long keys.
#pragma once

#include <string>

#include "core/problem.h"
#include "registry/kernel.h"

namespace tessera::cpu {

// cpu.flash2 has the queries of one head in its lanes: with few of them most of its work is wasted, whatever
// the group. Measured in fp32: over 8192 keys 16 queries take half the time here, 48 as long; over 64 keys 16
// queries take as long.
inline constexpr std::int64_t kMostDecodeQueries = 16;

// Why the kernel cannot serve a problem; empty when it can.
std::string decode_limits(const core::Problem& p);

// Why cpu.flash2 serves a problem better; empty when it does not.
std::string decode_yields(const core::Problem& p);

registry::Configuration decode_configuration(const core::Problem& p, int workers);

std::string decode_details(const core::Problem& p, const registry::Configuration& configuration);

void decode_forward(const core::Problem& p, const registry::Configuration& configuration,
                    const registry::Resources& resources);

}  // namespace tessera::cpu
