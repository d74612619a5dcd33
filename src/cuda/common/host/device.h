// One GPU as the kernels' launchers see it. What needs CUDA's headers is only there in builds with
// CUDA; in others kernels can be chosen for an AssumedGpu.
#pragma once

#if TESSERA_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "cuda/common/host/images.h"

namespace tessera::cuda {

// What decides which kernel serves a problem, and how.
struct DeviceLimits {
  int capability = 0;  // 10 * major + minor: 75, 80, 86, 90
  int multiprocessors = 0;
  int shared_memory = 0;                 // bytes that one thread block may have
  int shared_memory_multiprocessor = 0;  // bytes that its thread blocks share
  std::size_t l2_bytes = 0;
  bool memory_pools = true;  // whether its workspace can come from a stream-ordered pool
  std::string failure{};     // why the device cannot be used; empty: it can
};

// The limits of a GPU, asked for once. Never throws CUDA's errors: `failure` says what is wrong.
const DeviceLimits& device_limits(int device);

// The same for kernels of one Code. `failure` also says when this build has no code for the GPU;
// of shared memory there is no more than the code that the GPU runs may take
// (kSharedMemoryBefore90).
const DeviceLimits& device_limits(int device, Code code);

// What device_limits makes of the GPU's own limits, for a list of architectures.
DeviceLimits limits_with_code(DeviceLimits limits, int device, std::string_view architectures);

// A context of the device is current in this scope: the caller's own when it is one of this device,
// whatever made it, else the primary context, which the runtime uses. Afterwards the caller's is
// current again, or none when there was none. Touches no other device and not the thread's choice
// of one (cudaSetDevice).
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  [[maybe_unused]] bool pushed_ = false;
};

#if TESSERA_HAVE_CUDA

// Throws Error (device_failure) with CUDA's own words unless `status` is success. CUDA's record of
// the error is cleared (forget), so that the caller's next look at it does not find what it has
// been told.
void check(cudaError_t status, const char* what);

// Clears CUDA's record of an error that a call of ours has returned. An error that the caller has
// not looked at yet stays, unless ours has taken its place.
void forget(cudaError_t status);

// While a thread captures a graph, CUDA refuses calls that might disturb it; those on memory and
// streams of our own cannot, and this says so for a scope.
class OutsideCapture {
 public:
  OutsideCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~OutsideCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  OutsideCapture(const OutsideCapture&) = delete;
  OutsideCapture& operator=(const OutsideCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

#endif

}  // namespace tessera::cuda
