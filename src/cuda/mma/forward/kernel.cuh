// cuda.flash2 forward: exact attention in 16-bit types by mma.sync, on every GPU from Turing on.
//
// Schedule
//   A thread block owns block_q queries of one head and walks over the keys that they see, from the
//   last to the first. A warp owns 16 * m_tiles of the rows and holds all columns of their output
//   in registers. A step of block_k keys:
//
//     issue the copies of the next K and V tile    (cp.async; on Turing through registers)
//     for each chunk of the step:  S = Q K^T  ->  P = 2^(S c - m c)  ->  O += P V
//
// Speculation
//   The online softmax needs each row's maximum m before it can compute P. Only steps that a mask
//   cuts search it (search_step). All others use the m known so far; the first one uses the maximum
//   of its first chunk. Without a search the exponentials of one chunk can be interleaved with the
//   products of its neighbours (speculative_step), and a step is one run of instructions without a
//   branch. At the end of such a step the warp checks its row sums. If a score has outgrown m too
//   far for P's type, the warp subtracts what the step added to O, and searches in this step and in
//   the next two, four, eight ... steps. The rounding error of the subtraction does not matter: the
//   maximum has grown, and O is scaled down by as much. These decisions depend on the rows of the
//   tile alone, so results are reproducible and independent of the rest of the batch.
//
// Latency
//   Registers allow two warps per scheduler, so the instructions between a barrier and the first
//   product count. Whether a step may speculate takes two comparisons, and the plain kernels keep
//   their addresses in registers (ptx::opaque), because the compiler would compute them again in
//   every step.
//
// Traffic
//   Q, O and LSE once; K and V once per tile of queries and head, from L2 where the heads of a wave
//   share them.
#pragma once

#include <type_traits>

#include "cuda/common/instances.h"
#include "cuda/common/ptx/shared_memory.cuh"
#include "cuda/mma/forward/epilogue.cuh"
#include "cuda/mma/forward/softmax.cuh"
#include "cuda/mma/forward/tile.cuh"
#include "cuda/mma/forward/wide_kernel.cuh"

