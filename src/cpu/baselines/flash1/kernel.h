// cpu.flash1, as the registry calls it. `choose` takes the fastest instruction set of this CPU.
#pragma once

#include <string>

#include "core/kernel.h"
#include "core/problem.h"

namespace tessera::cpu {

std::optional<core::Choice> choose_flash1_forward(const core::Problem& p, int workers, core::Reason reason);
std::string flash1_forward_details(const core::Problem& p, const core::Choice& choice);
void run_flash1_forward(const core::Problem& p, const core::Choice& choice, const core::Resources& resources);

std::optional<core::Choice> choose_flash1_backward(const core::Problem& p, int workers, core::Reason reason);
std::string flash1_backward_details(const core::Problem& p, const core::Choice& choice);
void run_flash1_backward(const core::Problem& p, const core::Choice& choice,
                         const core::Resources& resources);

}  // namespace tessera::cpu
