// Which kernels exist, which one serves a problem, and why not the others.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "core/kernel.h"
#include "core/problem.h"
#include "tessera/plan.h"

namespace tessera::registry {

// Every kernel of this build, highest priority first.
std::span<const Kernel> kernels();

// The name that TESSERA_KERNEL forces (core/base/environment.h); empty: none.
std::string_view forced_kernel();

// The first kernel of the table (sorted by priority) that serves the problem. Throws Error (unsupported)
// listing what each candidate lacks, or invalid_argument when `forced` names no kernel.
const Kernel& select(std::span<const Kernel> table, const core::Problem& problem, std::string_view forced);

// Every kernel for the problem's direction that `select` passes over, and why.
std::vector<Rejection> rejections(std::span<const Kernel> table, const core::Problem& problem,
                                  const Kernel& chosen, std::string_view forced);

}  // namespace tessera::registry
