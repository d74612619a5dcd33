#include "cuda/host/device.h"

#if TESSERA_HAVE_CUDA

#include <algorithm>
#include <array>
#include <mutex>

#include "core/immortal.h"
#include "core/refuse.h"
#include "core/text.h"
#include "core/tiles.h"
#include "core/walk.h"
#include "cuda/host/devices.h"
#include "tessera/error.h"

namespace tessera::cuda {
namespace {

constexpr int kMostDevices = 64;
constexpr std::size_t kPlainSharedMemory = 47 * 1024;  // more must be asked for; 1 KB for static memory

DeviceLimits ask(int device) {
  DeviceLimits limits;
  int major = 0, minor = 0, l2 = 0, count = 0, driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) {  // CUDA would call it insufficient
    limits.failure = core::concat("cuda:", device, " cannot be used: no NVIDIA driver is installed");
    return limits;
  }
  if (cudaGetDeviceCount(&count) == cudaSuccess && device >= count) {
    limits.failure = core::concat("cuda:", device, " does not exist: this machine has ", count,
                                  count == 1 ? " GPU" : " GPUs");
    return limits;
  }
  cudaGetLastError();
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

// What AssumedGpu puts in place of all GPUs, for this thread.
thread_local const DeviceLimits* assumed = nullptr;

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
  std::string known;
  for (const DeviceLimits& card : cards()) {
    if (card.capability == capability) assumed = &card;
    known += core::concat(known.empty() ? "" : ", ", card.capability);
  }
  if (assumed == nullptr || assumed->capability != capability) {
    core::refuse("capability is ", capability, "; it must be one of ", known);
  }
}

AssumedGpu::~AssumedGpu() { assumed = nullptr; }

std::vector<int> AssumedGpu::known() {
  std::vector<int> capabilities;
  for (const DeviceLimits& card : cards()) capabilities.push_back(card.capability);
  return capabilities;
}

const DeviceLimits& device_limits(int device) {
  if (assumed != nullptr) return *assumed;
  static auto& all = core::immortal([] { return std::array<DeviceLimits, kMostDevices>(); });
  static std::array<std::once_flag, kMostDevices> asked;
  static const DeviceLimits& beyond = core::immortal([] {
    return DeviceLimits{.failure = core::concat("more than ", kMostDevices, " GPUs are not supported")};
  });
  if (device < 0 || device >= kMostDevices) return beyond;
  const auto index = static_cast<std::size_t>(device);
  std::call_once(asked[index], [&] { all[index] = ask(device); });
  return all[index];
}

bool size_limits(const core::Problem& p, std::int64_t tile_rows, core::Reason reason) {
  constexpr std::int64_t kMostBlocks = 0x7FFFFFFF;
  const std::int64_t longest = std::max(p.q_length, p.k_length);
  if (longest >= core::kLongestWalk) {
    return reason.give("a sequence of ", longest, " is longer than GPUs serve, 2^29 - 1");
  }
  // Tiles do not cross the blocks of a mask.
  auto tiles = [&](std::int64_t length, std::int64_t block) {
    return core::Tiling{length, tile_rows, block}.count();
  };
  const std::int64_t most = std::max(tiles(p.q_length, p.blocks ? p.blocks.block_q : 0),
                                     tiles(p.k_length, p.blocks ? p.blocks.block_k : 0));
  std::int64_t blocks = 0;
  if (__builtin_mul_overflow(p.batch, p.q_heads, &blocks) || __builtin_mul_overflow(blocks, most, &blocks) ||
      blocks > kMostBlocks) {
    return reason.give("batch ", p.batch, " x ", p.q_heads, " heads x ", most,
                       " tiles are more than 2^31 - 1 thread blocks");
  }
  return false;
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

namespace {

// The limit belongs to the kernel, not to a call: it is only ever raised, or a thread that needs less (a call without a bias,
// say) would take it away from another one that is about to launch.
void allow_shared_memory(const void* kernel, const char* name, std::size_t bytes) {
  static std::mutex one_at_a_time;
  const std::scoped_lock lock(one_at_a_time);
  cudaFuncAttributes now{};
  check(cudaFuncGetAttributes(&now, kernel), name);
  if (now.maxDynamicSharedSizeBytes >= static_cast<int>(bytes)) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        name);
}

}  // namespace

void launch(const void* kernel, const char* name, unsigned grid, int threads, std::size_t shared_memory,
            cudaStream_t stream, void* arguments, Begin begin) {
  if (shared_memory > kPlainSharedMemory) allow_shared_memory(kernel, name, shared_memory);
  void* parameters[] = {arguments};
  cudaLaunchAttribute beside{};
  beside.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  beside.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t how{};
  how.gridDim = dim3(grid);
  how.blockDim = dim3(static_cast<unsigned>(threads));
  how.dynamicSmemBytes = shared_memory;
  how.stream = stream;
  how.attrs = &beside;
  how.numAttrs = begin == Begin::beside_predecessors ? 1 : 0;
  check(cudaLaunchKernelExC(&how, kernel, parameters), name);
}

}  // namespace tessera::cuda

#endif
