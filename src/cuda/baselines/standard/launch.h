// cuda.standard and cuda.standard_fused, both directions, as the registry calls them.
#pragma once

#include <string>

#include "core/kernel.h"
#include "core/problem.h"

namespace tessera::cuda::standard {

// cuda.standard: a pass for every operator. cuda.standard_fused: one kernel between the products.
std::optional<core::Choice> choose_separate(const core::Problem& p, int workers, core::Reason reason);
std::optional<core::Choice> choose_fused(const core::Problem& p, int workers, core::Reason reason);

std::string details(const core::Problem& p, const core::Choice& choice);
void run(const core::Problem& p, const core::Choice& choice, const core::Resources& resources);

}  // namespace tessera::cuda::standard
