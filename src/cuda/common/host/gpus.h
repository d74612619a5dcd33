// The GPUs of this machine, and those that one may assume. Compiled in every build;
// without CUDA there are none.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/common/host/images.h"
#include "tessera/plan.h"

namespace tessera::cuda {

// One line on the state of the CUDA backend: its version and driver, or why it is not there.
std::string status();

// The GPUs that the CUDA runtime finds; none without a driver.
std::vector<DeviceInfo> devices();

// How many GPUs the CUDA runtime finds.
int device_count();

// Why a GPU cannot be used, for people; empty: it can.
std::string unusable(int device);

// A list of architectures for each Code (images.h), in their order.
using Architectures = std::array<std::string_view, kCodes>;

// While it lives, this thread plans as if every GPU were one of this compute
// capability (10 * major + minor), with the limits of a common card of its kind: for
// tests and `tessera explain`, also in builds without CUDA. Nothing can be run.
// Throws Error (invalid_argument) for a capability it does not know.
class AssumedGpu {
 public:
  explicit AssumedGpu(int capability);
  // The same in a build with code for other architectures.
  AssumedGpu(int capability, const Architectures& architectures);
  ~AssumedGpu();
  AssumedGpu(const AssumedGpu&) = delete;
  AssumedGpu& operator=(const AssumedGpu&) = delete;

  // The capabilities it knows, ascending.
  static std::vector<int> known();
  // Whether one lives, for this thread.
  static bool active();

 private:
  std::shared_ptr<const void> own_;  // the limits that follow from lists of its own
};

}  // namespace tessera::cuda
