// The backward kernels as the host sees them: instances, and the tables that hold them.
#pragma once

#include <span>

#include "cuda/common/backward_call.h"
#include "cuda/common/features.h"

namespace tessera::cuda::mma::backward {

using Kernel = BackwardKernel;

// An instance of a kernel that walks over tiles.
struct Instance {
  Kernel kernel = nullptr;
  int head_dim = 0;  // supports head_dim up to this
  Variant variant = Variant::plain;
  int block_q = 0, block_k = 0;
  int threads = 0;
  int shared_memory = 0;
  bool in_turns = false;  // tiles of keys: can add to dQ in turns
  int thread_blocks = 1;  // that are to share a multiprocessor
  int bias_bytes = 0;     // more shared memory, for a tile of a 16-bit bias; 0: there is no code for it
};

// The instances for one head_dim, in the order of preference.
struct Table {
  std::span<const Instance> keys;     // tiles of keys: dK, dV and, by reductions, dQ
  std::span<const Instance> queries;  // tiles of queries: dQ without reductions
};

// The instances for one element type on one path.
struct Family {
  Table tables[3];                 // head_dim 64, 128, 256
  std::span<const Instance> bias;  // tiles of the bias: its gradient, for any head_dim
  BackwardEnds ends{};
};

// What the instance files compile.
template <int HeadDim>
Table table_fp16();
template <int HeadDim>
Table table_bf16();
template <int HeadDim>
Table table_sm75();
Family family_fp16();
Family family_bf16();
Family family_sm75();

}  // namespace tessera::cuda::mma::backward
