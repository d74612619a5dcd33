// Before and after the tiles of a backward call. prepare computes delta and the LSE in the units
// and blocks that the kernels read; finish turns the blocks of sums that they leave into rows of
// dQ. One thread block per block of 64 queries of a head.
//
// Traffic: prepare reads O, dO and the LSE and writes 8 bytes per row and the zeros of the dQ sums;
// finish reads the sums and writes dQ.
#pragma once

#include <cstdint>

#include "cuda/common/backward_call.h"
#include "cuda/common/dq_sums.cuh"
#include "cuda/common/engine.h"
#include "cuda/common/features.cuh"
#include "cuda/common/ptx/shared_memory.cuh"
#include "cuda/common/rows.cuh"

namespace tessera::cuda {

// The block of queries of this thread block. `rows` is 0 or less past the end of a sequence.
struct QueryBlock {
  core::Sequence s;
  int head;
  int begin, rows;
  std::int64_t index;  // among all heads' blocks

  __device__ explicit QueryBlock(const BackwardCall& a) {
    const auto task = a.order[blockIdx.x];
    s = core::sequence(a.problem, task.sequence);
    head = static_cast<int>(task.head);
    begin = static_cast<int>(task.tile) * kQueryBlock;
    rows = min(kQueryBlock, static_cast<int>(s.q_length) - begin);
    index = head * a.blocks.per_head + QueryBlocks::first(a.problem, s) + task.tile;
  }
};

// The product of eight numbers of two rows.
template <ptx::Half16 Type>
__device__ __forceinline__ float dot_chunk(uint4 a, uint4 b) {
  const std::uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 u = ptx::unpack<Type>(x[i]), v = ptx::unpack<Type>(y[i]);
    sum = fmaf(u.x, v.x, fmaf(u.y, v.y, sum));
  }
  return sum;
}

// delta = (rowsum(dO o O) - dLSE) / keep_scale, by eight lanes per row; zeros for the sums of dQ;
// and the state that thread blocks share in deterministic mode.
template <Engine E>
__global__ void __launch_bounds__(kPrepareThreads) backward_prepare(const __grid_constant__ BackwardCall a) {
  const core::Problem& p = a.problem;
  const QueryBlock block(a);
  if (a.ticket != nullptr && blockIdx.x == 0 && threadIdx.x == 0) *a.ticket = 0;
  if (block.rows <= 0) return;
  const core::Sequence& s = block.s;
  if (a.grad_q_sums != nullptr) {
    auto* sums = reinterpret_cast<float4*>(a.grad_q_sums + block.index * kQueryBlock * a.head_dim);
    for (int i = static_cast<int>(threadIdx.x); i < kQueryBlock * a.head_dim / 4; i += kPrepareThreads)
      sums[i] = float4{};
  }
  if (a.turns != nullptr && threadIdx.x < kTurnsPerBlock) {
    a.turns[block.index * kTurnsPerBlock + threadIdx.x] = 0;
  }
  constexpr int kLanes = 8;
  const int lane = static_cast<int>(threadIdx.x) % kLanes, columns = static_cast<int>(p.v_dim);
  for (int row = static_cast<int>(threadIdx.x) / kLanes; row < kQueryBlock; row += kPrepareThreads / kLanes) {
    float sum = 0;
    const std::int64_t token = s.q_begin + block.begin + row;
    if (row < block.rows) {
      const auto* out = p.out.row<const ptx::HalfBits>(s.tensor_batch, block.head, token);
      const auto* grad = p.grad_out.row<const ptx::HalfBits>(s.tensor_batch, block.head, token);
      const bool aligned = ((reinterpret_cast<std::uintptr_t>(out) | reinterpret_cast<std::uintptr_t>(grad) |
                             static_cast<std::uintptr_t>(columns * sizeof(ptx::HalfBits))) &
                            15) == 0;
      if (aligned) {
        for (int c = lane * 8; c < columns; c += kLanes * 8) {
          sum += dot_chunk<type_of(E)>(__ldg(reinterpret_cast<const uint4*>(out + c)),
                                       __ldg(reinterpret_cast<const uint4*>(grad + c)));
        }
      } else {
        for (int c = lane; c < columns; c += kLanes)
          sum = fmaf(ptx::unpack<type_of(E)>(out[c]).x, ptx::unpack<type_of(E)>(grad[c]).x, sum);
      }
    }
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0U, sum, step);
    if (lane != 0) continue;
    float lse = INFINITY;
    if (row < block.rows) {
      lse = *p.lse.row<const float>(s.tensor_batch, block.head, token) * kLog2E;
      if (p.has_grad_lse) sum -= *p.grad_lse.row<const float>(s.tensor_batch, block.head, token);
      if (lse == -INFINITY) lse = INFINITY, sum = 0;  // the row sees no key: P = 2^(S - inf) = 0
    }
    float* statistics = a.statistics + block.index * (2 * kQueryBlock);
    statistics[row] = lse;
    statistics[kQueryBlock + row] = sum / a.features.keep_scale;
  }
}

// Whose sums finish reads. cuda.flash2's kernels are compiled for the same GPUs as this one and use
// their layout; those of cuda.hopper are compiled for 9.0 alone and always use fours.
enum class SumsOf : int { flash2, hopper };

// dQ = scale * sums, row by row. Each warp moves 16 rows x 64 columns at a time through shared
// memory.
template <Engine E, SumsOf Whose>
__global__ void __launch_bounds__(kFinishThreads) backward_finish(const __grid_constant__ BackwardCall a) {
  constexpr SumsLayout kLayout = Whose == SumsOf::hopper ? SumsLayout::fours : kOwnLayout;
  using Staged = unsigned char[kFinishThreads / 32][16 * SharedTile<64>::kRowBytes];
  Staged& staged = ptx::static_shared<Staged, QueryBlock, 1024>();
  const core::Problem& p = a.problem;
  const QueryBlock block(a);
  if (block.rows <= 0) return;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint32_t tile = ptx::shared_address(staged[warp]);
  const float scale = a.gradient_scale();
  const float* sums = a.grad_q_sums + block.index * kQueryBlock * a.head_dim;
  const int columns = static_cast<int>(p.qk_dim), across = a.head_dim / 64;
  for (int part = warp; part < kQueryBlock / 16 * across; part += kFinishThreads / 32) {
    const int row = part / across * 16, column = part % across * 64;
    if (row >= block.rows || column >= columns) continue;
    float x[1][8][4];
#pragma unroll
    for (int j = 0; j < 8; ++j)
      load_fragment<kLayout>(x[0][j], sums + fragment_offset(a.head_dim, row, column + 8 * j));
    stage_rows<type_of(E), 64>(tile, 0, 0, x, scale);
    __syncwarp();
    ptx::HalfBits* to =
        p.grad_q.row<ptx::HalfBits>(block.s.tensor_batch, block.head, block.s.q_begin + block.begin + row) +
        column;
    const bool aligned = rows_aligned(to, p.grad_q.row_stride, columns);
    store_rows<64>(tile, to, p.grad_q.row_stride, 0, min(16, block.rows - row), columns - column, aligned,
                   lane, 32);
    __syncwarp();
  }
}

}  // namespace tessera::cuda
