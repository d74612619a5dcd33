// Which backward kernels are compiled, per head_dim in the order of preference. A call takes the first
// that supports it and fits the GPU's shared memory.
#pragma once

#include <array>

#include "cuda/mma/backward/config.h"

namespace tessera::cuda::mma::backward {

template <typename Config>
constexpr Config with(Config c, Variant variant) {
  c.variant = variant;
  return c;
}

// Tiles of keys. From 8.0 on, two thread blocks share a multiprocessor at head_dim 64. At 128 the
// kernel takes 161 KB of shared memory, which 8.6 and 8.9 do not have, at 256 it takes 209 KB (9.0)
// or, with one stage, 145 KB (8.0). The small kernels take at most 81 KB. They have no instance for
// features alone: the one with dropout supports those calls too.
template <Engine E, int HeadDim>
constexpr auto keys_configs() {
  using enum Variant;
  if constexpr (E == Engine::sm75_fp16) {  // at most 64 KB
    constexpr KeysConfig kConfig =
        HeadDim == 64 ? KeysConfig{.engine = E, .block_q = 32, .stages = 1}
        : HeadDim == 128
            ? KeysConfig{.engine = E,
                         .head_dim = 128,
                         .key_groups = 2,
                         .splits = 2,
                         .block_q = 32,
                         .stages = 1}
            : KeysConfig{
                  .engine = E, .head_dim = 256, .key_groups = 1, .splits = 4, .block_q = 16, .stages = 1};
    return std::array{with(kConfig, plain), with(kConfig, dropout)};
  } else if constexpr (HeadDim == 64) {
    constexpr KeysConfig kConfig{.engine = E, .thread_blocks = 2};
    return std::array{with(kConfig, plain), with(kConfig, featured), with(kConfig, dropout)};
  } else if constexpr (HeadDim == 128) {
    constexpr KeysConfig kConfig{.engine = E, .head_dim = 128, .splits = 2};
    constexpr KeysConfig kInAnyOrder{.engine = E, .head_dim = 128, .splits = 2, .in_turns = false};
    constexpr KeysConfig kSmall{.engine = E, .head_dim = 128, .key_groups = 2, .splits = 2, .stages = 1};
    return std::array{
        kInAnyOrder,         with(kConfig, plain), with(kConfig, featured), with(kConfig, dropout),
        with(kSmall, plain), with(kSmall, dropout)};
  } else {
    constexpr KeysConfig kConfig{.engine = E, .head_dim = 256, .key_groups = 2, .splits = 4};
    constexpr KeysConfig kInAnyOrder{
        .engine = E, .head_dim = 256, .key_groups = 2, .splits = 4, .in_turns = false};
    constexpr KeysConfig kOneStage{.engine = E, .head_dim = 256, .key_groups = 2, .splits = 4, .stages = 1};
    constexpr KeysConfig kSmall{
        .engine = E, .head_dim = 256, .key_groups = 1, .splits = 4, .block_q = 32, .stages = 1};
    return std::array{kInAnyOrder,
                      with(kConfig, plain),
                      with(kConfig, featured),
                      with(kConfig, dropout),
                      with(kOneStage, plain),
                      with(kOneStage, dropout),
                      with(kSmall, plain),
                      with(kSmall, dropout)};
  }
}
template <Engine E, int HeadDim>
inline constexpr auto kKeysConfigs = keys_configs<E, HeadDim>();

// Tiles of queries: at most 97 KB of shared memory, 49 KB on Turing. At head_dim 256 plain would
// spill.
template <Engine E, int HeadDim>
constexpr auto queries_configs() {
  using enum Variant;
  if constexpr (E == Engine::sm75_fp16) {
    if constexpr (HeadDim == 256) {
      return std::array{QueriesConfig{.engine = E,
                                      .variant = dropout,
                                      .head_dim = 256,
                                      .m_tiles = 1,
                                      .warps = 2,
                                      .block_k = 16,
                                      .chunk = 16,
                                      .stages = 1,
                                      .thread_blocks = 1}};
    } else {
      constexpr QueriesConfig kConfig = HeadDim == 64
                                            ? QueriesConfig{.engine = E, .stages = 1, .thread_blocks = 1}
                                            : QueriesConfig{.engine = E,
                                                            .head_dim = 128,
                                                            .m_tiles = 1,
                                                            .block_k = 32,
                                                            .stages = 1,
                                                            .thread_blocks = 1};
      return std::array{with(kConfig, plain), with(kConfig, dropout)};
    }
  } else if constexpr (HeadDim == 64) {
    return std::array{QueriesConfig{.engine = E, .variant = dropout}};
  } else if constexpr (HeadDim == 128) {
    return std::array{QueriesConfig{.engine = E, .variant = dropout, .head_dim = 128, .block_k = 32}};
  } else {
    return std::array{QueriesConfig{.engine = E,
                                    .variant = dropout,
                                    .head_dim = 256,
                                    .m_tiles = 1,
                                    .block_k = 32,
                                    .chunk = 16,
                                    .stages = 1}};
  }
}
template <Engine E, int HeadDim>
inline constexpr auto kQueriesConfigs = queries_configs<E, HeadDim>();

// Tiles of the bias, for any head_dim.
template <Engine E>
constexpr auto bias_configs() {
  if constexpr (E == Engine::sm75_fp16) return std::array{BiasConfig{E, Variant::dropout}};
  else return std::array{BiasConfig{E, Variant::featured}, BiasConfig{E, Variant::dropout}};
}
template <Engine E>
inline constexpr auto kBiasConfigs = bias_configs<E>();

}  // namespace tessera::cuda::mma::backward
