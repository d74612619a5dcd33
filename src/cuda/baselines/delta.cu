#include "cuda/baselines/delta.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/common/delta.cuh"
#include "cuda/common/host/device.h"
#include "cuda/common/host/launch.h"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kRows = 64;  // of a head, for a thread block

struct DeltaArguments {
  core::Problem p;
  float* delta;
};

template <typename T>
__global__ void __launch_bounds__(kThreads) delta_kernel(const __grid_constant__ DeltaArguments a) {
  const core::Problem& p = a.p;
  const auto blocks_per_head = static_cast<unsigned>((p.q_length + kRows - 1) / kRows);
  const int sequence_and_head = static_cast<int>(blockIdx.x / blocks_per_head);
  const int head = sequence_and_head % static_cast<int>(p.q_heads);
  const core::Sequence s = core::sequence(p, sequence_and_head / static_cast<int>(p.q_heads));
  const int begin = static_cast<int>(blockIdx.x % blocks_per_head) * kRows;
  const int end = min(begin + kRows, static_cast<int>(p.q_length));
  for (int i = begin + static_cast<int>(threadIdx.x) / 32; i < end; i += kWarps) {
    float delta = 0;
    if (i < s.q_length) {
      const std::int64_t row = s.q_begin + i;
      delta = dot_of_warp(p.out.row<const T>(s.tensor_batch, head, row),
                          p.grad_out.row<const T>(s.tensor_batch, head, row), p.v_dim);
      if (p.has_grad_lse) delta -= *p.grad_lse.row<const float>(s.tensor_batch, head, row);
    }
    if (threadIdx.x % 32 == 0) a.delta[sequence_and_head * p.q_length + i] = delta;
  }
}

}  // namespace

void row_delta(const core::Problem& p, float* delta, void* stream) {
  void (*kernel)(DeltaArguments) = p.dtype == DType::fp16   ? delta_kernel<__half>
                                   : p.dtype == DType::bf16 ? delta_kernel<__nv_bfloat16>
                                                            : delta_kernel<float>;
  const std::int64_t blocks = p.batch * p.q_heads * ((p.q_length + kRows - 1) / kRows);
  launch(kernel, "delta of the baselines", blocks, kThreads, 0, stream, DeltaArguments{p, delta});
}

}  // namespace tessera::cuda