namespace tessera::cuda::mma::forward {

template <Config C>
__device__ __forceinline__ QueryTile<C>::QueryTile(const Arguments& arguments)
    : a_(arguments),
      shared_(ptx::dynamic_shared_address<128>()),
      lane_(static_cast<int>(threadIdx.x) % 32),
      warp_row_(static_cast<int>(threadIdx.x) / 32 * 16 * kM) {
  const MatrixAddress by_row = row_operand(lane_), by_column = column_operand(lane_);
  q_lane_ = shared_ + Tile::offset(warp_row_ + by_row.row, by_row.chunk);
  k_lane_ = k_tile(0).base + Tile::offset(by_column.row, by_column.chunk);
  v_lane_ = v_tile(0).base + Tile::offset(by_row.row, by_row.chunk);
  if constexpr (kPlain) {  // features leave too few registers
    q_lane_ = ptx::opaque(q_lane_), k_lane_ = ptx::opaque(k_lane_);
    if constexpr (C.head_dim == 64) v_lane_ = ptx::opaque(v_lane_);
  }
  const TileLocation here(a_, C.block_q());
  if (!here.empty()) {
    load_rows<C.head_dim, C.block_q(), C.threads(), kAsync, kFeatured>(Tile{shared_}, here.q(), 0,
                                                                       here.rows());
    if constexpr (kPlain) {
      k_own_ = own_offset<C.head_dim>(a_.k_row_bytes);
      v_own_ = own_offset<C.head_dim>(a_.v_row_bytes);
    }
    if constexpr (kStartEarly) {
      const KeyWalk walk = here.walk(C.block_k);
      if (!walk.done()) load_step(here.k(), here.v(), walk.begin(), here.keys(), 0);
    }
  }
  here.template remember<C.variant>(info());
}

template <Config C>
__device__ __forceinline__ void QueryTile<C>::clear() {
#pragma unroll
  for (int mi = 0; mi < kM; ++mi) {
#pragma unroll
    for (int j = 0; j < kD; ++j) o_[mi][j][0] = o_[mi][j][1] = o_[mi][j][2] = o_[mi][j][3] = 0;
    maximum_[mi][0] = maximum_[mi][1] = -INFINITY;
    sum_[mi][0] = sum_[mi][1] = 0;
  }
}

template <Config C>
__device__ __forceinline__ RowSource QueryTile<C>::key_rows() const {
  return {info().k, a_.p.k.row_stride, static_cast<int>(a_.p.qk_dim), a_.k_aligned};
}

template <Config C>
__device__ __forceinline__ RowSource QueryTile<C>::value_rows() const {
  return {info().v, a_.p.v.row_stride, static_cast<int>(a_.p.v_dim), a_.v_aligned};
}

// Copies K, V and the bias of a step. Keys from `limit` on become zeros.
template <Config C>
__device__ __forceinline__ void QueryTile<C>::load_step(const RowSource& k, const RowSource& v, int begin,
                                                        int limit, int stage) {
  load_rows<C.head_dim, C.block_k, C.threads(), kAsync, kFeatured, kDropout>(k_tile(stage), k, begin, limit);
  load_rows<C.head_dim, C.block_k, C.threads(), kAsync, kFeatured, kDropout>(v_tile(stage), v, begin, limit);
  load_bias_tile(begin, stage);
}

template <Config C>
__device__ __forceinline__ void QueryTile<C>::load_step(int begin, int stage) {
  load_step(key_rows(), value_rows(), begin, info().keys, stage);
}

template <Config C>
__device__ __forceinline__ void QueryTile<C>::load_bias_tile(int begin, int stage) {
  if constexpr (kFeatured && C.bias) {
    if (!a_.bias_staged) return;
    const core::View& bias = a_.p.bias;
    const RowSource source{static_cast<const ptx::HalfBits*>(bias.data) + info().bias + begin,
                           bias.row_stride, static_cast<int>(a_.p.k_length) - begin, true};
    load_rows<C.block_k, C.block_q(), C.threads(), kAsync, false>(bias_tile(stage), source, info().begin,
                                                                  info().end);
  }
}

// Copies a step that is not the first; walking down, all its keys exist. Without a next step (!any)
// the tile is filled with zeros, which saves a branch.
template <Config C>
__device__ __forceinline__ void QueryTile<C>::copy_whole_step(int begin, bool any, int stage) {
  const int column = own_column<C.head_dim>();
  copy_rows<C.head_dim, C.block_k, C.threads()>(k_tile(stage), info().k, k_own_, a_.k_row_bytes, begin,
                                                any && column < a_.p.qk_dim);
  copy_rows<C.head_dim, C.block_k, C.threads()>(v_tile(stage), info().v, v_own_, a_.v_row_bytes, begin,
                                                any && column < a_.p.v_dim);
}

// From global memory to registers; put_step goes on to shared memory.
template <Config C>
__device__ __forceinline__ void QueryTile<C>::fetch_step(Held& held, int begin) {
  held.k.template fetch<kFeatured, kDropout>(key_rows(), begin, info().keys);
  held.v.template fetch<kFeatured, kDropout>(value_rows(), begin, info().keys);
}

template <Config C>
__device__ __forceinline__ void QueryTile<C>::put_step(const Held& held, int begin, int stage) {
  held.k.template put<kFeatured, kDropout>(k_tile(stage), key_rows(), begin, info().keys);
  held.v.template put<kFeatured, kDropout>(v_tile(stage), value_rows(), begin, info().keys);
  load_bias_tile(begin, stage);
}

template <Config C>
__device__ __forceinline__ void QueryTile<C>::load_queries() {
#pragma unroll
  for (int k_step = 0; k_step < kK; ++k_step) {
#pragma unroll
    for (int mi = 0; mi < kM; ++mi) ptx::load_matrix(q_[k_step][mi], Tile::at(q_lane_, mi * 16, k_step));
  }
}

template <Config C>
__device__ __forceinline__ int QueryTile<C>::count_failure() {
  const int failures = info().failures + 1;
  __syncwarp();
  if (lane_ == 0) info().failures = failures;
  __syncwarp();  // search_step's votes do not order memory
  return failures;
}

template <Config C>
__device__ __forceinline__ WholeSteps QueryTile<C>::whole() const {
  return whole_steps(info(), warp_row_, warp_row_ + 16 * kM - 1, C.block_k);
}

// Computes all steps. `careful`: no speculation, and non-finite values do not reach rows that do
// not see them.
template <Config C>
__device__ __forceinline__ void QueryTile<C>::walk_keys(bool careful) {
  static_assert(C.stages == 1 || C.stages == 2);
  Walk walk(info().visible, C.block_k, kDropout ? a_.column_shift : 0);
  int speculative = -1;  // steps that begin up to here may speculate; -1: none
  if (lane_ == 0) {
    if (careful || !a_.speculate) info().failures = -1;
    if constexpr (kFeatured) info().careful = careful;
    info().whole = whole();
  }
  __syncwarp();
  Held held;

  if (!walk.done()) {
    if constexpr (kHold) fetch_step(held, walk.begin());
    else if constexpr (C.stages == 2 && !kStartEarly) load_step(walk.begin(), 0);
    if constexpr (C.q_makes_room) {
      __syncthreads();
      load_queries();
      __syncthreads();
    }
    if constexpr (kHold && C.stages == 2) put_step(held, walk.begin(), 0);
  }
  if constexpr (kAsync) ptx::commit_copies();
#pragma unroll 1
  for (int i = 0; !walk.done(); ++i) {
    int begin = walk.begin();
    const int stage = C.stages == 2 ? i & 1 : 0;
    const Step cut{begin, walk.first(), walk.last()};
    walk.next();
    const bool above = kPlain && begin >= info().whole.low;  // read here to overlap with the wait
    if constexpr (C.stages == 1) {
      if (i > 0) __syncthreads();
      if constexpr (kHold) put_step(held, begin, 0);
      else load_step(begin, 0);
      if constexpr (kAsync) ptx::commit_copies();
    }
    if constexpr (kAsync) ptx::wait_copies<0>();
    __syncthreads();
    auto copy_next = [&] {
      if constexpr (kHold) {
        if (!walk.done()) fetch_step(held, walk.begin());
      } else if constexpr (C.stages == 2) {
        if constexpr (kPlain) copy_whole_step(walk.begin(), !walk.done(), stage ^ 1);
        else if (!walk.done()) load_step(walk.begin(), stage ^ 1);
        ptx::commit_copies();
      }
    };
    if constexpr (!kCopyLate) copy_next();
    if constexpr (C.q_in_registers && !C.q_makes_room) {
      if (i == 0) load_queries();
    }
    if (careful) hide_non_finite_values<C.type, C.threads()>(v_tile(stage).base, C.kv_bytes());
    bool copied = !kCopyLate, complete = false;
    if constexpr (kSpeculate) {
      if (i == 0 && info().failures == 0 && above && begin <= info().whole.high) {
        guess_maxima(stage);
        if (has_maxima()) speculative = begin;
      }
      if (above && begin <= speculative) {
        complete = speculative_step(stage, copy_next);
        copied = true;
        if (!complete) {
          // The next steps search: twice as many after each failure, so that unlucky data stays
          // cheap.
          speculative = walk.begin() - (C.block_k << min(count_failure(), 16));
          // Visible as a whole, as this step is. No register holds where that begins.
          begin = info().whole.low;
        }
      }
    }
    if (!copied) copy_next();
    if (!complete) {
      const Step step = kPlain ? Step{begin, begin, min(begin + C.block_k, info().keys)} : cut;
      if (search_step(step, stage) && info().failures == 0) speculative = info().whole.high;
    }
    if constexpr (kHold && C.stages == 2) {
      if (!walk.done()) put_step(held, walk.begin(), stage ^ 1);
    }
  }
  if constexpr (kAsync) ptx::wait_copies<0>();
  __syncthreads();  // also for the copies of Q, if there was no step
}

// False: the tile has a non-finite value and has to be computed again with care.
template <Config C>
__device__ __forceinline__ bool QueryTile<C>::compute(bool careful) {
  clear();
  walk_keys(careful);
  if (__syncthreads_or(!all_finite(o_)) && !careful) return false;
  finalize(careful);
  return true;
}

template <typename C>
__global__ void __launch_bounds__(C::value.threads(), C::value.thread_blocks)
    forward_kernel(const __grid_constant__ Arguments arguments) {
#pragma unroll 1
  for (bool careful = false;; careful = true) {
    using Tile = std::conditional_t<C::value.pairs, WideQueryTile<C::value>, QueryTile<C::value>>;
    Tile tile(arguments);
    if (tile.empty() || tile.compute(careful)) return;
  }
}

// The instance of a config, for instances().
inline constexpr auto kInstanceOf = []<typename C>(C) { return Instance{C::value, forward_kernel<C>}; };

}  // namespace tessera::cuda::mma::forward
