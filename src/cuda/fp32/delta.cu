// delta of every query row, for the kernels that follow: a warp takes a row.
#include "cuda/common/delta.cuh"
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
  const float sum = dot_of_warp(out, grad_out, p.v_dim);
  if (lane == 0) {
    const float grad_lse = p.grad_lse ? *p.grad_lse.row<const float>(batch, head, row) : 0.0F;
    a.delta[index] = sum - grad_lse;
  }
}

}  // namespace

void (*delta_kernel())(DeltaArguments) { return &compute_delta; }

}  // namespace tessera::cuda::fp32
