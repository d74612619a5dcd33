// The CUDA runtime and driver of the model: one GPU, whose memory is this machine's, and whose
// streams are done at once.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <string_view>

#include "gpu_model/machine/machine.h"
#include "gpu_model/machine/tensor_map.h"

namespace gpu_model {
namespace {

int own_capability = 90, own_multiprocessors = 2;
constexpr int kKiB = 1024;

cudaError_t allocate(void** data, std::size_t bytes) {
  constexpr std::size_t kAlignment = 256;
  *data = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (*data == nullptr) return cudaErrorMemoryAllocation;
  std::memset(*data, 0xFF, bytes);  // NaN
  add_global(*data, bytes);
  return cudaSuccess;
}

cudaError_t release(void* data) {
  remove_global(data);
  std::free(data);
  return cudaSuccess;
}

}  // namespace

void set_gpu(int capability, int multiprocessors) {
  own_capability = capability, own_multiprocessors = multiprocessors;
}
int capability() { return own_capability; }
int multiprocessors() { return own_multiprocessors; }

}  // namespace gpu_model

extern "C" {

cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "cudaError"; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the model"; }

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int /*device*/) {
  const bool hopper = gpu_model::own_capability >= 90, turing = gpu_model::own_capability < 80;
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = gpu_model::own_capability / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = gpu_model::own_capability % 10; break;
    case cudaDevAttrMultiProcessorCount: *value = gpu_model::own_multiprocessors; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = (hopper ? 227 : turing ? 64 : 163) * gpu_model::kKiB;
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = (hopper ? 228 : turing ? 64 : 164) * gpu_model::kKiB;
      break;
    case cudaDevAttrL2CacheSize: *value = 50 * gpu_model::kKiB * gpu_model::kKiB; break;
    case cudaDevAttrMemoryPoolsSupported: *value = 1; break;
  }
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned /*version*/,
                                             unsigned long long /*flags*/,
                                             cudaDriverEntryPointQueryResult* result) {
  struct Entry {
    std::string_view name;
    void* function;
  };
  const Entry entries[] = {
      {"cuCtxGetCurrent", reinterpret_cast<void*>(&cuCtxGetCurrent)},
      {"cuCtxGetDevice", reinterpret_cast<void*>(&cuCtxGetDevice)},
      {"cuCtxGetId", reinterpret_cast<void*>(&cuCtxGetId)},
      {"cuDevicePrimaryCtxRetain", reinterpret_cast<void*>(&cuDevicePrimaryCtxRetain)},
      {"cuCtxPushCurrent", reinterpret_cast<void*>(&cuCtxPushCurrent)},
      {"cuCtxPopCurrent", reinterpret_cast<void*>(&cuCtxPopCurrent)},
      {"cuTensorMapEncodeTiled", reinterpret_cast<void*>(&cuTensorMapEncodeTiled)},
  };
  *function = nullptr;
  for (const Entry& entry : entries) {
    if (entry.name == name) *function = entry.function;
  }
  *result = cudaDriverEntryPointSuccess;
  return *function == nullptr ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* /*mode*/) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t /*stream*/, cudaStreamCaptureStatus* status) {
  return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t /*stream*/) { return cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  return *stream = nullptr, cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t /*stream*/) { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int /*device*/) {
  *properties = {"model of a GPU", gpu_model::own_capability / 10, gpu_model::own_capability % 10,
                 gpu_model::own_multiprocessors, std::size_t{1} << 36};
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** data, std::size_t bytes) { return gpu_model::allocate(data, bytes); }
cudaError_t cudaFree(void* data) { return gpu_model::release(data); }
cudaError_t cudaMallocAsync(void** data, std::size_t bytes, cudaStream_t /*stream*/) {
  return gpu_model::allocate(data, bytes);
}
cudaError_t cudaMallocFromPoolAsync(void** data, std::size_t bytes, cudaMemPool_t /*pool*/,
                                    cudaStream_t /*stream*/) {
  return gpu_model::allocate(data, bytes);
}
cudaError_t cudaFreeAsync(void* data, cudaStream_t /*stream*/) { return gpu_model::release(data); }
cudaError_t cudaMemGetInfo(std::size_t* available, std::size_t* all) {
  *available = *all = std::size_t{1} << 36;
  return cudaSuccess;
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* /*properties*/) {
  return *pool = nullptr, cudaSuccess;
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t /*pool*/) { return cudaSuccess; }
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t /*pool*/, cudaMemPoolAttr /*attribute*/, void* /*value*/) {
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind /*kind*/) {
  return std::memcpy(to, from, bytes), cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t /*stream*/) {
  return cudaMemcpy(to, from, bytes, kind);
}
cudaError_t cudaMemset(void* to, int byte, std::size_t bytes) {
  return std::memset(to, byte, bytes), cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int byte, std::size_t bytes, cudaStream_t /*stream*/) {
  return cudaMemset(to, byte, bytes);
}

// The one context is always current.
CUresult cuCtxGetCurrent(CUcontext* context) {
  static int only = 0;
  return *context = reinterpret_cast<CUcontext>(&only), CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* device) { return *device = 0, CUDA_SUCCESS; }
CUresult cuCtxGetId(CUcontext /*context*/, unsigned long long* id) { return *id = 1, CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice /*device*/) {
  return cuCtxGetCurrent(context);
}
CUresult cuCtxPushCurrent(CUcontext /*context*/) { return CUDA_SUCCESS; }
CUresult cuCtxPopCurrent(CUcontext* context) { return cuCtxGetCurrent(context); }

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* element_strides, CUtensorMapInterleave /*interleave*/,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion /*promotion*/,
                                CUtensorMapFloatOOBfill /*fill*/) {
  gpu_model::TensorMap m{};
  m.address = static_cast<unsigned char*>(address);
  m.element_bytes = type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32   ? 4
                    : type == CU_TENSOR_MAP_DATA_TYPE_FLOAT64 ? 8
                                                              : 2;
  if (rank != 4 || reinterpret_cast<std::uintptr_t>(address) % 16 != 0 ||
      swizzle != CU_TENSOR_MAP_SWIZZLE_128B || box[0] * m.element_bytes != gpu_model::kBoxRowBytes ||
      box[1] > 256 || box[2] != 1 || box[3] != 1)
    return CUDA_ERROR_INVALID_VALUE;
  for (int i = 0; i < 4; ++i) {
    if (sizes[i] == 0 || sizes[i] > std::uint64_t{1} << 32 || element_strides[i] != 1)
      return CUDA_ERROR_INVALID_VALUE;
    m.sizes[i] = sizes[i], m.box[i] = box[i];
  }
  for (int i = 0; i < 3; ++i) {
    if (strides[i] % 16 != 0 || strides[i] >> 40 != 0) return CUDA_ERROR_INVALID_VALUE;
    m.strides[i] = strides[i];
  }
  std::memset(map, 0, sizeof *map);
  std::memcpy(map, &m, sizeof m);
  return CUDA_SUCCESS;
}

}  // extern "C"
