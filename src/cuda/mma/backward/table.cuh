// The tables of backward kernels that the instance files compile, a head_dim each.
#pragma once

#include "cuda/common/prepare.cuh"
#include "cuda/mma/backward/bias_kernel.cuh"
#include "cuda/mma/backward/kernel.cuh"
#include "cuda/mma/backward/query_kernel.cuh"

namespace tessera::cuda::flash2 {

// Tiles of keys, from sm_80 on. head_dim 64: two thread blocks share a multiprocessor. 128: 161 KB of shared memory, which
// 8.6 and 8.9 do not have; 256: 209 KB (9.0), 145 KB (8.0), 69 KB. The smaller ones have two variants: the second serves
// features with and without dropout.
template <Engine E, Variant V, bool InTurns = true>
inline constexpr BackwardKernel kKeys64 =
    keys_kernel<BackwardConfig{.engine = E, .variant = V, .thread_blocks = 2, .in_turns = InTurns}>();
template <Engine E, Variant V, bool InTurns = true>
inline constexpr BackwardKernel kKeys128 = keys_kernel<BackwardConfig{
    .engine = E, .variant = V, .head_dim = 128, .splits = 2, .in_turns = InTurns}>();
template <Engine E, Variant V>
inline constexpr BackwardKernel kSmallKeys128 = keys_kernel<BackwardConfig{
    .engine = E, .variant = V, .head_dim = 128, .key_groups = 2, .splits = 2, .stages = 1}>();
template <Engine E, Variant V, int Stages, bool InTurns = true>
inline constexpr BackwardKernel kKeys256 = keys_kernel<BackwardConfig{.engine = E,
                                                                      .variant = V,
                                                                      .head_dim = 256,
                                                                      .key_groups = 2,
                                                                      .splits = 4,
                                                                      .stages = Stages,
                                                                      .in_turns = InTurns}>();
template <Engine E, Variant V>
inline constexpr BackwardKernel kSmallKeys256 = keys_kernel<BackwardConfig{
    .engine = E, .variant = V, .head_dim = 256, .key_groups = 1, .splits = 4, .block_q = 32, .stages = 1}>();

// Tiles of queries: at most 97 KB.
template <Engine E, Variant V>
inline constexpr BackwardKernel kQueries64 = queries_kernel<QueriesConfig{.engine = E, .variant = V}>();
template <Engine E, Variant V>
inline constexpr BackwardKernel kQueries128 =
    queries_kernel<QueriesConfig{.engine = E, .variant = V, .head_dim = 128, .block_k = 32}>();
template <Engine E, Variant V>
inline constexpr BackwardKernel kQueries256 =
    queries_kernel<QueriesConfig{.engine = E,
                                 .variant = V,
                                 .head_dim = 256,
                                 .m_tiles = 1,
                                 .block_k = 32,
                                 .chunk = V == Variant::dropout ? 16 : 32,
                                 .stages = 1}>();

// Turing: at most 64 KB, fp16.
template <Variant V>
inline constexpr BackwardKernel kTuringKeys64 =
    keys_kernel<BackwardConfig{.engine = Engine::sm75_fp16, .variant = V, .block_q = 32, .stages = 1}>();
template <Variant V>
inline constexpr BackwardKernel kTuringKeys128 = keys_kernel<BackwardConfig{.engine = Engine::sm75_fp16,
                                                                            .variant = V,
                                                                            .head_dim = 128,
                                                                            .key_groups = 2,
                                                                            .splits = 2,
                                                                            .block_q = 32,
                                                                            .stages = 1}>();
template <Variant V>
inline constexpr BackwardKernel kTuringKeys256 = keys_kernel<BackwardConfig{.engine = Engine::sm75_fp16,
                                                                            .variant = V,
                                                                            .head_dim = 256,
                                                                            .key_groups = 1,
                                                                            .splits = 4,
                                                                            .block_q = 16,
                                                                            .stages = 1}>();
template <Variant V>
inline constexpr BackwardKernel kTuringQueries64 = queries_kernel<QueriesConfig{
    .engine = Engine::sm75_fp16, .variant = V, .stages = 1, .thread_blocks = 1}>();
template <Variant V>
inline constexpr BackwardKernel kTuringQueries128 = queries_kernel<QueriesConfig{.engine = Engine::sm75_fp16,
                                                                                 .variant = V,
                                                                                 .head_dim = 128,
                                                                                 .m_tiles = 1,
                                                                                 .block_k = 32,
                                                                                 .stages = 1,
                                                                                 .thread_blocks = 1}>();
template <Variant V>
inline constexpr BackwardKernel kTuringQueries256 = queries_kernel<QueriesConfig{.engine = Engine::sm75_fp16,
                                                                                 .variant = V,
                                                                                 .head_dim = 256,
                                                                                 .m_tiles = 1,
                                                                                 .warps = 2,
                                                                                 .block_k = 16,
                                                                                 .chunk = 16,
                                                                                 .stages = 1,
                                                                                 .thread_blocks = 1}>();

}  // namespace tessera::cuda::flash2
