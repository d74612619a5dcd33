// The backward kernels that the instance files compile, each file those of one head_dim.
#pragma once

#include "cuda/common/prepare.cuh"
#include "cuda/mma/backward/bias_kernel.cuh"
#include "cuda/mma/backward/kernel.cuh"
#include "cuda/mma/backward/query_kernel.cuh"

namespace tessera::cuda::mma::backward {

// Tiles of keys, from sm_80 on. At head_dim 64 two thread blocks share a multiprocessor. At 128 the
// kernel takes 161 KB of shared memory, which 8.6 and 8.9 do not have, and at 256 it takes 209 KB
// (9.0) or 145 KB (8.0). The small kernels take less (69 KB at 256). They have two variants, the
// second of which supports features with and without dropout.
template <Engine E, Variant V, bool InTurns = true>
inline constexpr Instance kKeys64 =
    keys_kernel<KeysConfig{.engine = E, .variant = V, .thread_blocks = 2, .in_turns = InTurns}>();
template <Engine E, Variant V, bool InTurns = true>
inline constexpr Instance kKeys128 =
    keys_kernel<KeysConfig{.engine = E, .variant = V, .head_dim = 128, .splits = 2, .in_turns = InTurns}>();
template <Engine E, Variant V>
inline constexpr Instance kSmallKeys128 = keys_kernel<KeysConfig{
    .engine = E, .variant = V, .head_dim = 128, .key_groups = 2, .splits = 2, .stages = 1}>();
template <Engine E, Variant V, int Stages, bool InTurns = true>
inline constexpr Instance kKeys256 = keys_kernel<KeysConfig{.engine = E,
                                                            .variant = V,
                                                            .head_dim = 256,
                                                            .key_groups = 2,
                                                            .splits = 4,
                                                            .stages = Stages,
                                                            .in_turns = InTurns}>();
template <Engine E, Variant V>
inline constexpr Instance kSmallKeys256 = keys_kernel<KeysConfig{
    .engine = E, .variant = V, .head_dim = 256, .key_groups = 1, .splits = 4, .block_q = 32, .stages = 1}>();

// Tiles of queries: at most 97 KB of shared memory.
template <Engine E, Variant V>
inline constexpr Instance kQueries64 = queries_kernel<QueriesConfig{.engine = E, .variant = V}>();
template <Engine E, Variant V>
inline constexpr Instance kQueries128 =
    queries_kernel<QueriesConfig{.engine = E, .variant = V, .head_dim = 128, .block_k = 32}>();
template <Engine E, Variant V>
inline constexpr Instance kQueries256 = queries_kernel<QueriesConfig{.engine = E,
                                                                     .variant = V,
                                                                     .head_dim = 256,
                                                                     .m_tiles = 1,
                                                                     .block_k = 32,
                                                                     .chunk = V == Variant::dropout ? 16 : 32,
                                                                     .stages = 1}>();

// Turing: fp16, and at most 64 KB of shared memory.
template <Variant V>
inline constexpr Instance kTuringKeys64 =
    keys_kernel<KeysConfig{.engine = Engine::sm75_fp16, .variant = V, .block_q = 32, .stages = 1}>();
template <Variant V>
inline constexpr Instance kTuringKeys128 = keys_kernel<KeysConfig{.engine = Engine::sm75_fp16,
                                                                  .variant = V,
                                                                  .head_dim = 128,
                                                                  .key_groups = 2,
                                                                  .splits = 2,
                                                                  .block_q = 32,
                                                                  .stages = 1}>();
template <Variant V>
inline constexpr Instance kTuringKeys256 = keys_kernel<KeysConfig{.engine = Engine::sm75_fp16,
                                                                  .variant = V,
                                                                  .head_dim = 256,
                                                                  .key_groups = 1,
                                                                  .splits = 4,
                                                                  .block_q = 16,
                                                                  .stages = 1}>();
template <Variant V>
inline constexpr Instance kTuringQueries64 = queries_kernel<QueriesConfig{
    .engine = Engine::sm75_fp16, .variant = V, .stages = 1, .thread_blocks = 1}>();
template <Variant V>
inline constexpr Instance kTuringQueries128 = queries_kernel<QueriesConfig{.engine = Engine::sm75_fp16,
                                                                           .variant = V,
                                                                           .head_dim = 128,
                                                                           .m_tiles = 1,
                                                                           .block_k = 32,
                                                                           .stages = 1,
                                                                           .thread_blocks = 1}>();
template <Variant V>
inline constexpr Instance kTuringQueries256 = queries_kernel<QueriesConfig{.engine = Engine::sm75_fp16,
                                                                           .variant = V,
                                                                           .head_dim = 256,
                                                                           .m_tiles = 1,
                                                                           .warps = 2,
                                                                           .block_k = 16,
                                                                           .chunk = 16,
                                                                           .stages = 1,
                                                                           .thread_blocks = 1}>();

}  // namespace tessera::cuda::mma::backward
