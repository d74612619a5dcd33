// One GPU as the kernels' launchers see it. What needs CUDA's headers is only there in builds with CUDA.
#pragma once

#if TESSERA_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/problem.h"
#include "core/reason.h"

namespace tessera::cuda {

// What decides which kernel serves a problem, and how.
struct DeviceLimits {
  int capability = 0;  // 10 * major + minor: 75, 80, 86, 90
  int multiprocessors = 0;
  int shared_memory = 0;                 // bytes that one thread block may have
  int shared_memory_multiprocessor = 0;  // bytes that its thread blocks share
  std::size_t l2_bytes = 0;
  std::string failure{};  // why the device cannot be used; empty: it can
};

// The limits of a GPU, asked for once. Never throws CUDA's errors: `failure` says what is wrong.
const DeviceLimits& device_limits(int device);

// Whether, and why, a problem is too large for kernels whose thread blocks take `tile_rows` queries or keys of one head each.
// A sequence is shorter than core::kLongestWalk, and a grid has less than 2^31 thread blocks.
bool size_limits(const core::Problem& problem, std::int64_t tile_rows, core::Reason reason);

#if TESSERA_HAVE_CUDA

// Throws Error (device_failure) with CUDA's own words unless `status` is success. The error is cleared, so that the
// next call starts afresh.
void check(cudaError_t status, const char* what);

// Makes a device current for a scope, and the one before it again afterwards.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = -1;
};

// While a thread captures a graph, CUDA refuses calls that might disturb it; those on memory and streams of our own
// cannot, and this says so for a scope.
class OutsideCapture {
 public:
  OutsideCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~OutsideCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  OutsideCapture(const OutsideCapture&) = delete;
  OutsideCapture& operator=(const OutsideCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// When a kernel may begin: when its predecessors in the stream have ended, or (capability 9.0 on) as soon as they let go of their
// multiprocessors. Then it has to wait by itself, before it touches memory: ptx::await_predecessors.
enum class Begin { after_predecessors, beside_predecessors };

// Launches a kernel that takes one argument structure. Throws Error (device_failure) when the launch is refused.
void launch(const void* kernel, const char* name, unsigned grid, int threads, std::size_t shared_memory,
            cudaStream_t stream, void* arguments, Begin begin = Begin::after_predecessors);

template <typename Arguments>
void launch(void (*kernel)(Arguments), const char* name, std::int64_t grid, int threads,
            std::size_t shared_memory, void* stream, Arguments arguments,
            Begin begin = Begin::after_predecessors) {
  if (grid == 0) return;
  launch(reinterpret_cast<const void*>(kernel), name, static_cast<unsigned>(grid), threads, shared_memory,
         static_cast<cudaStream_t>(stream), &arguments, begin);
}

#endif

}  // namespace tessera::cuda
