// fp32 attention on GPUs: the tile sizes and arguments of its kernels. For host and device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/problem.h"
#include "core/task_order.h"
#include "cuda/common/host/images.h"

namespace tessera::cuda::fp32 {

// How two fp32 matrices are multiplied.
enum class Multiply : int {
  halves,  // on the tensor cores, three fp16 products for one fp32 product: sm_80 and newer
  fma,     // by fp32 multiply-adds: sm_75
};

// Which score options an instance has.
enum class Variant : int {
  plain,
  featured,  // bias, ALiBi, softcap, dropout and rows on any boundary
};

// A row of a tile that is split into halves has a factor (row_power.h).
constexpr int factors_per_row(Multiply multiply) { return multiply == Multiply::halves ? 1 : 0; }

// The head_dims that are compiled. A problem takes the smallest that holds its qk_dim and v_dim.
inline constexpr int kHeadDims[] = {64, 128, 256};
inline constexpr int kHeadDimCount = 3;

// A warp works on 16 * m_tiles rows of queries; a thread block copies block_k keys and values per
// step.
struct ForwardConfig {
  Multiply multiply;
  int head_dim;
  int m_tiles;
  int warps;
  int block_k;
  int thread_blocks;
  Variant variant;

  bool operator==(const ForwardConfig&) const = default;
  constexpr bool featured() const { return variant == Variant::featured; }
  constexpr int block_q() const { return 16 * m_tiles * warps; }
  constexpr int threads() const { return 32 * warps; }
  constexpr bool async() const { return multiply == Multiply::halves; }
  // Q, K and V, then the factors of their rows if they are split.
  constexpr int rows() const { return block_q() + 2 * block_k; }
  constexpr std::size_t shared_memory() const {
    return static_cast<std::size_t>(rows() * (head_dim + factors_per_row(multiply)) * 4);
  }
};

// Every thread block splits the keys and values that it reads into halves. The more queries it has,
// the fewer thread blocks repeat that work. `large`: more queries a tile and more shared memory
// (head_dim 128: 162 KiB, 256: 193 KiB), for plain problems on the tensor cores.
constexpr ForwardConfig forward_config(Multiply multiply, int head_dim, Variant variant, bool large = false) {
  if (multiply == Multiply::halves) {
    if (large) {
      if (head_dim == 64) return {multiply, 64, 2, 8, 64, 1, variant};
      if (head_dim == 128) return {multiply, 128, 2, 8, 32, 1, variant};
      return {multiply, 256, 1, 8, 32, 1, variant};
    }
    if (head_dim == 64) return {multiply, 64, 2, 4, variant == Variant::featured ? 16 : 32, 2, variant};
    if (head_dim == 128) return {multiply, 128, 1, 8, 32, 1, variant};
    return {multiply, 256, 1, 4, 16, 2, variant};
  }
  if (head_dim == 64) return {multiply, 64, 2, 4, 32, 1, variant};
  if (head_dim == 128) return {multiply, 128, 1, 4, 32, 1, variant};
  return {multiply, 256, 1, 2, 16, 1, variant};
}

// Numbers that the kernels would otherwise have to convert from double precision or to derive.
struct Constants {
  float scale;
  float softcap;  // 0: off
  float inverse_softcap;
  float keep_scale;  // of dropout
  bool aligned;      // all rows begin on 16-byte boundaries

  static Constants of(const core::Problem& p, bool aligned) {
    return {static_cast<float>(p.scale), static_cast<float>(p.softcap),
            static_cast<float>(p.softcap > 0 ? 1 / p.softcap : 0), static_cast<float>(p.keep_scale), aligned};
  }
};

struct ForwardArguments {
  core::Problem problem;
  Constants constants;
  core::BasicTaskOrder<std::uint32_t> order;
};

// A backward thread block owns rows of one kind, while it streams the rows of the other kind
// through shared memory step by step.
enum class Owner : int { keys, queries };

// The gradients of keys and of values take one pass if both fit into registers, otherwise a pass
// each.
struct PassConfig {
  Multiply multiply;
  Owner owner;
  bool score_gradient;  // dK (owner keys) or dQ (owner queries)
  bool value_gradient;  // dV (owner keys)
  int head_dim;
  int warps;   // of 16 rows each
  int block;   // streamed rows of a step
  int stages;  // steps in shared memory
  int thread_blocks;
  Variant variant;

