// From a sweep to the contests that measure it, for `tessera bench` and `tessera lab` alike.
#pragma once

#include <vector>

#include "lab/commands/options.h"
#include "lab/measure/interleave.h"
#include "lab/measure/runner.h"

namespace tessera::lab {

// Every algorithm that some kernel for the device and one of the directions implements; when there is none,
// `automatic`, whose row then says what is missing.
std::vector<Algorithm> algorithms_here(const Sweep& sweep);

// Every point in every direction, in the order of the sweep.
std::vector<Contest> contests(const Sweep& sweep, const std::vector<Algorithm>& algorithms);

// Seconds a contest may take: only for the share in the progress line, so a guess of the speed will do.
double expected_seconds(const Contest& contest, const Schedule& schedule);

}  // namespace tessera::lab
