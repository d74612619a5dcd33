// cpu.standard, as the registry calls it; both directions.
#pragma once

#include <string>

#include "core/kernel.h"
#include "core/problem.h"

namespace tessera::cpu {

// Requires OpenBLAS, and sequences that its 32-bit sizes can count.
std::optional<core::Choice> choose_standard(const core::Problem& p, int workers, core::Reason reason);
std::string standard_details(const core::Problem& p, const core::Choice& choice);
void run_standard(const core::Problem& p, const core::Choice& choice, const core::Resources& resources);

}  // namespace tessera::cpu