  bool operator==(const PassConfig&) const = default;
  constexpr bool featured() const { return variant == Variant::featured; }
  constexpr int rows() const { return 16 * warps; }
  constexpr int threads() const { return 32 * warps; }
  constexpr bool async() const { return multiply == Multiply::halves; }
  // Of the owned rows: K and V, or Q and dO. The gradient of values alone does not need V.
  constexpr int owned_tiles() const { return score_gradient ? 2 : 1; }
  constexpr int stage_bytes() const { return 2 * block * head_dim * 4; }
  // Of the streamed rows of a step: LSE, delta, and two factors.
  constexpr int statistics_bytes() const { return (2 + 2 * factors_per_row(multiply)) * block * 4; }
  constexpr std::size_t shared_memory() const {
    return static_cast<std::size_t>(owned_tiles() * rows() * (head_dim + factors_per_row(multiply)) * 4 +
                                    stages * (stage_bytes() + statistics_bytes()));
  }
};

enum class Gradient : int { keys_and_values, keys, values, queries };

// Whether one pass computes the gradients of keys and of values.
constexpr bool together(int head_dim, Variant variant) {
  return head_dim == 64 || (head_dim == 128 && variant == Variant::plain);
}

constexpr PassConfig pass_config(Multiply multiply, Gradient gradient, int head_dim, Variant variant) {
  PassConfig c{};
  c.multiply = multiply;
  c.owner = gradient == Gradient::queries ? Owner::queries : Owner::keys;
  c.score_gradient = gradient != Gradient::values;
  c.value_gradient = gradient == Gradient::keys_and_values || gradient == Gradient::values;
  c.head_dim = head_dim;
  c.variant = variant;
  if (multiply == Multiply::halves) {
    c.warps = head_dim == 64 && variant == Variant::plain ? 8 : head_dim == 256 && c.score_gradient ? 2 : 4;
    c.block = head_dim == 64 && variant == Variant::plain ? 32 : 16;
    c.stages = head_dim == 256 ? 1 : 2;
    c.thread_blocks = c.warps == 8 ? 1 : 2;
  } else {
    c.warps = head_dim == 64 ? 4 : head_dim == 128 ? 2 : 1;
    c.block = head_dim == 64 ? 32 : head_dim == 128 ? 16 : 8;
    c.stages = 1;
    c.thread_blocks = 1;
  }
  return c;
}

// Computes all three gradients in one pass, for plain problems that need not be deterministic. A
// thread block owns 16 * groups keys. The `parts` warps of a group divide the queries of a step for
// the scores, and the columns for the gradients.
struct FusedConfig {
  int head_dim;
  int groups;
  int parts;

  static constexpr int kBlock = 32;  // queries per step
  bool operator==(const FusedConfig&) const = default;
  constexpr int rows() const { return 16 * groups; }
  constexpr int warps() const { return groups * parts; }
  constexpr int threads() const { return 32 * warps(); }
  // K and V, Q and dO, and what warps exchange: dS for dQ, and, if they share keys, P and dS for
  // the gradients of the keys.
  constexpr int exchanges() const { return parts == 1 ? 1 : 3; }
  constexpr int tile_bytes() const {
    return 2 * (rows() + kBlock) * head_dim * 4 + exchanges() * rows() * kBlock * 4;
  }
  // The factors of all these tiles, and LSE and delta.
  constexpr int small_bytes() const {
    return (2 * (rows() + kBlock) + groups * kBlock + (exchanges() - 1) * parts * rows() + 2 * kBlock) * 4;
  }
  constexpr std::size_t shared_memory() const {
    return static_cast<std::size_t>(tile_bytes() + small_bytes());
  }
};

constexpr FusedConfig fused_config(int head_dim) {
  return head_dim == 64    ? FusedConfig{64, 8, 1}
         : head_dim == 128 ? FusedConfig{128, 8, 1}
                           : FusedConfig{256, 4, 2};
}

struct BackwardArguments {
  core::Problem problem;
  Constants constants;
  core::BasicTaskOrder<std::uint32_t> order;
  const float* delta;  // <dO, O> - dLSE of every query row: [batch][q_heads][rows]
};

// delta of every query row, one warp each.
struct DeltaArguments {
  core::Problem problem;
  float* delta;
  bool clear_grad_q;  // for a pass that adds to it
};
inline constexpr int kDeltaThreads = 256;

// A thread block owns a tile of the gradient of a bias and sums everything that was broadcast from
// it.
struct BiasGradientConfig {
  Multiply multiply;
  int head_dim;
  int warps;  // of 16 queries each
  int block_k;

