// First steps of the Hopper kernels on a GPU, from the smallest part to the whole, each
// checked exactly before the next: S = Q K^T by TMA and wgmma, O = P V, then the forward and
// the backward kernels with waits that give up instead of hanging. Prints a line per check;
// exit code 0: all passed, 1: one failed, 77: there is no GPU of compute capability 9.0.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "core/band.h"
#include "core/base/float16.h"
#include "core/philox.h"
#include "cuda/common/host/device.h"
#include "cuda/common/host/launch.h"
#include "cuda/common/host/tensor_map.h"
#include "cuda/common/tile/layout.h"
#include "cuda/sm90/backward/kernel.cuh"
#include "cuda/sm90/backward/launch.h"
#include "cuda/sm90/backward/table.h"
#include "cuda/sm90/forward/kernel.cuh"
#include "cuda/sm90/forward/launch.h"
#include "cuda/sm90/forward/table.h"

namespace tessera::cuda::hopper {

using namespace sm90;
using namespace sm90::forward;
using BackwardConfig = sm90::backward::Config;
using BackwardInstance = sm90::backward::Instance;
namespace {

using ptx::Half16;

int failures = 0;

// The report of a wait that gave up, in memory that the host reads also when the GPU is lost.
std::uint32_t* report() {
  static std::uint32_t* words = [] {
    std::uint32_t* memory = nullptr;
    check(cudaHostAlloc(&memory, 4 * sizeof(std::uint32_t), cudaHostAllocMapped), "cudaHostAlloc");
    for (int i = 0; i < 4; ++i) memory[i] = 0;
    return memory;
  }();
  return words;
}

// Waits for the GPU; ends the program when it failed, because nothing works after that. `waits`:
// the names of what the kernel may wait for.
void finish(const std::string& what, std::span<const char* const> waits = kWaitNames) {
  const cudaError_t status = cudaDeviceSynchronize();
  if (status == cudaSuccess) return;
  std::printf("FAILED %s: %s\n", what.c_str(), cudaGetErrorString(status));
  if (report()[0] != 0) {
    const char* const wait = report()[1] < waits.size() ? waits[report()[1]] : "something unknown";
    std::printf("  thread %u of block %u waited too long for %s\n", report()[3], report()[2], wait);
  }
  std::exit(1);
}

void verdict(const std::string& what, const std::string& problem) {
  std::printf("%s %s%s%s\n", problem.empty() ? "ok    " : "FAILED", what.c_str(), problem.empty() ? "" : ": ",
              problem.c_str());
  std::fflush(stdout);
  failures += !problem.empty();
}

template <typename T>
class Device {
 public:
  explicit Device(std::size_t count) : count_(count) {
    check(cudaMalloc(&data_, count * sizeof(T)), "cudaMalloc");
  }
  explicit Device(const std::vector<T>& host) : Device(host.size()) {
    check(cudaMemcpy(data_, host.data(), count_ * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  ~Device() { cudaFree(data_); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  T* data() const { return data_; }
  void fill(int byte) { check(cudaMemset(data_, byte, count_ * sizeof(T)), "cudaMemset"); }
  std::vector<T> host() const {
    std::vector<T> copy(count_);
    check(cudaMemcpy(copy.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return copy;
  }

 private:
  T* data_ = nullptr;
  std::size_t count_;
};

std::uint16_t bits(Half16 type, float x) {
  return type == Half16::bf16 ? core::to_bfloat16(x).bits : core::to_half(x).bits;
}
float number(Half16 type, std::uint16_t x) {
  return type == Half16::bf16 ? core::to_float(core::BFloat16{x}) : core::to_float(core::Half{x});
}

std::uint32_t hash(std::uint32_t x) {
  x ^= x >> 16, x *= 0x7FEB352DU, x ^= x >> 15, x *= 0x846CA68BU;
  return x ^ x >> 16;
}
// -4 to 4: sums of products are exact in fp32.
int small(std::uint32_t seed, int row, int column) {
  return static_cast<int>(hash(seed * 7919U + static_cast<std::uint32_t>(row * 1031 + column)) % 9) - 4;
}

// --- one product ---------------------------------------------------------------------------------

struct ProductArguments {
  CUtensorMap left, right;  // 64 x Depth and Width x Depth (scores), or Depth x Width (values; left unused)
  const std::uint16_t* p;   // values: 64 x Depth, row-major
  float* out;               // 64 x Width
  std::uint32_t* report;
};

constexpr int kPanel = panel_columns(ptx::element_bytes(Half16::bf16));  // of both types
constexpr int panels(int columns) { return (columns + kPanel - 1) / kPanel; }

// One warp group. Scores: left and right by TMA, contraction along their rows.
// Values: P from registers.
template <int Width, int Depth, Half16 Type, bool Scores>
__global__ void __launch_bounds__(kWarpGroup) product_kernel(const __grid_constant__ ProductArguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ std::uint64_t full;
  constexpr int kRightRows = Scores ? Width : Depth, kLeftPanels = Scores ? panels(Depth) : 0;
  constexpr int kRightPanels = panels(Scores ? Depth : Width), kLeftBytes = kLeftPanels * 64 * kRowBytes;
  unsigned char* const right = memory + kLeftBytes;
  if (threadIdx.x == 0) {
    ptx::init_barrier(&full, 1);
    ptx::publish_barriers();
    ptx::arrive_and_expect(&full, kLeftBytes + kRightPanels * kRightRows * kRowBytes);
    for (int panel = 0; panel < kLeftPanels; ++panel) {
      ptx::load_box(memory + panel * 64 * kRowBytes, a.left, &full, panel * kPanel, 0, 0, 0);
    }
    for (int panel = 0; panel < kRightPanels; ++panel) {
      ptx::load_box(right + panel * kRightRows * kRowBytes, a.right, &full, panel * kPanel, 0, 0, 0);
    }
  }
  __syncthreads();
  ptx::wait<true>(&full, 0, a.report, WaitFor::tile);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  float d[Width / 2] = {};
  std::uint32_t p[Scores ? 1 : Depth / 4];
  if constexpr (!Scores) {
    for (int i = 0; i < Depth / 4; ++i) {  // pairs, in the order of an accumulator
      const int row = warp * 16 + AccumulatorFragment::row(lane, i % 2 * 2);
      const int column = i / 2 * 8 + AccumulatorFragment::column(lane, 0);
      p[i] = a.p[row * Depth + column] | static_cast<std::uint32_t>(a.p[row * Depth + column + 1]) << 16;
    }
  }
  ptx::wgmma_fence();
  if constexpr (Scores) {
    const std::uint32_t q = descriptor_low(ptx::shared_address(memory), 0);
    const std::uint32_t k = descriptor_low(ptx::shared_address(right), 0);
#pragma unroll
    for (int i = 0; i < Depth / 16; ++i) {
      const std::uint64_t a = join_descriptor(q + (column_step(64, i) >> 4)),
                          b = join_descriptor(k + (column_step(Width, i) >> 4));
      if (i == 0) ptx::Wgmma<Width, Type>::shared_first(d, a, b);
      else ptx::Wgmma<Width, Type>::shared(d, a, b);
    }
  } else {
    const std::uint32_t v = descriptor_low(ptx::shared_address(right), Depth * kRowBytes);
#pragma unroll
    for (int i = 0; i < Depth / 16; ++i) {
      ptx::Wgmma<Width, Type>::registers(d, p + 4 * i, join_descriptor(v + (row_step(i) >> 4)));
    }
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::pin(d);
#pragma unroll
  for (int i = 0; i < Width / 2; ++i) {
    const int row = warp * 16 + AccumulatorFragment::row(lane, i % 4);
    a.out[row * Width + i / 4 * 8 + AccumulatorFragment::column(lane, i % 4)] = d[i];
  }
}

CUtensorMap map_of(std::uint16_t* data, int rows, int columns, int box_rows, Half16 type) {
  const core::View view{data, 0, 0, columns};
  return encode_tensor_map(tensor_map_spec(view, type == Half16::bf16 ? DType::bf16 : DType::fp16,
                                           {columns, rows, 1, 1}, box_rows));
}

template <int Width, int Depth, Half16 Type, bool Scores>
void check_product() {
  const int right_rows = Scores ? Width : Depth, right_columns = Scores ? Depth : Width;
  std::vector<std::uint16_t> left(64 * Depth), right(right_rows * right_columns);
  for (int r = 0; r < 64; ++r) {
    for (int c = 0; c < Depth; ++c) left[r * Depth + c] = bits(Type, static_cast<float>(small(1, r, c)));
  }
  for (int r = 0; r < right_rows; ++r) {
    for (int c = 0; c < right_columns; ++c)
      right[r * right_columns + c] = bits(Type, static_cast<float>(small(2, r, c)));
  }
  const Device<std::uint16_t> a(left), b(right);
  Device<float> out(64 * Width);
  out.fill(0xFF);
  const ProductArguments arguments{map_of(a.data(), 64, Depth, 64, Type),
                                   map_of(b.data(), right_rows, right_columns, right_rows, Type), a.data(),
                                   out.data(), report()};
  const int bytes = (64 * panels(Depth) + right_rows * panels(right_columns)) * kRowBytes;
  const std::string what = std::string(Scores ? "S = Q K^T" : "O = P V  ") +
                           (Type == Half16::bf16 ? " bf16 " : " fp16 ") + std::to_string(Width) +
                           " columns, contraction " + std::to_string(Depth);
  launch(product_kernel<Width, Depth, Type, Scores>, "product", 1, kWarpGroup,
         static_cast<std::size_t>(bytes), nullptr, arguments);
  finish(what);
  const std::vector<float> found = out.host();
  int wrong = 0;
  std::string first;
  for (int r = 0; r < 64; ++r) {
    for (int c = 0; c < Width; ++c) {
      int right_sum = 0;
      for (int k = 0; k < Depth; ++k)
        right_sum += small(1, r, k) * (Scores ? small(2, c, k) : small(2, k, c));
      const float got = found[r * Width + c];
      if (got == static_cast<float>(right_sum)) continue;
      if (wrong++ == 0) {
        first = "(" + std::to_string(r) + ", " + std::to_string(c) + ") is " + std::to_string(got) +
                ", not " + std::to_string(right_sum);
      }
    }
  }
  verdict(what, wrong == 0
                    ? ""
                    : std::to_string(wrong) + " of " + std::to_string(64 * Width) + " wrong, first " + first);
}

// --- the forward kernels -------------------------------------------------------------------------

struct Shape {
  const char* name;
  int batch, q_length, k_length, q_heads, kv_heads;
  std::int64_t left = core::kUnbounded, right = core::kUnbounded;
};

constexpr Shape kShapes[] = {
    {"one tile", 1, 64, 64, 1, 1},
    {"one row, one key", 1, 1, 1, 1, 1},
    {"two steps", 1, 128, 256, 1, 1},
    {"odd sizes", 2, 203, 517, 2, 1},
    {"many tiles", 3, 1100, 700, 20, 5},
    {"causal, one tile", 1, 64, 64, 1, 1, core::kUnbounded, 0},
    {"causal", 2, 515, 515, 3, 3, core::kUnbounded, 0},
    {"causal, more keys", 1, 300, 777, 4, 2, core::kUnbounded, 0},
    {"causal, fewer keys: empty rows", 1, 700, 333, 2, 2, core::kUnbounded, 0},
    {"causal, many tiles", 2, 1500, 1500, 16, 16, core::kUnbounded, 0},
    {"window", 1, 900, 900, 4, 2, 200, 17},
    {"narrow window", 1, 600, 600, 2, 2, 3, 0},
};

// Two kinds of input whose results are known exactly. Equal scores (Q = 0): the
// mean of the values that a row sees. Codes: K are distinct codes of +-1, each
// query has that of one key it sees and picks its value.
void check_forward(const Instance& instance, const Shape& shape, bool codes) {
  const Config& c = instance.config;
  const std::string what = "forward " + std::string(c.type == Half16::bf16 ? "bf16 " : "fp16 ") +
                           std::to_string(c.qk_dim) + "/" + std::to_string(c.v_dim) + " tile " +
                           std::to_string(c.block_q()) + "x" + std::to_string(c.block_k) + ", " + shape.name +
                           (codes ? ", codes" : ", equal scores");
  core::Problem p;
  p.dtype = c.type == Half16::bf16 ? DType::bf16 : DType::fp16;
  p.device = tessera::Device::cuda(0);
  p.batch = shape.batch, p.q_length = shape.q_length, p.k_length = shape.k_length;
  p.q_tokens = p.batch * p.q_length, p.k_tokens = p.batch * p.k_length;
  p.q_heads = shape.q_heads, p.kv_heads = shape.kv_heads;
  p.qk_dim = c.qk_dim, p.v_dim = c.v_dim;
  p.left = shape.left, p.right = shape.right;
  p.scale = codes ? 8 : 1;
  const int group = shape.q_heads / shape.kv_heads, diagonal = shape.k_length - shape.q_length;
  auto first = [&](int i) {
    return shape.left < 0 ? 0 : std::max<int>(0, i + diagonal - static_cast<int>(shape.left));
  };
  auto last = [&](int i) {
    const int end = shape.right < 0 ? shape.k_length - 1 : i + diagonal + static_cast<int>(shape.right);
    return std::min(end, shape.k_length - 1);
  };
  auto chosen = [&](int b, int h, int i) {  // the key whose code query i has
    const int count = last(i) - first(i) + 1;
    return first(i) + static_cast<int>(hash(static_cast<std::uint32_t>((b * 64 + h) * 100003 + i)) %
                                       static_cast<unsigned>(std::max(count, 1)));
  };
  auto code = [&](int b, int h, int key, int d) {
    return hash(static_cast<std::uint32_t>(((b * 64 + h) * 4096 + key) * 512 + d)) & 1 ? 1.0F : -1.0F;
  };
  auto value = [&](int b, int h, int key, int d) {
    return small(static_cast<std::uint32_t>(3 + b * 64 + h), key, d);
  };

  std::vector<std::uint16_t> q(static_cast<std::size_t>(p.q_tokens * p.q_heads * p.qk_dim)),
      k(static_cast<std::size_t>(p.k_tokens * p.kv_heads * p.qk_dim)),
      v(static_cast<std::size_t>(p.k_tokens * p.kv_heads * p.v_dim));
  for (int b = 0; b < shape.batch; ++b) {
    for (int h = 0; h < shape.q_heads; ++h) {
      for (int i = 0; i < shape.q_length; ++i) {
        for (int d = 0; d < c.qk_dim; ++d) {
          q[static_cast<std::size_t>(((b * shape.q_length + i) * shape.q_heads + h) * c.qk_dim + d)] =
              bits(c.type, codes ? code(b, h / group, chosen(b, h, i), d) : 0.0F);
        }
      }
    }
    for (int h = 0; h < shape.kv_heads; ++h) {
      for (int j = 0; j < shape.k_length; ++j) {
        const int row = (b * shape.k_length + j) * shape.kv_heads + h;
        for (int d = 0; d < c.qk_dim; ++d)
          k[static_cast<std::size_t>(row * c.qk_dim + d)] = bits(c.type, code(b, h, j, d));
        for (int d = 0; d < c.v_dim; ++d) {
          v[static_cast<std::size_t>(row * c.v_dim + d)] =
              bits(c.type, static_cast<float>(value(b, h, j, d)));
        }
      }
    }
  }
  const Device<std::uint16_t> q_memory(q), k_memory(k), v_memory(v);
  Device<std::uint16_t> out(static_cast<std::size_t>(p.q_tokens * p.q_heads * p.v_dim));
  Device<float> lse(static_cast<std::size_t>(p.q_tokens * p.q_heads));
  out.fill(0xFF), lse.fill(0xFF);
  auto view = [&](void* data, std::int64_t length, std::int64_t heads, std::int64_t dim) {
    return core::View{data, length * heads * dim, dim, heads * dim};
  };
  p.q = view(q_memory.data(), p.q_length, p.q_heads, p.qk_dim);
  p.k = view(k_memory.data(), p.k_length, p.kv_heads, p.qk_dim);
  p.v = view(v_memory.data(), p.k_length, p.kv_heads, p.v_dim);
  p.out = view(out.data(), p.q_length, p.q_heads, p.v_dim);
  p.lse = {lse.data(), p.q_heads * p.q_length, p.q_length, 1};
  p.has_lse = true;
  const auto decision = sm90::forward::decide(instance, p, device_limits(0).multiprocessors);
  Device<std::byte> workspace(decision.workspace_bytes() + 256);
  workspace.fill(0x5A);
  sm90::forward::enqueue(decision, p, workspace.data(), nullptr, report());
  finish(what);

  const std::vector<std::uint16_t> found = out.host();
  const std::vector<float> logs = lse.host();
  long wrong = 0;
  std::string example;
  auto complain = [&](const char* where, int b, int h, int i, int d, double got, double expected) {
    if (wrong++ > 0) return;
    example = std::string(where) + " at batch " + std::to_string(b) + ", head " + std::to_string(h) +
              ", row " + std::to_string(i) + ", column " + std::to_string(d) + " is " + std::to_string(got) +
              ", not " + std::to_string(expected);
  };
  for (int b = 0; b < shape.batch; ++b) {
    for (int h = 0; h < shape.q_heads; ++h) {
      std::vector<double> sums(static_cast<std::size_t>(c.v_dim), 0);
      int low = 0, high = -1;  // keys in the sums: rows move on, so do they
      for (int i = 0; i < shape.q_length; ++i) {
        const int count = std::max(0, last(i) - first(i) + 1);
        for (; high < last(i); ++high) {
          for (int d = 0; d < c.v_dim; ++d)
            sums[static_cast<std::size_t>(d)] += value(b, h / group, high + 1, d);
        }
        for (; low < first(i) && low <= high; ++low) {
          for (int d = 0; d < c.v_dim; ++d) sums[static_cast<std::size_t>(d)] -= value(b, h / group, low, d);
        }
        for (int d = 0; d < c.v_dim; ++d) {
          const double mean = count == 0 ? 0 : sums[static_cast<std::size_t>(d)] / count;
          const double expected = count == 0 ? 0 : codes ? value(b, h / group, chosen(b, h, i), d) : mean;
          const float got = number(
              c.type,
              found[static_cast<std::size_t>(((b * shape.q_length + i) * shape.q_heads + h) * c.v_dim + d)]);
          const double step =
              codes || count <= 1 ? 0 : std::fabs(expected) * (c.type == Half16::bf16 ? 0x1p-8 : 0x1p-11);
          if (!(std::fabs(got - expected) <= step)) complain("out", b, h, i, d, got, expected);
        }
        const double log = count == 0 ? -INFINITY : codes ? 8.0 * c.qk_dim : std::log(count);
        const float got = logs[static_cast<std::size_t>((b * shape.q_heads + h) * shape.q_length + i)];
        if (!(got == log || std::fabs(got - log) <= 1e-6 * std::fabs(log) + 1e-6))
          complain("lse", b, h, i, 0, got, log);
      }
    }
  }
  verdict(what, wrong == 0 ? "" : std::to_string(wrong) + " wrong, first " + example);
}

// --- the backward kernels ------------------------------------------------------------------------

constexpr Shape kBackwardShapes[] = {
    {"one step", 1, 64, 64, 1, 1},
    {"one row, one key", 1, 1, 1, 1, 1},
    {"one row", 1, 1, 200, 2, 1},
    {"one key", 1, 200, 1, 2, 1},
    {"two steps", 1, 256, 128, 1, 1},
    {"two tiles", 1, 128, 256, 1, 1},
    {"odd sizes", 2, 203, 317, 2, 2},
    {"GQA", 2, 130, 150, 6, 2},
    {"causal", 2, 215, 215, 2, 2, core::kUnbounded, 0},
    {"causal, more keys, GQA", 1, 100, 277, 4, 1, core::kUnbounded, 0},
    {"causal, fewer keys: empty rows", 1, 300, 133, 2, 2, core::kUnbounded, 0},
    {"window", 1, 400, 400, 2, 1, 70, 17},
    {"window: keys that nobody sees", 1, 40, 500, 1, 1, 3, 0},
    {"many tiles", 3, 140, 270, 48, 24},
};

// A tensor of a call, (batch, length, heads, dim): what the kernel reads and, the
// same numbers, what the loops below read.
struct Numbers {
  int length, heads, dim;
  std::vector<double> values;

  Numbers(const Shape& shape, int rows, int head_count, int columns)
      : length(rows),
        heads(head_count),
        dim(columns),
        values(static_cast<std::size_t>(shape.batch * rows * head_count * columns)) {}
  double* row(int b, int i, int h) {
    return values.data() + static_cast<std::size_t>(((b * length + i) * heads + h) * dim);
  }
  void randomise(std::uint32_t seed, Half16 type) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::uint32_t x = hash(hash(seed) + static_cast<std::uint32_t>(i));
      values[i] = number(type, bits(type, static_cast<float>(x % 4001) / 1000.0F - 2.0F));
    }
  }
  std::vector<std::uint16_t> stored(Half16 type) const {
    std::vector<std::uint16_t> result;
    for (const double x : values) result.push_back(bits(type, static_cast<float>(x)));
    return result;
  }
  core::View view(void* data) const {
    return {data, static_cast<std::int64_t>(length) * heads * dim, dim, heads * dim};
  }
};

// Everything of a backward by its definition, in fp64.
struct Definition {
  Numbers q, k, v, grad_out, out, lse, grad_q, grad_k, grad_v;

  Definition(const Shape& s, int dim)
      : q(s, s.q_length, s.q_heads, dim),
        k(s, s.k_length, s.kv_heads, dim),
        v(k),
        grad_out(q),
        out(q),
        lse(s, s.q_heads, s.q_length, 1),  // (batch, heads, length)
        grad_q(q),
        grad_k(k),
        grad_v(k) {}

  void compute(const Shape& s, const core::Problem& p, Half16 type) {
    const core::Band band{s.left, s.right, s.k_length - s.q_length};
    const double kept_scale = p.dropout ? p.keep_scale : 1;
    std::vector<double> probability(static_cast<std::size_t>(s.k_length)), factor(probability),
        grad_p(probability);
    for (int b = 0; b < s.batch; ++b) {
      for (int h = 0; h < s.q_heads; ++h) {
        const int kv = h / (s.q_heads / s.kv_heads);
        const core::DropoutStream stream = core::dropout_stream(p, b, h);
        for (int i = 0; i < s.q_length; ++i) {
          auto dot = [&](const double* x, const double* y) {
            double sum = 0;
            for (int d = 0; d < q.dim; ++d) sum += x[d] * y[d];
            return sum;
          };
          double sum = 0, delta = 0;  // scores are small: no maximum
          for (int j = 0; j < s.k_length; ++j) {
            const auto at = static_cast<std::size_t>(j);
            const bool kept = !p.dropout || core::dropout_bits(stream, i, j) >= p.dropout_threshold;
            probability[at] =
                band.visible(i, j) ? std::exp(p.scale * dot(q.row(b, i, h), k.row(b, j, kv))) : 0;
            factor[at] = kept ? kept_scale : 0;
            sum += probability[at];
          }
          *lse.row(b, h, i) = std::log(sum);
          for (int j = 0; j < s.k_length; ++j) {
            const auto at = static_cast<std::size_t>(j);
            if (probability[at] == 0) continue;
            probability[at] /= sum;
            grad_p[at] = factor[at] * dot(grad_out.row(b, i, h), v.row(b, j, kv));
            for (int d = 0; d < q.dim; ++d) {
              out.row(b, i, h)[d] += probability[at] * factor[at] * v.row(b, j, kv)[d];
              grad_v.row(b, j, kv)[d] += probability[at] * factor[at] * grad_out.row(b, i, h)[d];
            }
          }
          // As the kernel is given it: where dropout scales one value, nothing else
          // is left of the scores' gradient.
          for (int d = 0; d < q.dim; ++d) {
            const double rounded = number(type, bits(type, static_cast<float>(out.row(b, i, h)[d])));
            delta += grad_out.row(b, i, h)[d] * rounded;
          }
          for (int j = 0; j < s.k_length; ++j) {
            const auto at = static_cast<std::size_t>(j);
            if (probability[at] == 0) continue;
            const double grad_score = p.scale * probability[at] * (grad_p[at] - delta);
            for (int d = 0; d < q.dim; ++d) {
              grad_q.row(b, i, h)[d] += grad_score * k.row(b, j, kv)[d];
              grad_k.row(b, j, kv)[d] += grad_score * q.row(b, i, h)[d];
            }
          }
        }
      }
    }
  }
};

// The first element that is further from the definition than the type's rounding of
// P and dS explains; empty: none.
std::string far_off(const char* name, const Device<std::uint16_t>& found, const Numbers& exact, Half16 type) {
  const std::vector<std::uint16_t> stored = found.host();
  double largest = 0;
  for (const double x : exact.values) largest = std::fmax(largest, std::fabs(x));
  const double allowed = (type == Half16::bf16 ? 0x1p-6 : 0x1p-9) * std::fmax(largest, 0x1p-4);
  for (std::size_t i = 0; i < stored.size(); ++i) {
    const double got = number(type, stored[i]);
    if (std::fabs(got - exact.values[i]) <= allowed) continue;
    const auto row = static_cast<int>(i) / exact.dim;
    return std::string(name) + " at batch " + std::to_string(row / exact.heads / exact.length) + ", head " +
           std::to_string(row % exact.heads) + ", row " + std::to_string(row / exact.heads % exact.length) +
           ", column " + std::to_string(static_cast<int>(i) % exact.dim) + " is " + std::to_string(got) +
           ", not " + std::to_string(exact.values[i]) + "; ";
  }
  return {};
}

void check_backward(const BackwardInstance& instance, const Shape& shape) {
  const BackwardConfig& c = instance.config;
  const std::string what = "backward " + std::string(c.type == Half16::bf16 ? "bf16 " : "fp16 ") +
                           std::to_string(c.head_dim) + (c.dropout ? " with dropout, " : ", ") + shape.name;
  core::Problem p;
  p.direction = Direction::backward;
  p.dtype = c.type == Half16::bf16 ? DType::bf16 : DType::fp16;
  p.device = tessera::Device::cuda(0);
  p.batch = shape.batch, p.q_length = shape.q_length, p.k_length = shape.k_length;
  p.q_tokens = p.batch * p.q_length, p.k_tokens = p.batch * p.k_length;
  p.q_heads = shape.q_heads, p.kv_heads = shape.kv_heads;
  p.qk_dim = p.v_dim = c.head_dim;
  p.left = shape.left, p.right = shape.right;
  p.scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
  p.dropout = c.dropout, p.dropout_threshold = c.dropout ? core::dropout_threshold(0.25) : 0;
  p.keep_scale = c.dropout ? 1 / 0.75 : 1, p.seed = 11;
  Definition exact(shape, c.head_dim);
  std::uint32_t seed = 0;
  for (Numbers* input : {&exact.q, &exact.k, &exact.v, &exact.grad_out}) input->randomise(++seed, c.type);
  exact.compute(shape, p, c.type);

  const Device<std::uint16_t> q(exact.q.stored(c.type)), k(exact.k.stored(c.type)), v(exact.v.stored(c.type)),
      grad_out(exact.grad_out.stored(c.type)), out(exact.out.stored(c.type));
  const Device<float> lse(std::vector<float>(exact.lse.values.begin(), exact.lse.values.end()));
  Device<std::uint16_t> grad_q(exact.q.values.size()), grad_k(exact.k.values.size()),
      grad_v(exact.v.values.size());
  p.q = exact.q.view(q.data()), p.k = exact.k.view(k.data()), p.v = exact.v.view(v.data());
  p.out = exact.out.view(out.data()), p.grad_out = exact.grad_out.view(grad_out.data());
  p.lse = {lse.data(), p.q_heads * p.q_length, p.q_length, 1};
  p.grad_q = exact.q.view(grad_q.data()), p.grad_k = exact.k.view(grad_k.data());
  p.grad_v = exact.v.view(grad_v.data());
  p.has_lse = p.has_grad_q = p.has_grad_k = p.has_grad_v = true;
  const auto decision = sm90::backward::decide(instance, p);
  Device<std::byte> workspace(decision.workspace_bytes);
  workspace.fill(0xFF), grad_q.fill(0xFF), grad_k.fill(0xFF), grad_v.fill(0xFF);
  sm90::backward::enqueue(decision, p, workspace.data(), nullptr, report());
  finish(what, sm90::backward::kWaitNames);
  verdict(what, far_off("grad_q", grad_q, exact.grad_q, c.type) +
                    far_off("grad_k", grad_k, exact.grad_k, c.type) +
                    far_off("grad_v", grad_v, exact.grad_v, c.type));
}

template <Half16 Type>
void check_type() {
  check_product<64, 64, Type, true>();
  check_product<96, 64, Type, true>();
  check_product<128, 96, Type, true>();
  check_product<128, 128, Type, true>();
  check_product<96, 192, Type, true>();
  check_product<64, 256, Type, true>();
  check_product<64, 64, Type, false>();
  check_product<64, 96, Type, false>();
  check_product<96, 128, Type, false>();
  check_product<128, 96, Type, false>();
  check_product<128, 128, Type, false>();
  check_product<256, 64, Type, false>();
  static constexpr auto kInstances = instances<kConfigs<Type, true>>(sm90::forward::kInstanceOf);
  for (const Instance& instance : kInstances) {
    for (const Shape& shape : kShapes) {
      for (const bool codes : {false, true}) check_forward(instance, shape, codes);
    }
  }
  static constexpr auto kBackwardInstances =
      instances<sm90::backward::kConfigs<Type, true>>(sm90::backward::kInstanceOf);
  for (const BackwardInstance& instance : kBackwardInstances) {
    for (const Shape& shape : kBackwardShapes) check_backward(instance, shape);
  }
}

}  // namespace
}  // namespace tessera::cuda::hopper

int main() {
  const tessera::cuda::DeviceLimits& limits = tessera::cuda::device_limits(0);
  if (!limits.failure.empty() || limits.capability != 90) {
    std::printf("SKIP: %s\n",
                limits.failure.empty() ? "the GPU is not of compute capability 9.0" : limits.failure.c_str());
    return 77;
  }
  tessera::cuda::hopper::check_type<tessera::cuda::ptx::Half16::bf16>();
  tessera::cuda::hopper::check_type<tessera::cuda::ptx::Half16::fp16>();
  std::printf("%d failed\n", tessera::cuda::hopper::failures);
  return tessera::cuda::hopper::failures == 0 ? 0 : 1;
}
