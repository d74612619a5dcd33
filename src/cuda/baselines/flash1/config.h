// What the host knows of the kernels of cuda.flash1: their instances and arguments.
#pragma once

#include <cstdint>
#include <span>

#include "core/problem.h"

namespace tessera::cuda::flash1 {

// The element type and the instructions that multiply it: tensor cores, or plain fp32.
enum class Engine : int { sm75_fp16, sm80_fp16, sm80_bf16, fp32 };

// Options that are compiled in but off cost a sixth of the speed, hence two variants.
enum class Variant : int {
  plain,     // no options, rows on 16-byte boundaries
  featured,  // softcap, ALiBi, bias, dropout; any alignment
};

// The arguments of a kernel. As in the algorithm, the sums live in global memory through the whole
// call: O in forward and dQ in backward, in fp32, a row of `head_dim` numbers for row (sequence *
// q_heads + head) * q_length + i.
struct Arguments {
  core::Problem problem{};
  int block_k = 0;               // forward: keys of a block, which stay in shared memory
  float* sums = nullptr;         // O, normalised after every block of keys; dQ, unscaled
  float* maxima = nullptr;       // forward: m, per row
  float* normalisers = nullptr;  // forward: l, per row
  float* delta = nullptr;        // backward: <dO, O> - d(LSE), per row
};

static_assert(sizeof(Arguments) < 4096, "the parameters of a kernel");

struct Instance {
  void (*kernel)(Arguments) = nullptr;
  int head_dim = 0;
  int block_q = 0;
  int step_k = 0;  // forward: a block of keys is a multiple of it; backward: the block of keys
  int threads = 0;
  int splits = 1;         // warps that share rows
  int fixed_bytes = 0;    // of shared memory,
  int bytes_per_key = 0;  // and (forward) per key of a block
};

// The instances of an engine for a head_dim (64, 128 or 256), by variant. A null kernel: none.
struct Instances {
  Instance forward[2];
  Instance backward[2];
  Instance bias;  // the gradient of the bias
};

// The instances of an engine for head_dim up to 64, 128 and 256, in this order.
template <Engine E>
std::span<const Instances> engine_instances();

}  // namespace tessera::cuda::flash1
