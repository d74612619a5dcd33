// delta = <dO, O> - dLSE of every query row: what the gradient of softmax subtracts. One warp per row.
#include "cuda/fp32/config.h"

namespace tessera::cuda::fp32 {
namespace {

__global__ void __launch_bounds__(kDeltaThreads) compute_delta(const __grid_constant__ DeltaArguments a) {
  const core::Problem& p = a.problem;
  const std::int64_t rows = p.packed ? p.q_tokens : p.q_length;  // of one head of one batch entry
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * (kDeltaThreads / 32) + threadIdx.x / 32;
  const std::int64_t batch_and_head = index / rows, row = index % rows;
  const std::int64_t batch = batch_and_head / p.q_heads, head = batch_and_head % p.q_heads;
  if (batch >= (p.packed ? 1 : p.batch)) return;
  const float* out = p.out.row<const float>(batch, head, row);
  const float* grad_out = p.grad_out.row<const float>(batch, head, row);
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (a.clear_grad_q) {
    float* grad_q = p.grad_q.row<float>(batch, head, row);
    for (int column = lane; column < p.qk_dim; column += 32) grad_q[column] = 0;
  }
  float sum = 0;
  for (int column = lane; column < p.v_dim; column += 32) sum = fmaf(out[column], grad_out[column], sum);
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, distance);
  if (lane == 0) {
    const float grad_lse = p.grad_lse ? *p.grad_lse.row<const float>(batch, head, row) : 0.0F;
    a.delta[index] = sum - grad_lse;
  }
}

}  // namespace

const void* delta_kernel() { return reinterpret_cast<const void*>(compute_delta); }

}  // namespace tessera::cuda::fp32
