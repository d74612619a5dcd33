// A row of the N x N matrices as the threads of a pass see it.
//
// A thread takes eight columns of a group of 32 at a time: the pairs 8 m + 2 t, m = 0 .. 3, for t =
// thread % 4. These columns share a call of dropout's random function (core/philox.h), and four
// neighbouring threads read whole 32-byte sectors of an fp32 matrix.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "core/online_softmax.h"
#include "core/problem.h"
#include "cuda/baselines/standard/kept_blocks.h"
#include "cuda/baselines/standard/passes.h"
#include "cuda/common/exp.cuh"
#include "cuda/common/host/device.h"
#include "cuda/common/ptx/shared_memory.cuh"
#include "cuda/common/step_cursor.h"

namespace tessera::cuda::standard {

using Half = __half;
using BFloat16 = __nv_bfloat16;

__device__ __forceinline__ float load(const float* x) { return *x; }
__device__ __forceinline__ float load(const Half* x) { return __half2float(*x); }
__device__ __forceinline__ float load(const BFloat16* x) { return __bfloat162float(*x); }
__device__ __forceinline__ void store(float* to, float x) { *to = x; }
__device__ __forceinline__ void store(Half* to, float x) { *to = __float2half_rn(x); }
__device__ __forceinline__ void store(BFloat16* to, float x) { *to = __float2bfloat16_rn(x); }

__device__ __forceinline__ float2 load_pair(const float* x) { return *reinterpret_cast<const float2*>(x); }
__device__ __forceinline__ float2 load_pair(const Half* x) {
  return __half22float2(*reinterpret_cast<const __half2*>(x));
}
__device__ __forceinline__ float2 load_pair(const BFloat16* x) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(x));
}
__device__ __forceinline__ void store_pair(float* to, float2 x) { *reinterpret_cast<float2*>(to) = x; }
__device__ __forceinline__ void store_pair(Half* to, float2 x) {
  *reinterpret_cast<__half2*>(to) = __float22half2_rn(x);
}
__device__ __forceinline__ void store_pair(BFloat16* to, float2 x) {
  *reinterpret_cast<__nv_bfloat162*>(to) = __float22bfloat162_rn(x);
}

inline constexpr int kOctet = 8;

// The eight columns of a thread.
struct Octet {
  int first;
  int columns;  // of the row; columns beyond are not accessed

  __device__ __forceinline__ Octet(int group, int thread, int all)
      : first(group * core::kDropoutGroup + thread % 4 * 2), columns(all) {}

  __device__ __forceinline__ int column(int e) const { return first + e / 2 * 8 + e % 2; }

  template <typename T>
  __device__ __forceinline__ void load(const T* row, float (&x)[kOctet], float beyond = 0) const {
#pragma unroll
    for (int e = 0; e < kOctet; e += 2) {
      const int j = column(e);
      float2 pair{beyond, beyond};
      if (j + 1 < columns) pair = load_pair(row + j);
      else if (j < columns) pair.x = standard::load(row + j);
      x[e] = pair.x, x[e + 1] = pair.y;
    }
  }

  template <typename T>
  __device__ __forceinline__ void store(T* row, const float (&x)[kOctet]) const {
#pragma unroll
    for (int e = 0; e < kOctet; e += 2) {
      const int j = column(e);
      if (j + 1 < columns) store_pair(row + j, {x[e], x[e + 1]});
      else if (j < columns) standard::store(row + j, x[e]);
    }
  }
};

struct Row {
  const core::Problem& p;
  core::Sequence s;
  int index;       // of the row in the matrices
  int head, i;     // query head and local row
  bool exists;     // not past the end of its sequence
  int begin, end;  // the columns inside the band
  core::DropoutStream stream;

  __device__ Row(const core::Problem& problem, int row)
      : p(problem),
        s(core::sequence(problem, static_cast<unsigned>(row) / static_cast<unsigned>(problem.q_length) /
                                      static_cast<unsigned>(problem.q_heads))),
        index(row),
        head(static_cast<int>(static_cast<unsigned>(row) / static_cast<unsigned>(problem.q_length) %
                              static_cast<unsigned>(problem.q_heads))),
        i(static_cast<int>(static_cast<unsigned>(row) % static_cast<unsigned>(problem.q_length))) {
    exists = i < s.q_length;
    const core::VisibleRange range = core::visible_range(s.band, i, i + 1, s.k_length);
    begin = static_cast<int>(range.begin);
    end = exists ? static_cast<int>(range.end) : begin;
    if (p.dropout) stream = core::dropout_stream(p, s.index, head);
  }

  template <typename T>
  __device__ T* of(T* matrix, std::int64_t row_stride) const {
    return matrix + index * row_stride;
  }

  // ---- the steps, on eight scores ----

  __device__ __forceinline__ void scale(float (&x)[kOctet]) const {
    const float factor = static_cast<float>(p.scale);
#pragma unroll
    for (float& score : x) score *= factor;
  }

  __device__ __forceinline__ void softcap(float (&x)[kOctet], float (&derivative)[kOctet]) const {
    const float cap = static_cast<float>(p.softcap);
#pragma unroll
    for (int e = 0; e < kOctet; ++e) {
      const float bent = tanhf(x[e] / cap);
      x[e] = cap * bent;
      derivative[e] = 1 - bent * bent;
    }
  }