  bool operator==(const BiasGradientConfig&) const = default;
  constexpr int block_q() const { return 16 * warps; }
  constexpr int threads() const { return 32 * warps; }
  constexpr bool async() const { return multiply == Multiply::halves; }
  constexpr std::size_t shared_memory() const {
    return static_cast<std::size_t>(2 * (block_q() + block_k) * (head_dim + factors_per_row(multiply)) * 4 +
                                    warps * block_k * 4);
  }
};

constexpr BiasGradientConfig bias_gradient_config(Multiply multiply, int head_dim) {
  if (multiply == Multiply::halves) {
    if (head_dim == 64) return {multiply, 64, 4, 16};
    if (head_dim == 128) return {multiply, 128, 4, 16};
    return {multiply, 256, 2, 16};
  }
  if (head_dim == 64) return {multiply, 64, 4, 16};
  if (head_dim == 128) return {multiply, 128, 2, 16};
  return {multiply, 256, 1, 8};
}

struct BiasGradientArguments {
  core::Problem problem;
  Constants constants;
  const float* delta;
};

// The offset of delta of row 0 of a head of a sequence.
TESSERA_HD constexpr std::int64_t delta_offset(const core::Problem& p, const core::Sequence& s,
                                               std::int64_t head) {
  return p.packed ? head * p.q_tokens + s.q_begin : (s.index * p.q_heads + head) * p.q_length;
}

// A kernel and the config that it is compiled for.
template <typename Config, typename Arguments>
struct InstanceOf {
  Config config;
  void (*kernel)(Arguments);
};
using ForwardInstance = InstanceOf<ForwardConfig, ForwardArguments>;
using BackwardInstance = InstanceOf<PassConfig, BackwardArguments>;
using FusedInstance = InstanceOf<FusedConfig, BackwardArguments>;
using BiasGradientInstance = InstanceOf<BiasGradientConfig, BiasGradientArguments>;

// The kernel among `instances` that is compiled for `config`; null: none.
template <typename Config, typename Arguments>
auto kernel_for(std::span<const InstanceOf<Config, Arguments>> instances, const Config& config)
    -> void (*)(Arguments) {
  for (const auto& instance : instances) {
    if (instance.config == config) return instance.kernel;
  }
  return nullptr;
}

// The instances of one way to multiply. Each is compiled for the GPUs that can run it: halves from
// 8.0 on, fma for 7.5.
struct Kernels {
  std::span<const ForwardInstance> (*forward)();
  std::span<const BackwardInstance> (*backward)();
  std::span<const BiasGradientInstance> (*bias_gradient)();
};

std::span<const ForwardInstance> halves_forward();
std::span<const BackwardInstance> halves_backward();
std::span<const FusedInstance> halves_fused_backward();
std::span<const BiasGradientInstance> halves_bias_gradient();
std::span<const ForwardInstance> fma_forward();
std::span<const BackwardInstance> fma_backward();
std::span<const BiasGradientInstance> fma_bias_gradient();
void (*delta_kernel())(DeltaArguments);

}  // namespace tessera::cuda::fp32
