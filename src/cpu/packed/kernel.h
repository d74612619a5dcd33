// cpu.packed: forward of packed sequences, as the registry calls it. Each sequence is computed as
// if it were alone.
#pragma once

#include <string>

#include "core/kernel.h"
#include "core/problem.h"

namespace tessera::cpu {

// Requires packed sequences and a vector instruction set.
std::optional<core::Choice> choose_packed(const core::Problem& p, int workers, core::Reason reason);
std::string packed_details(const core::Problem& p, const core::Choice& choice);
void run_packed(const core::Problem& p, const core::Choice& choice, const core::Resources& resources);

}  // namespace tessera::cpu
