// Which kernels of cuda.flash1 are compiled: the tiles of an engine at a head_dim. Each .cu file
// compiles those of one engine.
#pragma once

#include <array>

#include "cuda/baselines/flash1/bias_kernel.cuh"
#include "cuda/baselines/flash1/forward_kernel.cuh"
#include "cuda/common/instances.h"

namespace tessera::cuda::flash1 {

constexpr bool on_sm80(Engine engine) { return engine == Engine::sm80_fp16 || engine == Engine::sm80_bf16; }

// Queries and keys of a tile in both backward kernels. 0: none, because shared memory is too small.
constexpr int backward_block(Engine engine, int dim) {
  if (engine == Engine::fp32) return 32;
  if (engine == Engine::sm75_fp16) return dim == 64 ? 64 : dim == 128 ? 32 : 0;
  return dim == 256 ? 32 : 64;
}

constexpr int forward_warps(Engine engine, int dim) {
  if (engine == Engine::fp32) return dim == 256 ? 8 : 4;
  if (engine == Engine::sm75_fp16) return dim == 64 ? 8 : 4;
  return 8;
}

template <Engine E, int D, Variant V>
constexpr Instance forward_of() {
  return forward_instance<ForwardConfig{.engine = E,
                                        .variant = V,
                                        .head_dim = D,
                                        .warps = forward_warps(E, D),
                                        .splits = D == 256 ? 2 : 1,
                                        .step_k = E != Engine::fp32 && D == 64 ? 64 : 32,
                                        .stages = on_sm80(E) ? 2 : 1}>();
}

template <Engine E, int D, Variant V>
constexpr BackwardConfig backward_config(int stages) {
  return {.engine = E,
          .variant = V,
          .head_dim = D,
          .block = backward_block(E, D),
          .splits = D == 256 ? 4 : 2,
          .stages = stages};
}

template <Engine E, int D, Variant V>
constexpr Instance backward_of() {
  if constexpr (backward_block(E, D) == 0) return {};
  else return backward_instance<backward_config<E, D, V>(on_sm80(E) && D == 64 ? 2 : 1)>();
}

template <Engine E, int D>
constexpr Instance bias_of() {
  if constexpr (backward_block(E, D) == 0) return {};
  else return bias_instance<backward_config<E, D, Variant::featured>(1)>();
}

inline constexpr std::array kHeadDims = {64, 128, 256};

// The instances of a head_dim, for instances().
template <Engine E>
inline constexpr auto kInstancesOf = []<typename D>(D) {
  return Instances{
      .forward = {forward_of<E, D::value, Variant::plain>(), forward_of<E, D::value, Variant::featured>()},
      .backward = {backward_of<E, D::value, Variant::plain>(), backward_of<E, D::value, Variant::featured>()},
      .bias = bias_of<E, D::value>()};
};

}  // namespace tessera::cuda::flash1
