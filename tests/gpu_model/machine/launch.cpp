// The model's own cuda::launch, in place of src/cuda/common/host/launch.cpp.
#include "cuda/common/host/launch.h"

#include <stdexcept>

#include "core/base/refuse.h"
#include "core/base/text.h"
#include "cuda/common/host/device.h"
#include "cuda/common/host/limits.h"
#include "gpu_model/machine/machine.h"
#include "tessera/error.h"

namespace tessera::cuda {

void launch(const KernelCall& call, const char* name, std::int64_t grid, int threads,
            std::size_t shared_memory, void* /*stream*/, Begin begin) {
  if (std::string why; grid_limit(grid, core::Reason(why)))
    core::fail(ErrorCode::device_failure, name, ": ", why);
  if (call.call == nullptr) core::fail(ErrorCode::device_failure, name, ": cudaErrorInvalidDeviceFunction");
  if (shared_memory > static_cast<std::size_t>(device_limits(0).shared_memory))
    core::fail(ErrorCode::device_failure, name, ": ", shared_memory, " bytes of shared memory are too many");
  try {
    gpu_model::run({.name = name,
                    .grid = static_cast<unsigned>(grid),
                    .threads = static_cast<unsigned>(threads),
                    .shared_bytes = shared_memory,
                    .beside_predecessors = begin == Begin::beside_predecessors,
                    .arguments = static_cast<const std::byte*>(call.arguments),
                    .argument_bytes = call.argument_bytes,
                    .kernel = call.kernel,
                    .call = call.call});
  } catch (const std::runtime_error& error) {
    core::fail(ErrorCode::device_failure, error.what());
  }
}

}  // namespace tessera::cuda
