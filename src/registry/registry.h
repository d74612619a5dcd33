// Selection: which kernel runs a problem, how, and why the others do not.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "core/kernel.h"
#include "core/problem.h"
#include "tessera/plan.h"

namespace tessera::registry {

// Every kernel of this build, highest priority first.
std::span<const core::Kernel> kernels();

// The name that TESSERA_KERNEL forces (core/base/environment.h); empty when it forces none.
std::string_view forced_kernel();

// A kernel, and what it decided for a problem.
struct Selection {
  const core::Kernel* kernel;
  core::Choice choice;
};

// The first kernel of the table (sorted by priority) that supports the problem, with its choice for
// at most `workers` workers. Allocates nothing. Throws Error: unsupported, with a line for each
// kernel, when there is none; invalid_argument when `forced` names no kernel; and what the kernel's
// `choose` throws.
Selection select(std::span<const core::Kernel> table, const core::Problem& problem, int workers,
                 std::string_view forced);

// Every kernel for the problem's direction besides the chosen one, and why it was not chosen.
std::vector<Rejection> rejections(std::span<const core::Kernel> table, const core::Problem& problem,
                                  int workers, const core::Kernel& chosen, std::string_view forced);

}  // namespace tessera::registry
