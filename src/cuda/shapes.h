// The instances of cuda.flash2's backward and of cuda.flash1 without their kernels: what builds
// without CUDA choose from for an assumed GPU. Those of cuda.flash2 follow from its tables, those
// of cuda.flash1 are numbers. In builds with CUDA shapes_test.cpp compares both with the kernels'
// own.
#pragma once

#include <array>
#include <cstddef>

#include "cuda/baselines/flash1/config.h"
#include "cuda/mma/backward/arguments.h"
#include "cuda/mma/backward/table.h"

namespace tessera::cuda::shapes {

// The structs that the kernels of flash2 keep beside their tiles of keys (with the tile's end on
// 128 bytes) and of queries. Device code defines them.
inline constexpr int kKeyTileRoom = 256, kQueryTileRoom = 144;

constexpr mma::backward::Instance instance_of(const mma::backward::KeysConfig& c) {
  return {.head_dim = c.head_dim,
          .variant = c.variant,
          .block_q = c.block_q,
          .block_k = c.block_k(),
          .threads = c.threads(),
          .shared_memory = c.tile_bytes() + kKeyTileRoom,
          .in_turns = c.in_turns,
          .thread_blocks = c.thread_blocks,
          .bias_bytes = c.stages_bias() ? c.score_tile_bytes() : 0};
}
constexpr mma::backward::Instance instance_of(const mma::backward::QueriesConfig& c) {
  return {.head_dim = c.head_dim,
          .variant = c.variant,
          .block_q = c.block_q(),
          .block_k = c.block_k,
          .threads = c.threads(),
          .shared_memory = c.tile_bytes() + kQueryTileRoom};
}
constexpr mma::backward::Instance instance_of(const mma::backward::BiasConfig& c) {
  return {.head_dim = 256, .variant = c.variant, .block_q = 64, .block_k = 64, .threads = 128};
}

// The instances of a table of configs (mma/backward/table.h).
template <const auto& Configs>
inline constexpr auto kInstances = [] {
  std::array<mma::backward::Instance, Configs.size()> all{};
  for (std::size_t i = 0; i < Configs.size(); ++i) all[i] = instance_of(Configs[i]);
  return all;
}();

// From compute capability 8.0 on, for both types.
inline mma::backward::Family backward_family() {
  using namespace mma::backward;
  constexpr Engine E = Engine::sm80_bf16;
  return {{{kInstances<kKeys64<E>>, kInstances<kQueries64<E>>},
           {kInstances<kKeys128<E>>, kInstances<kQueries128<E>>},
           {kInstances<kKeys256<E>>, kInstances<kQueries256<E>>}},
          kInstances<kBias<E>>};
}
inline mma::backward::Family backward_family_turing() {
  using namespace mma::backward;
  return {{{kInstances<kTuringKeys<64>>, kInstances<kTuringQueries64>},
           {kInstances<kTuringKeys<128>>, kInstances<kTuringQueries128>},
           {kInstances<kTuringKeys<256>>, kInstances<kTuringQueries256>}},
          kInstances<kTuringBias>};
}

// head_dim, queries of a tile, keys of a step, threads, splits, bytes of shared memory, and per
// key. Both variants alike.
constexpr flash1::Instances alike(flash1::Instance forward, flash1::Instance backward,
                                  flash1::Instance bias) {
  return {{forward, forward}, {backward, backward}, bias};
}

constexpr flash1::Instances flash1_instances(flash1::Engine engine, int head_dim) {
  using flash1::Engine;
  using flash1::Instance;
  const int at = head_dim == 64 ? 0 : head_dim == 128 ? 1 : 2;
  if (engine == Engine::fp32) {
    constexpr Instance kForward[] = {{nullptr, 64, 64, 32, 128, 1, 27648, 544},
                                     {nullptr, 128, 64, 32, 128, 1, 44032, 1056},
                                     {nullptr, 256, 64, 32, 256, 2, 86016, 2080}};
    constexpr Instance kBackward[] = {{nullptr, 64, 32, 32, 128, 2, 44120, 0},
                                      {nullptr, 128, 32, 32, 128, 2, 76888, 0},
                                      {nullptr, 256, 32, 32, 256, 4, 142424, 0}};
    return alike(kForward[at], kBackward[at], kBackward[at]);
  }
  if (engine == Engine::sm75_fp16) {
    constexpr Instance kForward[] = {{nullptr, 64, 128, 64, 256, 1, 33792, 256},
                                     {nullptr, 128, 64, 32, 128, 1, 25600, 512},
                                     {nullptr, 256, 32, 32, 128, 2, 25600, 1024}};
    constexpr Instance kBackward[] = {
        {nullptr, 64, 64, 64, 256, 2, 49240, 0}, {nullptr, 128, 32, 32, 128, 2, 41048, 0}, {}};
    return alike(kForward[at], kBackward[at], kBackward[at]);
  }
  constexpr Instance kForward[] = {{nullptr, 64, 128, 64, 256, 1, 50176, 256},
                                   {nullptr, 128, 128, 32, 256, 1, 82944, 512},
                                   {nullptr, 256, 64, 32, 256, 2, 82944, 1024}};
  constexpr Instance kBackward[] = {{nullptr, 64, 64, 64, 256, 2, 65624, 0},
                                    {nullptr, 128, 64, 64, 256, 2, 82008, 0},
                                    {nullptr, 256, 32, 32, 256, 4, 73816, 0}};
  constexpr Instance kBias64{nullptr, 64, 64, 64, 256, 2, 49240, 0};
  return alike(kForward[at], kBackward[at], at == 0 ? kBias64 : kBackward[at]);
}

}  // namespace tessera::cuda::shapes
