// The threads of a call.
#pragma once

#include "core/problem.h"
#include "tessera/execution.h"

namespace tessera::api {

// The caller's executor, or the library's pool.
Executor& executor_of(const Execution& execution);

// How many workers to offer to the kernel. Throws Error (invalid_argument) for impossible counts.
int workers_of(const core::Problem& problem, const Execution& execution, const Executor& executor);

}  // namespace tessera::api
