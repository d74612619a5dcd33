// How the backward kernels are cut: dK, dV and dQ by tiles of keys, dQ alone by tiles of queries,
// and the gradient of a bias. Host code: also compiled without nvcc.
#pragma once

#include "cuda/common/engine.h"
#include "cuda/common/features.h"

namespace tessera::cuda::mma::backward {

constexpr int element_bytes(Engine e) { return ptx::element_bytes(type_of(e)); }

// Tiles of keys (kernel.cuh).
struct KeysConfig {
  Engine engine = Engine::sm80_bf16;
  Variant variant = Variant::plain;
  int head_dim = 64;
  int key_groups = 4;     // of 32 keys
  int splits = 1;         // warps that share 32 keys
  int block_q = 64;       // queries in a step
  int stages = 2;         // steps whose rows have room at a time
  int thread_blocks = 1;  // per multiprocessor, for the register allocation
  bool in_turns = true;   // supports deterministic mode too, which costs registers

  constexpr int block_k() const { return key_groups * 32; }
  // Queries whose scores a warp computes: all of a step or its share. With few queries some warps
  // have none.
  constexpr int width() const { return block_q / splits < 16 ? 16 : block_q / splits; }
  // Queries whose scores a warp holds at a time. Features take registers.
  constexpr int chunk() const {
    const int most = variant == Variant::plain && stages > 1 ? 32 : 16;
    return width() < most ? width() : most;
  }
  // Without cp.async the next step's rows wait in registers until their place is free. Features
  // need those registers.
  constexpr bool through_registers() const { return !copies_async(engine) && variant == Variant::plain; }
  // Whether the next step is fetched during this one.
  constexpr bool fetches_early() const { return stages > 1 || through_registers(); }
  // Whether there is code for a bias in shared memory.
  constexpr bool stages_bias() const { return copies_async(engine) && variant != Variant::plain; }
  // Whether the tile of the bias is copied later than the next step's other rows.
  constexpr bool bias_later() const { return splits == 1 && fetches_early(); }
  // Whether steps with and without masks share their code, because registers do not suffice for two
  // copies.
  constexpr bool one_copy() const { return stages == 1 && !through_registers(); }
  constexpr int warps() const { return key_groups * splits; }
  constexpr int threads() const { return warps() * 32; }
  constexpr int key_tile_bytes() const { return block_k() * head_dim * element_bytes(engine); }
  constexpr int query_tile_bytes() const { return block_q * head_dim * element_bytes(engine); }
  constexpr int score_tile_bytes() const { return block_k() * block_q * element_bytes(engine); }
  // All tiles, and LSE and delta of every stage.
  constexpr int tile_bytes() const {
    const int statistics = 2 * block_q * static_cast<int>(sizeof(float));
    return 2 * key_tile_bytes() + stages * (2 * query_tile_bytes() + statistics) +
           (splits > 1 ? 2 : 1) * score_tile_bytes();
  }
};

// Tiles of queries (query_kernel.cuh).
struct QueriesConfig {
  Engine engine = Engine::sm80_bf16;
  Variant variant = Variant::plain;
  int head_dim = 64;
  int m_tiles = 2;  // of 16 queries in a warp
  int warps = 4;
  int block_k = 64;       // keys in a step
  int chunk = 32;         // keys whose scores a warp holds at a time
  int stages = 2;         // steps whose rows have room at a time
  int thread_blocks = 2;  // per multiprocessor, for the register allocation

  constexpr int block_q() const { return 16 * m_tiles * warps; }
  constexpr int threads() const { return 32 * warps; }
  constexpr int query_tile_bytes() const { return block_q() * head_dim * element_bytes(engine); }
  constexpr int key_tile_bytes() const { return block_k * head_dim * element_bytes(engine); }
  constexpr int tile_bytes() const { return 2 * query_tile_bytes() + 2 * stages * key_tile_bytes(); }
};

// Tiles of the bias (bias_kernel.cuh).
struct BiasConfig {
  Engine engine = Engine::sm80_bf16;
  Variant variant = Variant::featured;
};

}  // namespace tessera::cuda::mma::backward
