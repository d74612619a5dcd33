// Which backward kernels are compiled. An instance file compiles those of one element type and one
// head_dim.
#pragma once

#include <array>

#include "cuda/mma/backward/config.h"

namespace tessera::cuda::mma::backward {

// Tiles of keys, from sm_80 on. At head_dim 64 two thread blocks share a multiprocessor. At 128 the
// kernel takes 161 KB of shared memory, which 8.6 and 8.9 do not have, and at 256 it takes 209 KB
// (9.0) or 145 KB (8.0). The small kernels, which come last, take less (69 KB at 256). They have
// two variants, the second of which supports features with and without dropout.
template <Engine E>
inline constexpr std::array kKeys64 = {
    KeysConfig{.engine = E, .thread_blocks = 2},
    KeysConfig{.engine = E, .variant = Variant::featured, .thread_blocks = 2},
    KeysConfig{.engine = E, .variant = Variant::dropout, .thread_blocks = 2},
};

template <Engine E>
constexpr KeysConfig keys_128(Variant variant, bool in_turns = true) {
  return {.engine = E, .variant = variant, .head_dim = 128, .splits = 2, .in_turns = in_turns};
}
template <Engine E>
constexpr KeysConfig small_keys_128(Variant variant) {
  return {.engine = E, .variant = variant, .head_dim = 128, .key_groups = 2, .splits = 2, .stages = 1};
}
template <Engine E>
inline constexpr std::array kKeys128 = {
    keys_128<E>(Variant::plain, false), keys_128<E>(Variant::plain),
    keys_128<E>(Variant::featured),     keys_128<E>(Variant::dropout),
    small_keys_128<E>(Variant::plain),  small_keys_128<E>(Variant::dropout),
};

template <Engine E>
constexpr KeysConfig keys_256(Variant variant, int stages, bool in_turns = true) {
  return {.engine = E,
          .variant = variant,
          .head_dim = 256,
          .key_groups = 2,
          .splits = 4,
          .stages = stages,
          .in_turns = in_turns};
}
template <Engine E>
constexpr KeysConfig small_keys_256(Variant variant) {
  return {.engine = E,
          .variant = variant,
          .head_dim = 256,
          .key_groups = 1,
          .splits = 4,
          .block_q = 32,
          .stages = 1};
}
template <Engine E>
inline constexpr std::array kKeys256 = {
    keys_256<E>(Variant::plain, 2, false), keys_256<E>(Variant::plain, 2),
    keys_256<E>(Variant::featured, 2),     keys_256<E>(Variant::dropout, 2),
    keys_256<E>(Variant::plain, 1),        keys_256<E>(Variant::dropout, 1),
    small_keys_256<E>(Variant::plain),     small_keys_256<E>(Variant::dropout),
};

// Tiles of queries: at most 97 KB of shared memory. The dropout variant supports everything.
template <Engine E>
inline constexpr std::array kQueries64 = {QueriesConfig{.engine = E, .variant = Variant::dropout}};
template <Engine E>
inline constexpr std::array kQueries128 = {
    QueriesConfig{.engine = E, .variant = Variant::dropout, .head_dim = 128, .block_k = 32}};
template <Engine E>
inline constexpr std::array kQueries256 = {QueriesConfig{.engine = E,
                                                         .variant = Variant::dropout,
                                                         .head_dim = 256,
                                                         .m_tiles = 1,
                                                         .block_k = 32,
                                                         .chunk = 16,
                                                         .stages = 1}};  // plain would spill

template <Engine E>
inline constexpr std::array kBias = {BiasConfig{E, Variant::featured}, BiasConfig{E, Variant::dropout}};

// Turing: fp16, and at most 64 KB of shared memory. The dropout variant supports all features.
constexpr KeysConfig turing_keys(Variant variant, int head_dim) {
  KeysConfig c{
      .engine = Engine::sm75_fp16, .variant = variant, .head_dim = head_dim, .block_q = 32, .stages = 1};
  if (head_dim == 128) c.key_groups = 2, c.splits = 2;
  if (head_dim == 256) c.key_groups = 1, c.splits = 4, c.block_q = 16;
  return c;
}
template <int HeadDim>
inline constexpr std::array kTuringKeys = {turing_keys(Variant::plain, HeadDim),
                                           turing_keys(Variant::dropout, HeadDim)};

constexpr QueriesConfig turing_queries(Variant variant, int head_dim) {
  QueriesConfig c{
      .engine = Engine::sm75_fp16, .variant = variant, .head_dim = head_dim, .stages = 1, .thread_blocks = 1};
  if (head_dim == 128) c.m_tiles = 1, c.block_k = 32;
  if (head_dim == 256) c.m_tiles = 1, c.warps = 2, c.block_k = 16, c.chunk = 16;
  return c;
}
inline constexpr std::array kTuringQueries64 = {turing_queries(Variant::plain, 64),
                                                turing_queries(Variant::dropout, 64)};
inline constexpr std::array kTuringQueries128 = {turing_queries(Variant::plain, 128),
                                                 turing_queries(Variant::dropout, 128)};
inline constexpr std::array kTuringQueries256 = {turing_queries(Variant::dropout, 256)};  // plain would spill

inline constexpr std::array kTuringBias = {BiasConfig{Engine::sm75_fp16, Variant::dropout}};

}  // namespace tessera::cuda::mma::backward
