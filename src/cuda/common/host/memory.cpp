#include "cuda/common/host/memory.h"

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "core/base/immortal.h"
#include "core/base/out_of_memory.h"
#include "cuda/common/host/gpus.h"

#if TESSERA_HAVE_CUDA
#include "cuda/common/host/device.h"
#endif

namespace tessera::cuda {
namespace {

thread_local bool without_pools = false;

}  // namespace

StreamAllocator::~StreamAllocator() = default;

WithoutMemoryPools::WithoutMemoryPools() { without_pools = true; }
WithoutMemoryPools::~WithoutMemoryPools() { without_pools = false; }

#if TESSERA_HAVE_CUDA

namespace {

// A GPU's pool for workspace; null: it has none. CUDA's default pool gives everything
// back whenever somebody waits for the GPU, and a call after that would pay for fresh
// memory (150 to 400 us on an H200). This one keeps up to a 64th of the GPU's memory.
cudaMemPool_t workspace_pool(int device) {
  constexpr std::size_t kKeptShare = 64;
  static std::mutex one_at_a_time;
  static auto& pools = core::immortal([] { return std::map<int, cudaMemPool_t>(); });
  const std::scoped_lock lock(one_at_a_time);
  const auto [at, fresh] = pools.try_emplace(device, nullptr);
  if (!fresh) return at->second;
  const OutsideCapture scope;
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device;
  std::size_t available = 0, all = 0;
  cudaMemPool_t pool = nullptr;
  cudaError_t status = cudaMemGetInfo(&available, &all);
  if (status == cudaSuccess) status = cudaMemPoolCreate(&pool, &properties);
  if (status == cudaSuccess) {
    std::uint64_t kept = all / kKeptShare;
    status = cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &kept);
    if (status == cudaSuccess) at->second = pool;
    else cudaMemPoolDestroy(pool);
  }
  forget(status);  // callers fall back to the default pool
  return at->second;
}

bool capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus state = cudaStreamCaptureStatusActive;
  forget(cudaStreamIsCapturing(stream, &state));
  return state != cudaStreamCaptureStatusNone;
}

bool has_pools(int device) { return !without_pools && device_limits(device).memory_pools; }

// From the pool; while a graph is captured the memory is the graph's. Without pools
// ordinary memory, for which CUDA may wait.
cudaError_t take_memory(void** data, std::size_t bytes, int device, cudaStream_t stream) {
  const bool in_graph = capturing(stream);
  if (!has_pools(device)) {
    if (in_graph) {
      core::fail(
          ErrorCode::unsupported, "cuda:", device,
          " has no memory pools, so that a CUDA graph cannot take workspace; lend it (Execution::workspace)");
    }
    return cudaMalloc(data, bytes);
  }
  cudaMemPool_t pool = in_graph ? nullptr : workspace_pool(device);
  return pool == nullptr ? cudaMallocAsync(data, bytes, stream)
                         : cudaMallocFromPoolAsync(data, bytes, pool, stream);
}

}  // namespace

void* StreamAllocator::allocate(std::size_t bytes, std::size_t /*alignment: CUDA's own is 256*/,
                                void* stream) {
  const DeviceScope scope(device_);
  void* data = nullptr;
  const cudaError_t status = take_memory(&data, bytes, device_, static_cast<cudaStream_t>(stream));
  if (status == cudaErrorMemoryAllocation) {
    forget(status);  // the caller reports it
    return nullptr;
  }
  check(status, "taking workspace");
  return data;
}

void StreamAllocator::deallocate(void* data, std::size_t /*bytes*/, std::size_t /*alignment*/, void* stream) {
  if (data == nullptr) return;
  try {  // a failure here is that of the work before it, which others report
    const DeviceScope scope(device_);
    if (has_pools(device_)) {
      check(cudaFreeAsync(data, static_cast<cudaStream_t>(stream)), "cudaFreeAsync");
    } else {
      check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "waiting for the stream");
      check(cudaFree(data), "cudaFree");
    }
  } catch (const Error&) {
  }
}

DeviceBuffer::DeviceBuffer(int device, std::size_t bytes) : device_(device), bytes_(bytes) {
  if (bytes == 0) return;
  const DeviceScope scope(device);
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, bytes);
  if (status == cudaErrorMemoryAllocation) {
    forget(status);
    core::fail(ErrorCode::out_of_memory, "cuda:", device, " has no ", bytes, " bytes of free memory");
  }
  check(status, "cudaMalloc");
  data_ = static_cast<std::byte*>(data);
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ == nullptr) return;
  try {
    const DeviceScope scope(device_);
    forget(cudaFree(data_));
  } catch (const Error&) {
  }
}

void DeviceBuffer::upload(const void* host, std::size_t bytes, std::size_t offset) {
  if (bytes == 0) return;
  const DeviceScope scope(device_);
  synchronize(device_);
  check(cudaMemcpy(data_ + offset, host, bytes, cudaMemcpyHostToDevice), "copying to the GPU");
  // From pageable memory cudaMemcpy may return before the last bytes have arrived,
  // and a stream that does not wait for the default stream would not wait for them.
  synchronize(device_);
}

void DeviceBuffer::download(void* host, std::size_t bytes, std::size_t offset) const {
  cuda::download(device_, data_ + offset, host, bytes);
}

void download(int device, const void* data, void* host, std::size_t bytes) {
  if (bytes == 0) return;
  const DeviceScope scope(device);
  synchronize(device);
  check(cudaMemcpy(host, data, bytes, cudaMemcpyDeviceToHost), "copying from the GPU");
}

void synchronize(int device) {
  const DeviceScope scope(device);
  check(cudaDeviceSynchronize(), "waiting for the GPU");
}

#else

namespace {

[[noreturn]] void refuse_without_cuda(int device) { core::fail(ErrorCode::unsupported, unusable(device)); }

}  // namespace

void* StreamAllocator::allocate(std::size_t /*bytes*/, std::size_t /*alignment*/, void* /*stream*/) {
  refuse_without_cuda(device_);
}

void StreamAllocator::deallocate(void* /*data*/, std::size_t /*bytes*/, std::size_t /*alignment*/,
                                 void* /*stream*/) {}

DeviceBuffer::DeviceBuffer(int device, std::size_t bytes) : device_(device), bytes_(bytes) {
  refuse_without_cuda(device);
}

DeviceBuffer::~DeviceBuffer() = default;

void DeviceBuffer::upload(const void* /*host*/, std::size_t /*bytes*/, std::size_t /*offset*/) {
  refuse_without_cuda(device_);
}

void DeviceBuffer::download(void* /*host*/, std::size_t /*bytes*/, std::size_t /*offset*/) const {
  refuse_without_cuda(device_);
}

void download(int device, const void* /*data*/, void* /*host*/, std::size_t /*bytes*/) {
  refuse_without_cuda(device);
}

void synchronize(int device) { refuse_without_cuda(device); }

#endif

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : device_(other.device_),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace tessera::cuda
