#include "cuda/common/host/device.h"

#if TESSERA_HAVE_CUDA
#include <cuda.h>
#endif

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <type_traits>

#include "core/base/immortal.h"
#include "core/base/refuse.h"
#include "core/base/text.h"
#include "cuda/common/host/context.h"
#include "cuda/common/host/gpus.h"
#include "tessera/error.h"

namespace tessera::cuda {
namespace {

constexpr int kMostDevices = 64;

#if TESSERA_HAVE_CUDA

DeviceLimits ask(int device) {
  DeviceLimits limits;
  int major = 0, minor = 0, l2 = 0, pools = 0, count = 0, driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) {  // CUDA would call it insufficient
    limits.failure = core::concat("cuda:", device, " cannot be used: no NVIDIA driver is installed");
    return limits;
  }
  const cudaError_t counted = cudaGetDeviceCount(&count);
  forget(counted);
  if (counted == cudaSuccess && device >= count) {
    limits.failure = core::concat("cuda:", device, " does not exist: this machine has ", count,
                                  count == 1 ? " GPU" : " GPUs");
    return limits;
  }
  auto get = [&](int& value, cudaDeviceAttr attribute) {
    if (!limits.failure.empty()) return;
    if (const cudaError_t status = cudaDeviceGetAttribute(&value, attribute, device); status != cudaSuccess) {
      forget(status);
      limits.failure = core::concat("cuda:", device, " cannot be used: ", cudaGetErrorString(status));
    }
  };
  get(major, cudaDevAttrComputeCapabilityMajor);
  get(minor, cudaDevAttrComputeCapabilityMinor);
  get(limits.multiprocessors, cudaDevAttrMultiProcessorCount);
  get(limits.shared_memory, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  get(limits.shared_memory_multiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  get(l2, cudaDevAttrL2CacheSize);
  get(pools, cudaDevAttrMemoryPoolsSupported);
  limits.capability = 10 * major + minor;
  limits.l2_bytes = static_cast<std::size_t>(l2);
  limits.memory_pools = pools != 0;
  return limits;
}

#else

DeviceLimits ask(int device) {
  return {.failure = core::concat("cuda:", device,
                                  " cannot be used: this build has no CUDA (build_info() says why)")};
}

#endif

// A GPU's own limits, then those for each Code.
using AllLimits = std::array<DeviceLimits, 1 + kCodes>;

AllLimits all_limits(const DeviceLimits& own, int device, const Architectures& architectures) {
  AllLimits all;
  all[0] = own;
  for (std::size_t code = 0; code < architectures.size(); ++code)
    all[1 + code] = limits_with_code(own, device, architectures[code]);
  return all;
}

AllLimits all_limits(const DeviceLimits& own, int device) {
  return all_limits(own, device,
                    {architectures_of(Code::any), architectures_of(Code::sm75),
                     architectures_of(Code::from80), architectures_of(Code::sm90)});
}

// What AssumedGpu puts in place of all GPUs, for this thread.
thread_local const AllLimits* assumed = nullptr;

constexpr int kKiB = 1024;
constexpr std::size_t kMiB = 1 << 20;

// T4, A100, A10, L4, H200, B200 and an RTX 5090.
const std::vector<DeviceLimits>& cards() {
  static const auto& all = core::immortal([] {
    return std::vector<DeviceLimits>{
        {75, 40, 64 * kKiB, 64 * kKiB, 4 * kMiB},     {80, 108, 163 * kKiB, 164 * kKiB, 40 * kMiB},
        {86, 72, 99 * kKiB, 100 * kKiB, 6 * kMiB},    {89, 58, 99 * kKiB, 100 * kKiB, 48 * kMiB},
        {90, 132, 227 * kKiB, 228 * kKiB, 50 * kMiB}, {100, 148, 227 * kKiB, 228 * kKiB, 126 * kMiB},
        {120, 170, 99 * kKiB, 100 * kKiB, 96 * kMiB},
    };
  });
  return all;
}

}  // namespace

AssumedGpu::AssumedGpu(int capability) {
  static const auto& all = core::immortal([] {
    std::map<int, AllLimits> result;
    for (const DeviceLimits& card : cards()) result.emplace(card.capability, all_limits(card, 0));
    return result;
  });
  const auto found = all.find(capability);
  if (found == all.end()) {
    std::string known;
    for (const auto& [one, limits] : all) known += core::concat(known.empty() ? "" : ", ", one);
    core::refuse("capability is ", capability, "; it must be one of ", known);
  }
  assumed = &found->second;
}

AssumedGpu::AssumedGpu(int capability, const Architectures& architectures) : AssumedGpu(capability) {
  const auto limits = std::make_shared<const AllLimits>(all_limits((*assumed)[0], 0, architectures));
  own_ = limits;
  assumed = limits.get();
}

AssumedGpu::~AssumedGpu() { assumed = nullptr; }

bool AssumedGpu::active() { return assumed != nullptr; }

std::vector<int> AssumedGpu::known() {
  std::vector<int> capabilities;
  for (const DeviceLimits& card : cards()) capabilities.push_back(card.capability);
  return capabilities;
}

DeviceLimits limits_with_code(DeviceLimits limits, int device, std::string_view architectures) {
  if (!limits.failure.empty()) return limits;
  const Image image = image_for(architectures, limits.capability);
  if (image.capability == 0) {
    limits.failure = core::concat("cuda:", device, " has compute capability ", limits.capability / 10, ".",
                                  limits.capability % 10, "; this build has code for ", architectures);
  }
  if (image.capability < 90) limits.shared_memory = std::min(limits.shared_memory, kSharedMemoryBefore90);
  return limits;
}

namespace {

const AllLimits& limits_of(int device) {
  if (assumed != nullptr) return *assumed;
  static auto& all = core::immortal([] { return std::array<AllLimits, kMostDevices>(); });
  static std::array<std::once_flag, kMostDevices> asked;
  static const auto& beyond = core::immortal([] {
    return all_limits({.failure = core::concat("more than ", kMostDevices, " GPUs are not supported")},
                      kMostDevices);
  });
  if (device < 0 || device >= kMostDevices) return beyond;
  const auto index = static_cast<std::size_t>(device);
  std::call_once(asked[index], [&] { all[index] = all_limits(ask(device), device); });
  return all[index];
}

}  // namespace

const DeviceLimits& device_limits(int device) { return limits_of(device)[0]; }

const DeviceLimits& device_limits(int device, Code code) {
  return limits_of(device)[1 + static_cast<std::size_t>(code)];
}

#if TESSERA_HAVE_CUDA

void forget(cudaError_t status) {
  if (status != cudaSuccess && cudaPeekAtLastError() == status) cudaGetLastError();
}

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  forget(status);
  core::fail(ErrorCode::device_failure, what, ": ", cudaGetErrorName(status), ": ",
             cudaGetErrorString(status));
}

namespace {

// The functions of the driver that know contexts. Through the runtime, so that nothing has to be
// linked with the driver.
struct Contexts {
  decltype(&cuCtxGetCurrent) current = nullptr;
  decltype(&cuCtxGetDevice) device_of_current = nullptr;
  decltype(&cuCtxGetId) id = nullptr;
  decltype(&cuDevicePrimaryCtxRetain) retain = nullptr;
  decltype(&cuCtxPushCurrent) push = nullptr;
  decltype(&cuCtxPopCurrent) pop = nullptr;
};

const Contexts& contexts() {
  static const Contexts functions = [] {
    Contexts c;
    int count = 0;
    check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");  // initialises the driver, without a context
    auto find = [](auto& function, const char* name) {
      void* found = nullptr;
      cudaDriverEntryPointQueryResult result{};
      constexpr unsigned kSince = 12000;  // CUDA 12.0
#if CUDART_VERSION >= 12050
      const cudaError_t status =
          cudaGetDriverEntryPointByVersion(name, &found, kSince, cudaEnableDefault, &result);
#else
      const cudaError_t status = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
      (void)kSince;
#endif
      check(status, name);
      if (found == nullptr) core::fail(ErrorCode::device_failure, "the NVIDIA driver has no ", name);
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
    };
    find(c.current, "cuCtxGetCurrent");
    find(c.device_of_current, "cuCtxGetDevice");
    find(c.id, "cuCtxGetId");
    find(c.retain, "cuDevicePrimaryCtxRetain");
    find(c.push, "cuCtxPushCurrent");
    find(c.pop, "cuCtxPopCurrent");
    return c;
  }();
  return functions;
}

// Kept for the life of the process, like the pools and handles that live in it.
CUcontext primary_context(int device) {
  static std::array<std::atomic<CUcontext>, kMostDevices> all{};
  auto& one = all.at(static_cast<std::size_t>(device));
  CUcontext context = one.load(std::memory_order_acquire);
  if (context != nullptr) return context;
  if (const CUresult result = contexts().retain(&context, device); result != CUDA_SUCCESS) {
    core::fail(ErrorCode::device_failure, "cuDevicePrimaryCtxRetain: error ", static_cast<int>(result),
               " for cuda:", device);
  }
  one.store(context, std::memory_order_release);
  return context;
}

}  // namespace

std::uint64_t current_context_id() {
  unsigned long long id = 0;
  if (const CUresult result = contexts().id(nullptr, &id); result != CUDA_SUCCESS) {
    core::fail(ErrorCode::device_failure, "cuCtxGetId: error ", static_cast<int>(result));
  }
  return id;
}

DeviceScope::DeviceScope(int device) {
  CUcontext current = nullptr;  // asked for first: without one cuCtxGetDevice fails, which tools report
  CUdevice owner = -1;
  if (contexts().current(&current) == CUDA_SUCCESS && current != nullptr &&
      contexts().device_of_current(&owner) == CUDA_SUCCESS && owner == device) {
    return;
  }
  if (const CUresult result = contexts().push(primary_context(device)); result != CUDA_SUCCESS) {
    core::fail(ErrorCode::device_failure, "cuCtxPushCurrent: error ", static_cast<int>(result),
               " for cuda:", device);
  }
  pushed_ = true;
}

DeviceScope::~DeviceScope() {
  CUcontext ours = nullptr;
  if (pushed_) contexts().pop(&ours);
}

#else

DeviceScope::DeviceScope(int /*device*/) {}
DeviceScope::~DeviceScope() = default;

#endif

}  // namespace tessera::cuda
