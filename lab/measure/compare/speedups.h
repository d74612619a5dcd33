// Speed-ups over PyTorch, which no run can tell alone: `tessera lab` measures our rows and
// `python -m tessera.lab studies` PyTorch's.
#pragma once

#include <vector>

#include "lab/measure/read_results.h"

namespace tessera::lab {

// Sets "speedup_over_pytorch" in every row: null where PyTorch's unfused attention was not measured
// on the same problem and machine. Figures of it are removed from experiments without such rows.
void compare_with_pytorch(std::vector<ResultsFile>& files);

}  // namespace tessera::lab