  __device__ __forceinline__ void add_alibi(const Octet& octet, float (&x)[kOctet]) const {
    const float slope = p.alibi_slopes[s.index * p.alibi_batch_stride + head];
    const std::int64_t diagonal = i + s.band.diagonal;
#pragma unroll
    for (int e = 0; e < kOctet; ++e) {
      x[e] -= slope * fabsf(static_cast<float>(diagonal - octet.column(e)));
    }
  }

  template <typename B>
  __device__ __forceinline__ void add_bias(const Octet& octet, float (&x)[kOctet]) const {
    if (!exists) return;
    const B* bias = p.bias.row<const B>(s.index, head, i);
#pragma unroll
    for (int e = 0; e < kOctet; ++e) {
      if (octet.column(e) >= octet.columns) continue;
      const float b = standard::load(bias + octet.column(e));
      // -inf hides the key whatever its score is.
      x[e] = b == core::kMinusInfinity<float> ? b : x[e] + b;
    }
  }

  // Scores that the row does not see become -inf, whatever they were, NaN included.
  __device__ __forceinline__ void mask(const Octet& octet, float (&x)[kOctet], KeptBlocks& blocks) const {
    if (blocks.all() && octet.column(0) >= begin && octet.column(kOctet - 1) < end) return;
#pragma unroll
    for (int e = 0; e < kOctet; ++e) {
      const int j = octet.column(e);
      if (j < begin || j >= end || !blocks.contain(j)) x[e] = core::kMinusInfinity<float>;
    }
  }

  // Turns scaled scores into those that the softmax takes. T is the type of the tensors.
  template <typename T>
  __device__ __forceinline__ void finish(const Octet& octet, float (&x)[kOctet], float (&derivative)[kOctet],
                                         KeptBlocks& blocks) const {
    if (p.softcap != 0) softcap(x, derivative);
    if (p.alibi_slopes != nullptr) add_alibi(octet, x);
    if (p.has_bias) {
      if (p.bias_dtype == DType::fp32) add_bias<float>(octet, x);
      else add_bias<T>(octet, x);
    }
    mask(octet, x, blocks);
  }

  // Dropout's factor of each of the eight columns: 0 or 1 / (1 - probability).
  __device__ __forceinline__ void dropout_factors(const Octet& octet, float (&factor)[kOctet]) const {
    const float keep = static_cast<float>(p.keep_scale);
    const std::int64_t row = p.origin.row + i, first = p.origin.column + octet.first;
    const bool one_call = p.origin.column % core::kDropoutGroup == 0;
    core::PhiloxBlock block =
        core::dropout_call(stream, row, first / core::kDropoutGroup, static_cast<int>(first % 8 / 2));
#pragma unroll
    for (int e = 0; e < kOctet; ++e) {
      std::uint32_t bits = core::dropout_half(block.word[e / 2], e % 2);
      if (!one_call) bits = single_bits(stream, row, p.origin.column + octet.column(e));
      factor[e] = bits >= p.dropout_threshold ? keep : 0;
    }
  }

 private:
  // core::dropout_bits without an index into registers.
  static __device__ std::uint32_t single_bits(const core::DropoutStream& stream, std::int64_t row,
                                              std::int64_t column) {
    const int within = static_cast<int>(column % core::kDropoutGroup);
    const core::PhiloxBlock block =
        core::dropout_call(stream, row, column / core::kDropoutGroup, within % 8 / 2);
    const std::uint32_t word = within < 8    ? block.word[0]
                               : within < 16 ? block.word[1]
                               : within < 24 ? block.word[2]
                                             : block.word[3];
    return core::dropout_half(word, within % 2);
  }
};

// Combines a number of all threads of a row, which is a warp or the whole block. Every thread gets
// the result.
template <int RowThreads, typename Combine>
__device__ __forceinline__ float reduce(float x, Combine&& combine) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = combine(x, __shfl_xor_sync(~0U, x, step));
  if constexpr (RowThreads > 32) {
    constexpr int kWarps = RowThreads / 32;
    using Parts = float[kWarps];
    Parts& parts = ptx::static_shared<Parts, struct PartsOfRow>();
    __syncthreads();  // all threads have read the parts of the reduction before
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    x = parts[0];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) x = combine(x, parts[w]);
  }
  return x;
}

// ---- how the passes are launched ----

struct PassArguments {
  core::Problem p;
  Matrices m;
  int rows;
  Step step;     // edit_scores
  void* matrix;  // dropout
};

inline PassArguments pass_arguments(const core::Problem& p, const Matrices& m) {
  return {p, m, static_cast<int>(p.batch * p.q_heads * p.q_length), Step::scale, nullptr};
}

// Calls f.template operator()<T>(), where T is the GPU's type for the tensors.
template <typename F>
void with_device_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::fp16: return f.template operator()<Half>();
    case DType::bf16: return f.template operator()<BFloat16>();
    default: return f.template operator()<float>();
  }
}

}  // namespace tessera::cuda::standard
