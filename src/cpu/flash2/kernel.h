// cpu.flash2, as the registry calls it. `choose` takes the fastest instruction set of this CPU.
#pragma once

#include <string>

#include "core/kernel.h"
#include "core/problem.h"
#include "cpu/flash2/forward_plan.h"
#include "cpu/machine/target.h"

namespace tessera::cpu {

// What cpu.flash2 decides for forward.
struct Flash2ForwardDecision {
  Target target{};
  const ForwardOps* ops = nullptr;
  ForwardPlan plan{};
  std::int64_t tasks = 0;
  int workers = 1;
  std::size_t worker_bytes = 0;
};

std::optional<core::Choice> choose_flash2_forward(const core::Problem& p, int workers, core::Reason reason);
std::string flash2_forward_details(const core::Problem& p, const core::Choice& choice);
void run_flash2_forward(const core::Problem& p, const core::Choice& choice, const core::Resources& resources);

// For cpu.packed: a decision in words, and forward of the sequences that it does not skip.
std::string describe(const Flash2ForwardDecision& decision);
void run_flash2_forward(const core::Problem& p, const Flash2ForwardDecision& decision,
                        const core::Resources& resources,
                        bool (*skips)(const core::Problem& p, std::int64_t sequence));

std::optional<core::Choice> choose_flash2_backward(const core::Problem& p, int workers, core::Reason reason);
std::string flash2_backward_details(const core::Problem& p, const core::Choice& choice);
void run_flash2_backward(const core::Problem& p, const core::Choice& choice,
                         const core::Resources& resources);

}  // namespace tessera::cpu
