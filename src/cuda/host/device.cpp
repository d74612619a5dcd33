#include "cuda/host/device.h"

#if TESSERA_HAVE_CUDA

#include <array>
#include <mutex>

#include "core/refuse.h"
#include "core/text.h"
#include "tessera/error.h"

namespace tessera::cuda {
namespace {

constexpr int kMostDevices = 64;
constexpr std::size_t kPlainSharedMemory = 47 * 1024;  // more must be asked for; 1 KB for static memory

DeviceLimits ask(int device) {
  DeviceLimits limits;
  int major = 0, minor = 0, l2 = 0;
  auto get = [&](int& value, cudaDeviceAttr attribute) {
    if (!limits.failure.empty()) return;
    if (const cudaError_t status = cudaDeviceGetAttribute(&value, attribute, device); status != cudaSuccess) {
      cudaGetLastError();
      limits.failure = core::concat("cuda:", device, " cannot be used: ", cudaGetErrorString(status));
    }
  };
  get(major, cudaDevAttrComputeCapabilityMajor);
  get(minor, cudaDevAttrComputeCapabilityMinor);
  get(limits.multiprocessors, cudaDevAttrMultiProcessorCount);
  get(limits.shared_memory, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  get(limits.shared_memory_multiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  get(l2, cudaDevAttrL2CacheSize);
  limits.capability = 10 * major + minor;
  limits.l2_bytes = static_cast<std::size_t>(l2);
  return limits;
}

}  // namespace

const DeviceLimits& device_limits(int device) {
  static std::array<DeviceLimits, kMostDevices> all;
  static std::array<std::once_flag, kMostDevices> asked;
  static const DeviceLimits beyond{.failure =
                                       core::concat("more than ", kMostDevices, " GPUs are not supported")};
  if (device < 0 || device >= kMostDevices) return beyond;
  const auto index = static_cast<std::size_t>(device);
  std::call_once(asked[index], [&] { all[index] = ask(device); });
  return all[index];
}

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  core::fail(ErrorCode::device_failure, what, ": ", cudaGetErrorName(status), ": ",
             cudaGetErrorString(status));
}

DeviceScope::DeviceScope(int device) {
  int current = 0;
  check(cudaGetDevice(&current), "cudaGetDevice");
  if (current == device) return;
  check(cudaSetDevice(device), "cudaSetDevice");
  before_ = current;
}

DeviceScope::~DeviceScope() {
  if (before_ >= 0) cudaSetDevice(before_);
}

void launch(const void* kernel, const char* name, unsigned grid, int threads, std::size_t shared_memory,
            cudaStream_t stream, void* arguments) {
  if (shared_memory > kPlainSharedMemory) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_memory)),
          name);
  }
  void* parameters[] = {arguments};
  check(cudaLaunchKernel(kernel, dim3(grid), dim3(static_cast<unsigned>(threads)), parameters, shared_memory,
                         stream),
        name);
}

}  // namespace tessera::cuda

#endif
