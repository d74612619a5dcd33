// cpu.flash1 in portable C++, for CPUs without a vector instruction set that we use.
#pragma once

#include "core/kernel.h"
#include "core/problem.h"

namespace tessera::cpu::portable {

core::Choice flash1_forward_choice(const core::Problem& p, int workers);
core::Choice flash1_backward_choice(const core::Problem& p, int workers);

void flash1_forward(const core::Problem& p, const core::Choice& choice, const core::Resources& resources);
void flash1_backward(const core::Problem& p, const core::Choice& choice, const core::Resources& resources);

}  // namespace tessera::cpu::portable
