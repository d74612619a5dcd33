#include "cuda/common/host/gpus.h"

#include "core/base/text.h"
#include "cuda/common/host/device.h"

#if TESSERA_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

namespace tessera::cuda {

#if TESSERA_HAVE_CUDA

namespace {

std::string version_text(int version) { return core::concat(version / 1000, ".", version % 1000 / 10); }

}  // namespace

std::string status() {
  int runtime = 0, driver = 0, count = 0;
  cudaRuntimeGetVersion(&runtime);
  cudaDriverGetVersion(&driver);
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    forget(error);  // asking is not a failure
    return core::concat("runtime ", version_text(runtime), ", no GPU: ",
                        driver == 0 ? "no NVIDIA driver is installed" : cudaGetErrorString(error));
  }
  return core::concat("runtime ", version_text(runtime), ", driver ", version_text(driver), ", ", count,
                      count == 1 ? " GPU" : " GPUs");
}

int device_count() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  forget(status);
  return status == cudaSuccess ? count : 0;
}

std::vector<DeviceInfo> devices() {
  std::vector<DeviceInfo> result;
  const int count = device_count();
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties{};
    const cudaError_t status = cudaGetDeviceProperties(&properties, index);
    forget(status);
    if (status != cudaSuccess) continue;
    result.push_back(
        {Device::cuda(index), properties.name,
         core::concat("compute capability ", properties.major, ".", properties.minor, ", ",
                      properties.multiProcessorCount, " SMs, ", properties.totalGlobalMem >> 20, " MiB")});
  }
  return result;
}

#else

std::string status() { return "no GPU can be used"; }

std::vector<DeviceInfo> devices() { return {}; }

int device_count() { return 0; }

#endif

std::string unusable(int device) { return device_limits(device).failure; }

}  // namespace tessera::cuda
