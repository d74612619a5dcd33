// What a thread block that owns a tile of keys moves between global and shared memory: first K and
// V, then block after block of queries (Q, dO, their statistics, a tile of the bias), and at the
// end dK and dV.
#pragma once

#include "cuda/common/backward_call.h"
#include "cuda/common/rows.cuh"
#include "cuda/mma/backward/key_tile.cuh"

namespace tessera::cuda::mma::backward {

// A thread's part of the next step, in registers, where there is no cp.async.
template <KeysConfig C>
struct ArrivingQueries {
  HeldRows<C.head_dim, C.block_q, C.threads()> q, grad_out;
  uint4 statistics;
};

// Addresses are computed again for each copy: 64-bit numbers that live through the loop would take
// too many registers.
template <KeysConfig C>
struct KeyTileCopies {
  static constexpr int D = C.head_dim, kBlockQ = C.block_q;
  static constexpr bool kUnaligned = C.variant != Variant::plain;
  static constexpr bool kAsync = copies_async(C.engine);
  static constexpr int kFourBytes = 4 * sizeof(float);
  using Shared = KeysMemory<C>;

  const BackwardCall& a;
  const core::Problem& p;
  KeyTile& tile;
  std::uint32_t base;  // of shared memory
  ArrivingQueries<C>& arriving;

  // The number of a block of queries among the blocks of all heads.
  __device__ __forceinline__ std::int64_t block_of(int head, int query) const {
    return head * a.blocks.per_head +
           first_query_block<std::int64_t>(p.packed, tile.q_begin, tile.q_length, tile.keys.sequence) +
           query / kQueryBlock;
  }

  // A block of queries into a stage.
  __device__ __forceinline__ void load_queries(int head, int begin, int stage) const {
    const std::uint32_t to = base + Shared::kStages + stage * Shared::kStageBytes;
    const int batch = p.packed ? 0 : tile.keys.sequence;
    load_rows<D, kBlockQ, C.threads(), kAsync, kUnaligned>(
        SharedTile<D>{to}, rows_of<C.variant>(p.q, batch, head, tile.q_begin, p.qk_dim), begin,
        tile.q_length);
    load_rows<D, kBlockQ, C.threads(), kAsync, kUnaligned>(
        SharedTile<D>{to + C.query_tile_bytes()},
        rows_of<C.variant>(p.grad_out, batch, head, tile.q_begin, p.v_dim), begin, tile.q_length);
    if (threadIdx.x < 2 * kBlockQ / 4) {  // a thread copies four numbers: LSE, then delta
      const int which = static_cast<int>(threadIdx.x) / (kBlockQ / 4);
      const int at = static_cast<int>(threadIdx.x) % (kBlockQ / 4) * 4;
      const float* from = a.statistics + block_of(head, begin) * (2 * kQueryBlock) + which * kQueryBlock +
                          begin % kQueryBlock + at;
      const std::uint32_t target = base + Shared::kStatistics + stage * Shared::kStatisticsBytes +
                                   (which * kBlockQ + at) * static_cast<int>(sizeof(float));
      if constexpr (kAsync) ptx::copy_async(target, from, true);
      else ptx::store_shared(target, *reinterpret_cast<const uint4*>(from));
    }
  }

  // The same where there is no cp.async. Rows are fetched early in a step and stored when the step
  // no longer needs their place.
  __device__ __forceinline__ void fetch_queries(int head, int begin) {
    const int batch = p.packed ? 0 : tile.keys.sequence;
    arriving.q.template fetch<false, false>(rows_of<C.variant>(p.q, batch, head, tile.q_begin, p.qk_dim),
                                            begin, tile.q_length);
    arriving.grad_out.template fetch<false, false>(
        rows_of<C.variant>(p.grad_out, batch, head, tile.q_begin, p.v_dim), begin, tile.q_length);
    const int which = static_cast<int>(threadIdx.x) / (kBlockQ / 4);
    const int at = static_cast<int>(threadIdx.x) % (kBlockQ / 4) * 4;
    if (which < 2) {
      arriving.statistics =
          __ldg(reinterpret_cast<const uint4*>(a.statistics + block_of(head, begin) * (2 * kQueryBlock) +
                                               which * kQueryBlock + begin % kQueryBlock + at));
    }
  }
  __device__ __forceinline__ void store_fetched(int stage) {
    const std::uint32_t to = base + Shared::kStages + stage * Shared::kStageBytes;
    arriving.q.template put<false, false>({to}, {}, 0, 0);
    arriving.grad_out.template put<false, false>({to + C.query_tile_bytes()}, {}, 0, 0);
    if (threadIdx.x < 2 * kBlockQ / 4) {
      ptx::store_shared(
          base + Shared::kStatistics + stage * Shared::kStatisticsBytes + threadIdx.x * kFourBytes,
          arriving.statistics);
    }
  }

  // The tile's rows of K or V.
  __device__ __forceinline__ void load_keys(std::uint32_t to, const core::View& view,
                                            std::int64_t columns) const {
    load_rows<D, C.block_k(), C.threads(), kAsync, kUnaligned>(
        SharedTile<D>{to},
        rows_of<C.variant>(view, p.packed ? 0 : tile.keys.sequence, tile.keys.kv_head, tile.k_begin, columns),
        tile.keys.begin, tile.keys.end);
  }

  // The tile of the bias for a step of run `which`. There is room for one: it may be overwritten
  // when all scores of a step are computed.
  __device__ __forceinline__ void load_bias_tile(int which, int begin) const {
    if constexpr (C.stages_bias()) {
      if (!a.bias_staged || tile.run[which].head < 0) return;
      const RowSource rows{
          static_cast<const ptx::HalfBits*>(p.bias.data) + tile.options[which].bias + tile.keys.begin,
          p.bias.row_stride, static_cast<int>(p.k_length) - tile.keys.begin, true};
      load_rows<C.block_k(), kBlockQ, C.threads(), true, false>(SharedTile<C.block_k()>{base + Shared::kBias},
                                                                rows, begin, tile.q_length);
    }
  }

  // Staged rows into dK or dV.
  __device__ __forceinline__ void store_keys(const core::View& view, std::uint32_t from,
                                             std::int64_t columns) const {
    const RowSource to = rows_of<C.variant>(view, p.packed ? 0 : tile.keys.sequence, tile.keys.kv_head,
                                            tile.k_begin + tile.keys.begin, columns);
    store_rows<D>(from, const_cast<ptx::HalfBits*>(to.data), to.stride, 0, tile.keys.end - tile.keys.begin,
                  to.columns, to.aligned, static_cast<int>(threadIdx.x), C.threads());
  }
};

}  // namespace tessera::cuda::mma::backward
