// The passes of cuda.standard over its matrices, element by element. A thread block of 128 threads
// takes one row, or four if rows are short.
#include "cuda/baselines/standard/row.cuh"
#include "cuda/common/host/launch.h"

namespace tessera::cuda::standard {
namespace {

constexpr int kThreads = 128;

// A short row takes one warp.
int row_threads(const core::Problem& p) { return p.k_length <= 512 ? 32 : kThreads; }

// Calls visit(row, octet) for every octet of this thread.
template <typename Visit>
__device__ __forceinline__ void for_each_octet(const PassArguments& a, Visit&& visit) {
  const int columns = static_cast<int>(a.p.k_length), threads = columns <= 512 ? 32 : kThreads;
  const int thread = static_cast<int>(threadIdx.x) & (threads - 1);
  const int index = static_cast<int>(blockIdx.x * kThreads + threadIdx.x) / threads;
  if (index >= a.rows) return;
  const Row row(a.p, index);
  for (int group = thread / 4; group * core::kDropoutGroup < columns; group += threads / 4) {
    visit(row, Octet(group, thread, columns));
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) edit_scores_kernel(const __grid_constant__ PassArguments a) {
  for_each_octet(a, [&](const Row& row, const Octet& octet) {
    float x[kOctet], derivative[kOctet];
    float* scores = row.of(a.m.scores, a.m.row_stride);
    octet.load(scores, x);
    switch (a.step) {
      case Step::scale: row.scale(x); break;
      case Step::softcap:
        row.softcap(x, derivative);
        if (a.m.derivatives != nullptr) {
          octet.store(row.of(static_cast<T*>(a.m.derivatives), a.m.row_stride), derivative);
        }
        break;
      case Step::alibi: row.add_alibi(octet, x); break;
      case Step::bias:
        if (a.p.bias_dtype == DType::fp32) row.add_bias<float>(octet, x);
        else row.add_bias<T>(octet, x);
        break;
      case Step::mask: {
        KeptBlocks blocks(row.exists ? a.p.blocks : core::BlockView{}, row.head, row.i);
        row.mask(octet, x, blocks);
        break;
      }
    }
    octet.store(scores, x);
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads) dropout_kernel(const __grid_constant__ PassArguments a) {
  for_each_octet(a, [&](const Row& row, const Octet& octet) {
    T* values = row.of(static_cast<T*>(a.matrix), a.m.row_stride);
    float x[kOctet], factor[kOctet];
    octet.load(values, x);
    row.dropout_factors(octet, factor);
#pragma unroll
    for (int e = 0; e < kOctet; ++e) x[e] = factor[e] == 0 ? 0 : x[e] * factor[e];
    octet.store(values, x);
  });
}

// exp(score - LSE); 0 for masked elements, and everywhere in a row that saw no key.
__device__ __forceinline__ float probability(float score, float lse) {
  return score == core::kMinusInfinity<float> || lse == core::kMinusInfinity<float>
             ? 0
             : exp_difference(score, lse);
}

__device__ __forceinline__ float given_lse(const Row& row) {
  if (!row.exists) return core::kMinusInfinity<float>;
  return *row.p.lse.row<const float>(row.s.tensor_batch, row.head, row.s.q_begin + row.i);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) probabilities_kernel(const __grid_constant__ PassArguments a) {
  for_each_octet(a, [&](const Row& row, const Octet& octet) {
    const float lse = given_lse(row);
    float x[kOctet];
    octet.load(row.of(a.m.scores, a.m.row_stride), x);
#pragma unroll
    for (float& score : x) score = probability(score, lse);
    octet.store(row.of(static_cast<T*>(a.m.probabilities), a.m.row_stride), x);
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads) score_gradients_kernel(const __grid_constant__ PassArguments a) {
  for_each_octet(a, [&](const Row& row, const Octet& octet) {
    const float delta = a.m.delta[row.index];
    T* gradients = row.of(static_cast<T*>(a.m.gradients), a.m.row_stride);
    float p[kOctet], dp[kOctet];
    octet.load(row.of(static_cast<const T*>(a.m.probabilities), a.m.row_stride), p);
    octet.load(gradients, dp);
#pragma unroll
    for (int e = 0; e < kOctet; ++e) dp[e] = p[e] == 0 ? 0 : p[e] * (dp[e] - delta);
    octet.store(gradients, dp);
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads) multiply_kernel(const __grid_constant__ PassArguments a) {
  for_each_octet(a, [&](const Row& row, const Octet& octet) {
    T* gradients = row.of(static_cast<T*>(a.m.gradients), a.m.row_stride);
    float ds[kOctet], derivative[kOctet];
    octet.load(gradients, ds);
    octet.load(row.of(static_cast<const T*>(a.m.derivatives), a.m.row_stride), derivative);
#pragma unroll
    for (int e = 0; e < kOctet; ++e) ds[e] = ds[e] == 0 ? 0 : ds[e] * derivative[e];
    octet.store(gradients, ds);
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads) fused_gradients_kernel(const __grid_constant__ PassArguments a) {
  for_each_octet(a, [&](const Row& row, const Octet& octet) {
    const float lse = given_lse(row), delta = a.m.delta[row.index];
    KeptBlocks blocks(row.exists ? a.p.blocks : core::BlockView{}, row.head, row.i);
    T* gradients = row.of(static_cast<T*>(a.m.gradients), a.m.row_stride);
    float x[kOctet], dp[kOctet], derivative[kOctet], factor[kOctet];
    octet.load(row.of(static_cast<const float*>(a.m.scores), a.m.row_stride), x);
    octet.load(gradients, dp);
#pragma unroll
    for (int e = 0; e < kOctet; ++e) derivative[e] = factor[e] = 1;
    row.finish<T>(octet, x, derivative, blocks);
    if (a.p.dropout) {
      row.dropout_factors(octet, factor);
    }
#pragma unroll
    for (int e = 0; e < kOctet; ++e) {
      const float p = probability(x[e], lse);
      const float ds = p == 0 ? 0 : p * ((factor[e] == 0 ? 0 : dp[e] * factor[e]) - delta);
      x[e] = factor[e] == 0 ? 0 : p * factor[e];
      dp[e] = a.m.derivatives != nullptr || ds == 0 ? ds : ds * derivative[e];
    }
    octet.store(row.of(static_cast<T*>(a.m.probabilities), a.m.row_stride), x);
    octet.store(gradients, dp);
    if (a.m.derivatives != nullptr) {
      octet.store(row.of(static_cast<T*>(a.m.derivatives), a.m.row_stride), derivative);
    }
  });
}

template <typename Kernel>
void launch_rows(Kernel* kernel, const char* name, const PassArguments& a, void* stream) {
  const int per_block = kThreads / row_threads(a.p);
  launch(kernel, name, (std::int64_t{a.rows} + per_block - 1) / per_block, kThreads, 0, stream, a);
}

}  // namespace

void edit_scores(const core::Problem& p, const Matrices& m, Step step, void* stream) {
  PassArguments a = pass_arguments(p, m);
  a.step = step;
  with_device_type(
      p.dtype, [&]<typename T>() { launch_rows(edit_scores_kernel<T>, "cuda.standard: scores", a, stream); });
}

void dropout(const core::Problem& p, const Matrices& m, void* matrix, void* stream) {
  PassArguments a = pass_arguments(p, m);
  a.matrix = matrix;
  with_device_type(
      p.dtype, [&]<typename T>() { launch_rows(dropout_kernel<T>, "cuda.standard: dropout", a, stream); });
}

void probabilities(const core::Problem& p, const Matrices& m, void* stream) {
  with_device_type(p.dtype, [&]<typename T>() {
    launch_rows(probabilities_kernel<T>, "cuda.standard: probabilities", pass_arguments(p, m), stream);
  });
}

void score_gradients(const core::Problem& p, const Matrices& m, void* stream) {
  with_device_type(p.dtype, [&]<typename T>() {
    launch_rows(score_gradients_kernel<T>, "cuda.standard: score gradients", pass_arguments(p, m), stream);
  });
}

void multiply_derivatives(const core::Problem& p, const Matrices& m, void* stream) {
  with_device_type(p.dtype, [&]<typename T>() {
    launch_rows(multiply_kernel<T>, "cuda.standard: softcap derivative", pass_arguments(p, m), stream);
  });
}

void fused_gradients(const core::Problem& p, const Matrices& m, void* stream) {
  with_device_type(p.dtype, [&]<typename T>() {
    launch_rows(fused_gradients_kernel<T>, "cuda.standard_fused: gradients", pass_arguments(p, m), stream);
  });
}

}  // namespace tessera::cuda::standard
