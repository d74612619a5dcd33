// The GPUs of this machine. Compiled in every build; without CUDA it says so.
#pragma once

#include <string>
#include <vector>

#include "tessera/plan.h"

namespace tessera::cuda {

// One line on the state of the CUDA backend: its version and driver, or why it is not there.
std::string status();

// The GPUs that the CUDA runtime finds; none without a driver.
std::vector<DeviceInfo> devices();

}  // namespace tessera::cuda
