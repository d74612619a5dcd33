#include "lab/baselines/shared_product.h"

#include <cstring>

#include "cpu/baselines/standard/blas.h"
#include "cuda/common/host/gpus.h"

#if TESSERA_HAVE_CUDA
#include "cuda/baselines/standard/cublas.h"
#include "cuda/common/host/device.h"
#endif

namespace tessera::lab {
namespace {

void multiply_on_cpu(const SharedProduct& p) {
  for (std::int64_t b = 0; b < p.batch; ++b) {
    cpu::gemm(p.transposed ? cpu::Transpose::yes : cpu::Transpose::no, cpu::Transpose::no, p.rows, p.columns,
              p.depth, p.alpha, static_cast<const float*>(p.matrix), p.transposed ? p.rows : p.depth,
              static_cast<const float*>(p.from) + b * p.depth * p.columns, p.columns, 0.0F,
              static_cast<float*>(p.to) + b * p.rows * p.columns, p.columns);
  }
}

}  // namespace

std::string products_missing(Device device) {
  if (device.type == DeviceType::cpu) return cpu::blas_missing();
  if (std::string reason = cuda::unusable(device.index); !reason.empty()) return reason;
#if TESSERA_HAVE_CUDA
  return cuda::cublas_missing();
#else
  return "this build has no CUDA";
#endif
}

#if TESSERA_HAVE_CUDA

std::size_t product_workspace_bytes(Device device) {
  if (device.type == DeviceType::cpu) return 0;
  return cuda::cublas_workspace_bytes(cuda::device_limits(device.index).capability);
}

void multiply(const SharedProduct& p, Device device, const Execution& execution, void* workspace) {
  if (device.type == DeviceType::cpu) return multiply_on_cpu(p);
  const cuda::DeviceScope scope(device.index);
  const cuda::Cublas cublas(execution.stream, workspace, product_workspace_bytes(device));
  auto matrix = [&](const void* data, std::int64_t row_stride, std::int64_t stride) {
    return cuda::BatchedMatrix{const_cast<void*>(data), p.dtype, row_stride, {stride, 0, 0}};
  };
  cublas.multiply({.a_transposed = p.transposed ? cuda::Transpose::yes : cuda::Transpose::no,
                   .rows = p.rows,
                   .columns = p.columns,
                   .depth = p.depth,
                   .batch = {p.batch, 1, 1},
                   .alpha = p.alpha,
                   .a = matrix(p.matrix, p.transposed ? p.rows : p.depth, 0),
                   .b = matrix(p.from, p.columns, p.depth * p.columns),
                   .c = matrix(p.to, p.columns, p.rows * p.columns)});
}

void copy_to(Device device, const Execution& execution, void* to, const void* host, std::size_t bytes) {
  if (device.type == DeviceType::cpu) {
    std::memcpy(to, host, bytes);
    return;
  }
  const cuda::DeviceScope scope(device.index);
  auto* const stream = static_cast<cudaStream_t>(execution.stream);
  cuda::check(cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, stream), "copying to the GPU");
  cuda::check(cudaStreamSynchronize(stream), "copying to the GPU");
}

#else

std::size_t product_workspace_bytes(Device /*device*/) { return 0; }

void multiply(const SharedProduct& p, Device /*device*/, const Execution& /*execution*/,
              void* /*workspace*/) {
  multiply_on_cpu(p);
}

void copy_to(Device /*device*/, const Execution& /*execution*/, void* to, const void* host,
             std::size_t bytes) {
  std::memcpy(to, host, bytes);
}

#endif

}  // namespace tessera::lab
