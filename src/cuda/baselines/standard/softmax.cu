// The softmax of cuda.standard. A row is read once, as long as it fits the registers of its
// threads, and written once, in the type of the tensors. The fused one takes the scores as Q K^T
// left them and applies dropout to what it writes.
#include "cuda/baselines/standard/row.cuh"
#include "cuda/common/host/launch.h"

namespace tessera::cuda::standard {

// The threads that share a row, and the octets that each keeps in registers. 0 octets: the row is
// longer and is read twice.
template <int Threads, int Octets>
struct RowShape {
  static constexpr int threads = Threads, octets = Octets, columns = Threads * Octets * kOctet;
  static constexpr int block = Threads > 128 ? Threads : 128;
};

namespace {

using ShortRows = RowShape<32, 2>;
using MediumRows = RowShape<128, 2>;
using LongRows = RowShape<512, 2>;
using AnyRows = RowShape<512, 0>;

template <typename T, bool Fused>
struct SoftmaxRow {
  const PassArguments& a;
  Row row;
  KeptBlocks blocks;
  const float* scores;
  T* probabilities;

  __device__ SoftmaxRow(const PassArguments& arguments, int index)
      : a(arguments),
        row(a.p, index),
        blocks(Fused && row.exists ? a.p.blocks : core::BlockView{}, row.head, row.i),
        scores(row.of(a.m.scores, a.m.row_stride)),
        probabilities(row.of(static_cast<T*>(a.m.probabilities), a.m.row_stride)) {}

  __device__ __forceinline__ void load(const Octet& octet, float (&x)[kOctet]) {
    octet.load(scores, x, core::kMinusInfinity<float>);
    float unused[kOctet];
    if constexpr (Fused) row.finish<T>(octet, x, unused, blocks);
  }

  // `x` holds the exponentials.
  __device__ __forceinline__ void store(const Octet& octet, float (&x)[kOctet], float normaliser) const {
    float factor[kOctet];
    if (Fused && a.p.dropout) row.dropout_factors(octet, factor);
#pragma unroll
    for (int e = 0; e < kOctet; ++e) {
      // A masked element stays 0, also beside a NaN.
      x[e] = x[e] == 0 ? 0 : x[e] * normaliser;
      if (Fused && a.p.dropout) x[e] = factor[e] == 0 ? 0 : x[e] * factor[e];
    }
    octet.store(probabilities, x);
  }
};

__device__ __forceinline__ float largest(const float (&x)[kOctet], float maximum) {
  // fmaxf ignores NaN, which reaches the sum.
#pragma unroll
  for (const float score : x) maximum = fmaxf(maximum, score);
  return maximum;
}

// Turns scores into exponentials and adds them to `sum`.
__device__ __forceinline__ float exponentiate(float (&x)[kOctet], float reference, float sum) {
#pragma unroll
  for (float& score : x) {
    score = exp_difference(score, reference);
    sum += score;
  }
  return sum;
}

// A row that sees no key takes 0: exp(-inf - -inf) is NaN.
__device__ __forceinline__ float finite_reference(float maximum) {
  return maximum == core::kMinusInfinity<float> ? 0 : maximum;
}

// With one block per multiprocessor as its bound the assembler takes as many registers as it needs;
// without, it spilled for sm_90.
template <typename T, typename Shape, bool Fused>
__global__ void __launch_bounds__(Shape::block, 1) softmax_kernel(const __grid_constant__ PassArguments a) {
  constexpr int kGroups = Shape::threads / 4;  // of 32 columns, taken by a row's threads at a time
  const int index =
      static_cast<int>(blockIdx.x * (Shape::block / Shape::threads) + threadIdx.x / Shape::threads);
  if (index >= a.rows) return;
  const int thread = static_cast<int>(threadIdx.x) % Shape::threads, columns = static_cast<int>(a.p.k_length);
  SoftmaxRow<T, Fused> row(a, index);
  auto octet = [&](int step) { return Octet(step * kGroups + thread / 4, thread, columns); };
  auto larger = [](float x, float y) { return fmaxf(x, y); };
  auto add = [](float x, float y) { return x + y; };

  float x[Shape::octets == 0 ? 1 : Shape::octets][kOctet];
  float maximum = core::kMinusInfinity<float>, sum = 0, reference = 0;
  const int steps = (columns + kGroups * core::kDropoutGroup - 1) / (kGroups * core::kDropoutGroup);
  if constexpr (Shape::octets > 0) {
#pragma unroll
    for (int step = 0; step < Shape::octets; ++step) {
      row.load(octet(step), x[step]);
      maximum = largest(x[step], maximum);
    }
    maximum = reduce<Shape::threads>(maximum, larger);
    reference = finite_reference(maximum);
#pragma unroll
    for (int step = 0; step < Shape::octets; ++step) sum = exponentiate(x[step], reference, sum);
  } else {
    for (int step = 0; step < steps; ++step) {
      row.load(octet(step), x[0]);
      const float before = maximum;
      maximum = largest(x[0], maximum);
      if (before != maximum)
        sum *= before == core::kMinusInfinity<float> ? 0 : exp_difference(before, maximum);
      sum = exponentiate(x[0], finite_reference(maximum), sum);
    }
    const float own = maximum;
    maximum = reduce<Shape::threads>(maximum, larger);
    reference = finite_reference(maximum);
    if (own != core::kMinusInfinity<float>) sum *= exp_difference(own, reference);
  }
  sum = reduce<Shape::threads>(sum, add);

  const core::RowStatistics<float> statistics{maximum, sum};
  const float normaliser = statistics.normaliser();
  if constexpr (Shape::octets > 0) {
#pragma unroll
    for (int step = 0; step < Shape::octets; ++step) {
      row.store(octet(step), x[step], normaliser);
    }
  } else {
    for (int step = 0; step < steps; ++step) {
      row.load(octet(step), x[0]);
      exponentiate(x[0], reference, 0);
      row.store(octet(step), x[0], normaliser);
    }
  }
  if (a.p.has_lse && row.row.exists && thread == 0) {
    *a.p.lse.row<float>(row.row.s.tensor_batch, row.row.head, row.row.s.q_begin + row.row.i) =
        statistics.lse();
  }
}

template <bool Fused>
void launch_softmax(const core::Problem& p, const Matrices& m, void* stream) {
  const PassArguments a = pass_arguments(p, m);
  with_device_type(p.dtype, [&]<typename T>() {
    auto run = [&]<typename Shape>(Shape) {
      constexpr int kPerBlock = Shape::block / Shape::threads;
      launch(softmax_kernel<T, Shape, Fused>,
             Fused ? "cuda.standard_fused: softmax" : "cuda.standard: softmax",
             (std::int64_t{a.rows} + kPerBlock - 1) / kPerBlock, Shape::block, 0, stream, a);
    };
    if (p.k_length <= ShortRows::columns) run(ShortRows{});
    else if (p.k_length <= MediumRows::columns) run(MediumRows{});
    else if (p.k_length <= LongRows::columns) run(LongRows{});
    else run(AnyRows{});
  });
}

}  // namespace

void softmax(const core::Problem& p, const Matrices& m, void* stream) { launch_softmax<false>(p, m, stream); }
void fused_softmax(const core::Problem& p, const Matrices& m, void* stream) {
  launch_softmax<true>(p, m, stream);
}

}  // namespace tessera::cuda::standard
