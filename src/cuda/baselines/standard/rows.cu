// The passes of cuda.standard over rows of the tensors. They take O(N d) time beside the O(N^2) of
// the matrices, except for the gradient of a bias. A thread block takes 64 rows of a head, a warp
// one row at a time.
#include "cuda/baselines/standard/row.cuh"
#include "cuda/common/host/launch.h"
#include "cuda/common/ptx/shared_memory.cuh"

namespace tessera::cuda::standard {
namespace {

constexpr int kThreads = 128, kWarp = 32, kWarps = kThreads / kWarp, kRows = 64;

__device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % kWarp; }

// Query heads per key/value head, by a division of 32 bits.
__device__ __forceinline__ int group_of(const core::Problem& p) {
  return static_cast<int>(static_cast<unsigned>(p.q_heads) / static_cast<unsigned>(p.kv_heads));
}

// The rows of this thread block: of head `head`, counted over all sequences, where every head has
// `length` rows.
struct RowBlock {
  int head, begin, end;

  __device__ explicit RowBlock(std::int64_t length) {
    const auto per_head = static_cast<unsigned>((length + kRows - 1) / kRows);
    head = static_cast<int>(blockIdx.x / per_head);
    begin = static_cast<int>(blockIdx.x % per_head) * kRows;
    end = min(begin + kRows, static_cast<int>(length));
  }

  // Calls visit(i) for the rows of this warp.
  template <typename Visit>
  __device__ __forceinline__ void for_each(Visit&& visit) const {
    for (int i = begin + static_cast<int>(threadIdx.x) / kWarp; i < end; i += kWarps) visit(i);
  }
};

std::int64_t blocks_for(std::int64_t heads, std::int64_t length) {
  return heads * ((length + kRows - 1) / kRows);
}

// ---- the gradient of the bias ----

// A thread block owns 32 columns of one row of the bias. Its warps divide the rows of dS to which
// this row was added.
template <typename T>
__global__ void __launch_bounds__(kThreads) bias_gradient_kernel(const __grid_constant__ PassArguments a) {
  const core::Problem& p = a.p;
  const int column_blocks = static_cast<int>((p.k_length + kWarp - 1) / kWarp);
  const int j = static_cast<int>(blockIdx.x) % column_blocks * kWarp + lane();
  const int owner = static_cast<int>(blockIdx.x) / column_blocks;
  const int bias_rows = static_cast<int>(p.bias_rows), bias_heads = static_cast<int>(p.bias_heads);
  const int bias_row = owner % bias_rows, bias_head = owner / bias_rows % bias_heads;
  const int bias_batch = owner / bias_rows / bias_heads, warp = static_cast<int>(threadIdx.x) / kWarp;
  float sum = 0;
  if (j < p.k_length) {
    for (std::int64_t b = bias_batch; b < p.batch; b += p.bias_batch) {
      for (std::int64_t h = bias_head; h < p.q_heads; h += p.bias_heads) {
        const T* head =
            static_cast<const T*>(a.m.gradients) + (b * p.q_heads + h) * p.q_length * a.m.row_stride + j;
        if (bias_rows > 1) {
          if ((b * p.q_heads + h) % kWarps == warp) sum += load(head + bias_row * a.m.row_stride);
        } else {
          for (std::int64_t i = warp; i < p.q_length; i += kWarps) sum += load(head + i * a.m.row_stride);
        }
      }
    }
  }
  using Parts = float[kWarps][kWarp];
  Parts& parts = ptx::static_shared<Parts, struct SumOfRows>();
  parts[warp][lane()] = sum;
  __syncthreads();
  if (warp != 0 || j >= p.k_length) return;
#pragma unroll
  for (int w = 1; w < kWarps; ++w) sum += parts[w][lane()];
  if (p.bias_dtype == DType::fp32) *(p.grad_bias.row<float>(bias_batch, bias_head, bias_row) + j) = sum;
  else store(p.grad_bias.row<T>(bias_batch, bias_head, bias_row) + j, sum);
}

// ---- dense copies of rows ----

struct RowsArguments {
  core::Problem p;
  core::View tensor;
  Side side;
  int heads, columns;
  std::int64_t length;  // of the longest sequence
  void* dense;
  std::int32_t* flags;

