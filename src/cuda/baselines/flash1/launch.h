// cuda.flash1 and cuda.flash1_sm75, both directions, as the registry calls them.
#pragma once

#include <string>

#include "core/kernel.h"
#include "core/problem.h"

namespace tessera::cuda::flash1 {

// cuda.flash1: the instances for the newest compute capability that the GPU has.
std::optional<core::Choice> choose(const core::Problem& p, int workers, core::Reason reason);
// cuda.flash1_sm75: the instances for Turing, on any GPU.
std::optional<core::Choice> choose_sm75(const core::Problem& p, int workers, core::Reason reason);

std::string details(const core::Problem& p, const core::Choice& choice);
void run(const core::Problem& p, const core::Choice& choice, const core::Resources& resources);

}  // namespace tessera::cuda::flash1
