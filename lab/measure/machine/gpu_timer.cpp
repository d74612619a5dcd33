#include "lab/measure/machine/gpu_timer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "cuda/common/host/gpus.h"
#include "lab/measure/machine/gpu_clock.h"
#include "tessera/error.h"

#if TESSERA_HAVE_CUDA
#include "cuda/common/host/device.h"
#endif

namespace tessera::lab {

std::string gpu_name(int device) {
  for (const DeviceInfo& info : cuda::devices()) {
    if (info.device.index == device) return info.name;
  }
  return {};
}

namespace {

void require_gpu(int device) {
  if (const std::string reason = cuda::unusable(device); !reason.empty()) {
    throw Error(ErrorCode::unsupported, reason);
  }
}

}  // namespace

#if TESSERA_HAVE_CUDA

using cuda::check;

std::size_t gpu_available_memory(int device) {
  if (!cuda::unusable(device).empty()) return 0;
  const cuda::DeviceScope scope(device);
  std::size_t available = 0, total = 0;
  check(cudaMemGetInfo(&available, &total), "asking for free memory");
  return available;
}

struct GpuTimer::State {
  using Clock = std::chrono::steady_clock;

  explicit State(int index) : device(index), clock(pci_address(index)) {
    const cuda::DeviceScope scope(device);
    // Twice the cache: what it replaces need not be what was used least recently.
    flush_bytes = std::max<std::size_t>(2 * cuda::device_limits(device).l2_bytes, std::size_t{32} << 20);
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    check(cudaEventCreate(&begin), "cudaEventCreate");
    check(cudaEventCreate(&end), "cudaEventCreate");
    check(cudaMalloc(&flush, flush_bytes), "memory to empty the cache with");
  }

  ~State() {
    cudaStreamSynchronize(stream);
    cudaFree(flush);
    cudaEventDestroy(end);
    cudaEventDestroy(begin);
    cudaStreamDestroy(stream);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  static std::string pci_address(int device) {
    char text[32] = {};
    check(cudaDeviceGetPCIBusId(text, sizeof text, device), "cudaDeviceGetPCIBusId");
    return text;
  }

  // Asking takes a millisecond or so: not for every call.
  void watch_clock() {
    constexpr std::chrono::milliseconds kPause{50};
    const Clock::time_point now = Clock::now();
    if (now < next_look) return;
    next_look = now + kPause;
    if (const double mhz = clock.sm_mhz(); mhz > 0) clocks.push_back(mhz);
  }

  int device;
  GpuClock clock;
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  void* flush = nullptr;
  std::size_t flush_bytes = 0;
  Clock::time_point next_look{};
  std::vector<double> clocks;
};

double GpuTimer::time(const std::function<void()>& call) {
  State& s = *state_;
  const cuda::DeviceScope scope(s.device);
  check(cudaMemsetAsync(s.flush, 0, s.flush_bytes, s.stream), "emptying the cache");
  check(cudaEventRecord(s.begin, s.stream), "cudaEventRecord");
  call();
  check(cudaEventRecord(s.end, s.stream), "cudaEventRecord");
  s.watch_clock();
  check(cudaEventSynchronize(s.end), "waiting for a measured call");
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, s.begin, s.end), "cudaEventElapsedTime");
  return static_cast<double>(milliseconds) / 1e3;
}

void* GpuTimer::stream() const { return state_->stream; }

struct GpuPool::State {
  State(int index, std::size_t most) : device(index), limit(most) {
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location = {.type = cudaMemLocationTypeDevice, .id = device};
    check(cudaMemPoolCreate(&pool, &properties), "cudaMemPoolCreate");
    std::uint64_t keep = UINT64_MAX;  // no measured call pays for fresh memory
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep), "cudaMemPoolSetAttribute");
  }
  ~State() { cudaMemPoolDestroy(pool); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  [[nodiscard]] std::size_t get(cudaMemPoolAttr attribute) const {
    std::uint64_t value = 0;
    check(cudaMemPoolGetAttribute(pool, attribute, &value), "cudaMemPoolGetAttribute");
    return static_cast<std::size_t>(value);
  }

  int device;
  std::size_t limit;
  cudaMemPool_t pool = nullptr;
};

void* GpuPool::allocate(std::size_t bytes, std::size_t /*alignment*/, void* stream) {
  const std::size_t in_use = state_->get(cudaMemPoolAttrUsedMemCurrent);
  if (bytes > state_->limit || in_use > state_->limit - bytes) return nullptr;
  void* data = nullptr;
  auto* const on = static_cast<cudaStream_t>(stream);
  const cudaError_t status = cudaMallocFromPoolAsync(&data, bytes, state_->pool, on);
  if (status == cudaErrorMemoryAllocation) {
    cuda::forget(status);
    return nullptr;
  }
  check(status, "cudaMallocFromPoolAsync");
  return data;
}

void GpuPool::deallocate(void* data, std::size_t /*bytes*/, std::size_t /*alignment*/, void* stream) {
  cudaFreeAsync(data, static_cast<cudaStream_t>(stream));
}

std::size_t GpuPool::peak() const { return state_->get(cudaMemPoolAttrUsedMemHigh); }

void GpuPool::reset_peak() {
  cuda::DeviceScope scope(state_->device);
  check(cudaDeviceSynchronize(), "waiting for the GPU");  // freed memory counts as used until then
  std::uint64_t zero = 0;
  check(cudaMemPoolSetAttribute(state_->pool, cudaMemPoolAttrUsedMemHigh, &zero), "cudaMemPoolSetAttribute");
}

#else

std::size_t gpu_available_memory(int /*device*/) { return 0; }

struct GpuTimer::State {
  explicit State(int /*device*/) {}
  std::vector<double> clocks;
};

struct GpuPool::State {
  State(int /*device*/, std::size_t /*limit*/) {}
};

// Never reached: the constructors throw.
double GpuTimer::time(const std::function<void()>& /*call*/) { return 0; }
void* GpuTimer::stream() const { return nullptr; }
void* GpuPool::allocate(std::size_t /*bytes*/, std::size_t /*alignment*/, void* /*stream*/) {
  return nullptr;
}
void GpuPool::deallocate(void* /*data*/, std::size_t /*bytes*/, std::size_t /*alignment*/, void* /*stream*/) {
}
std::size_t GpuPool::peak() const { return 0; }
void GpuPool::reset_peak() {}

#endif

GpuTimer::GpuTimer(int device) {
  require_gpu(device);
  state_ = std::make_unique<State>(device);
}
GpuTimer::~GpuTimer() = default;

const std::vector<double>& GpuTimer::clocks() const { return state_->clocks; }
void GpuTimer::forget_clocks() { state_->clocks.clear(); }

GpuPool::GpuPool(int device, std::size_t limit) {
  require_gpu(device);
  state_ = std::make_unique<State>(device, limit);
}
GpuPool::~GpuPool() = default;

}  // namespace tessera::lab