  // Calls visit(row, i) for row i of a sequence; `row` is null beyond its end.
  template <typename T, typename Visit>
  __device__ __forceinline__ void for_each_row(const RowBlock& block, Visit&& visit) const {
    const core::Sequence s = core::sequence(p, block.head / heads);
    const bool queries = side == Side::queries;
    T* first = tensor.row<T>(s.tensor_batch, block.head % heads, queries ? s.q_begin : s.k_begin);
    const std::int64_t own_length = queries ? s.q_length : s.k_length;
    block.for_each([&](int i) { visit(i < own_length ? first + i * tensor.row_stride : nullptr, i); });
  }
};

RowsArguments rows_arguments(const core::Problem& p, const core::View& tensor, Side side,
                             std::int64_t columns) {
  const bool queries = side == Side::queries;
  return {p,
          tensor,
          side,
          static_cast<int>(queries ? p.q_heads : p.kv_heads),
          static_cast<int>(columns),
          queries ? p.q_length : p.k_length,
          nullptr,
          nullptr};
}

template <typename T>
__global__ void __launch_bounds__(kThreads) gather_kernel(const __grid_constant__ RowsArguments a) {
  const RowBlock block(a.length);
  const int width = (a.columns + 7) / 8 * 8;
  T* dense = static_cast<T*>(a.dense) + block.head * a.length * width;
  a.for_each_row<const T>(block, [&](const T* source, int i) {
    T* target = dense + static_cast<std::int64_t>(i) * width;
    for (int c = lane(); c < width; c += kWarp) {
      store(target + c, source != nullptr && c < a.columns ? load(source + c) : 0);
    }
  });
}

template <typename T, typename From>
__global__ void __launch_bounds__(kThreads) scatter_kernel(const __grid_constant__ RowsArguments a) {
  const RowBlock block(a.length);
  const int width = (a.columns + 7) / 8 * 8;
  const From* dense = static_cast<const From*>(a.dense) + block.head * a.length * width;
  a.for_each_row<T>(block, [&](T* target, int i) {
    if (target == nullptr) return;
    const From* source = dense + static_cast<std::int64_t>(i) * width;
    for (int c = lane(); c < a.columns; c += kWarp)
      store(target + c, a.dense == nullptr ? 0 : load(source + c));
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads) non_finite_kernel(const __grid_constant__ RowsArguments a) {
  const RowBlock block(a.length);
  bool finite = true;
  a.for_each_row<const T>(block, [&](const T* row, int) {
    if (row == nullptr) return;
    for (int c = lane(); c < a.columns; c += kWarp) finite = finite && isfinite(load(row + c));
  });
  if (!finite) a.flags[block.head] = 1;  // all writers write the same
}

// ---- products without the zeros ----

struct RepairArguments {
  core::Problem p;
  Matrices m;
  Product product;
  const std::int32_t* flags;
};

// One row of a product: `target` = alpha * sum over k of factor[k * step] * row k of `operand`.
// Terms with a factor of 0 are skipped.
template <typename T>
struct SkippingSum {
  static constexpr int kMostColumns = 256 / kWarp;
  float sum[kMostColumns] = {};

  __device__ void add(const T* factor, std::int64_t step, std::int64_t count, const core::View& operand,
                      const T* first, int columns) {
#pragma unroll 1
    for (std::int64_t k = 0; k < count; ++k) {
      const float x = load(factor + k * step);
      if (x == 0) continue;
#pragma unroll
      for (int n = 0; n < kMostColumns; ++n) {
        const int c = n * kWarp + lane();
        if (c < columns) sum[n] += x * load(first + k * operand.row_stride + c);
      }
    }
  }

  __device__ void finish(T* target, float alpha, int columns) const {
#pragma unroll
    for (int n = 0; n < kMostColumns; ++n) {
      const int c = n * kWarp + lane();
      if (c < columns) store(target + c, alpha * sum[n]);
    }
  }
};

// O = P V or dQ = dS K, of a query head.
template <typename T>
__global__ void __launch_bounds__(kThreads) repair_query_rows(const __grid_constant__ RepairArguments a) {
  const core::Problem& p = a.p;
  const RowBlock block(p.q_length);
  const int sequence = block.head / static_cast<int>(p.q_heads),
            head = block.head % static_cast<int>(p.q_heads);
  const int kv_head = head / group_of(p);
  if (a.flags[sequence * p.kv_heads + kv_head] == 0) return;
  const core::Sequence s = core::sequence(p, sequence);
  const bool out = a.product == Product::out;
  const core::View& operand = out ? p.v : p.k;
  const int columns = static_cast<int>(out ? p.v_dim : p.qk_dim);
  const T* matrix = static_cast<const T*>(out ? a.m.probabilities : a.m.gradients);
  block.for_each([&](int i) {
    if (i >= s.q_length) return;
    SkippingSum<T> sum;
    sum.add(matrix + (block.head * p.q_length + i) * a.m.row_stride, 1, s.k_length, operand,
            operand.row<const T>(s.tensor_batch, kv_head, s.k_begin), columns);
    sum.finish((out ? p.out : p.grad_q).template row<T>(s.tensor_batch, head, s.q_begin + i),
               out ? 1 : static_cast<float>(p.scale), columns);
  });
}

// dK = dS^T Q or dV = P^T dO, of a key/value head.
template <typename T>
__global__ void __launch_bounds__(kThreads) repair_key_rows(const __grid_constant__ RepairArguments a) {
  const core::Problem& p = a.p;
  const RowBlock block(p.k_length);
  const int sequence = block.head / static_cast<int>(p.kv_heads);
  const int kv_head = block.head % static_cast<int>(p.kv_heads), group = group_of(p);
  const std::int64_t first_head = sequence * p.q_heads + kv_head * group;  // over all sequences
  bool flagged = false;
  for (int g = 0; g < group; ++g) flagged = flagged || a.flags[first_head + g] != 0;
  if (!flagged) return;
  const core::Sequence s = core::sequence(p, sequence);
  const bool values = a.product == Product::grad_v;
  const core::View& operand = values ? p.grad_out : p.q;
  const int columns = static_cast<int>(values ? p.v_dim : p.qk_dim);
  const T* matrix = static_cast<const T*>(values ? a.m.probabilities : a.m.gradients);
  block.for_each([&](int j) {
    if (j >= s.k_length) return;
    SkippingSum<T> sum;
    for (int g = 0; g < group; ++g) {
      sum.add(matrix + (first_head + g) * p.q_length * a.m.row_stride + j, a.m.row_stride, s.q_length,
              operand, operand.row<const T>(s.tensor_batch, kv_head * group + g, s.q_begin), columns);
    }
    sum.finish((values ? p.grad_v : p.grad_k).template row<T>(s.tensor_batch, kv_head, s.k_begin + j),
               values ? 1 : static_cast<float>(p.scale), columns);
  });
}

}  // namespace

void bias_gradient(const core::Problem& p, const Matrices& m, void* stream) {
  const std::int64_t blocks = (p.k_length + kWarp - 1) / kWarp * p.bias_batch * p.bias_heads * p.bias_rows;
  with_device_type(p.dtype, [&]<typename T>() {
    launch(bias_gradient_kernel<T>, "cuda.standard: bias gradient", blocks, kThreads, 0, stream,
           pass_arguments(p, m));
  });
}

void gather(const core::Problem& p, const core::View& from, Side side, std::int64_t columns, void* to,
            void* stream) {
  RowsArguments a = rows_arguments(p, from, side, columns);
  a.dense = to;
  with_device_type(p.dtype, [&]<typename T>() {
    launch(gather_kernel<T>, "cuda.standard: gather", blocks_for(p.batch * a.heads, a.length), kThreads, 0,
           stream, a);
  });
}

void scatter(const core::Problem& p, const void* from, DType type, Side side, std::int64_t columns,
             const core::View& to, void* stream) {
  RowsArguments a = rows_arguments(p, to, side, columns);
  a.dense = const_cast<void*>(from);
  with_device_type(p.dtype, [&]<typename T>() {
    launch(type == DType::fp32 ? scatter_kernel<T, float> : scatter_kernel<T, T>, "cuda.standard: scatter",
           blocks_for(p.batch * a.heads, a.length), kThreads, 0, stream, a);
  });
}

void find_non_finite(const core::Problem& p, const core::View& tensor, Side side, std::int64_t columns,
                     std::int32_t* flags, void* stream) {
  RowsArguments a = rows_arguments(p, tensor, side, columns);
  a.flags = flags;
  with_device_type(p.dtype, [&]<typename T>() {
    launch(non_finite_kernel<T>, "cuda.standard: non-finite operands",
           blocks_for(p.batch * a.heads, a.length), kThreads, 0, stream, a);
  });
}

void repair(const core::Problem& p, const Matrices& m, Product product, const std::int32_t* flags,
            void* stream) {
  const RepairArguments a{p, m, product, flags};
  const bool queries = product == Product::out || product == Product::grad_q;
  const std::int64_t blocks =
      queries ? blocks_for(p.batch * p.q_heads, p.q_length) : blocks_for(p.batch * p.kv_heads, p.k_length);
  with_device_type(p.dtype, [&]<typename T>() {
    launch(queries ? repair_query_rows<T> : repair_key_rows<T>, "cuda.standard: repair", blocks, kThreads, 0,
           stream, a);
  });
}

}  // namespace tessera::cuda::standard
