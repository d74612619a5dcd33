// cpu.decode: forward for few queries over many keys, as the registry calls it.
#pragma once

#include <string>

#include "core/kernel.h"
#include "core/problem.h"
#include "cpu/machine/target.h"

namespace tessera::cpu {

// cpu.flash2 puts the queries of one head into its lanes: with few queries, most lanes compute
// nothing. Measured in fp32: over 8192 keys, 16 queries take half the time here and 48 take as
// long; over 64 keys, 16 queries take as long.
inline constexpr std::int64_t kMostDecodeQueries = 16;

// Requires a vector instruction set.
std::optional<core::Choice> choose_decode(const core::Problem& p, int workers, core::Reason reason);
// The same with the code of a target that has an engine, for cpu.packed.
core::Choice choose_decode(const core::Problem& p, int workers, Target target);

// True above kMostDecodeQueries.
bool decode_prefers_another(const core::Problem& p, core::Reason reason);

std::string decode_details(const core::Problem& p, const core::Choice& choice);

void run_decode(const core::Problem& p, const core::Choice& choice, const core::Resources& resources);

}  // namespace tessera::cpu
