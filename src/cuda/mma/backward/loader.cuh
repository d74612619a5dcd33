// What a thread block that owns a tile of keys moves between global and shared memory: K, V, then block after block of
// queries (Q, dO, their statistics, a tile of the bias), at the end dK and dV.
#pragma once

#include "cuda/mma/backward/key_tile.cuh"

namespace tessera::cuda::flash2 {

// What a thread holds of the next step where there is no cp.async.
template <BackwardConfig C>
struct ArrivingQueries {
  HeldRows<C.head_dim, C.block_q, C.threads()> q, grad_out;
  uint4 statistics;
};

// Addresses are computed for each copy: 64-bit numbers that live through the loop are too dear.
template <BackwardConfig C>
struct KeyTileCopies {
  static constexpr int D = C.head_dim, kBlockQ = C.block_q;
  static constexpr bool kUnaligned = C.variant != Variant::plain;
  static constexpr bool kAsync = copies_async(C.engine);
  using Shared = BackwardShared<C>;

  const BackwardArguments& a;
  const core::Problem& p;
  KeyTile& tile;
  std::uint32_t base;  // of shared memory
  ArrivingQueries<C>& arriving;

  // The number of a block of queries, among all heads' blocks.
  __device__ __forceinline__ std::int64_t block_of(int head, int query) const {
    const int sequence = tile.keys.sequence;
    return head * a.blocks.per_head +
           (p.packed ? tile.q_begin / kQueryBlock + sequence
                     : sequence * std::int64_t{(tile.q_length + kQueryBlock - 1) / kQueryBlock}) +
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
    if (threadIdx.x < 2 * kBlockQ / 4) {  // four numbers each: LSE, then delta
      const int which = static_cast<int>(threadIdx.x) / (kBlockQ / 4);
      const int at = static_cast<int>(threadIdx.x) % (kBlockQ / 4) * 4;
      const float* from = a.statistics + block_of(head, begin) * (2 * kQueryBlock) + which * kQueryBlock +
                          begin % kQueryBlock + at;
      const std::uint32_t target =
          base + Shared::kStatistics + stage * Shared::kStatisticsBytes + (which * kBlockQ + at) * 4;
      if constexpr (kAsync) ptx::copy_async(target, from, true);
      else ptx::store_shared(target, *reinterpret_cast<const uint4*>(from));
    }
  }

  // The same where there is no cp.async: fetched early in a step, stored when the step no longer needs the place.
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
      ptx::store_shared(base + Shared::kStatistics + stage * Shared::kStatisticsBytes + threadIdx.x * 16,
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

  // The tile of the bias for a step of run `which`. It has one copy, to be overwritten when all scores of a step are there.
  __device__ __forceinline__ void load_bias_tile(int which, int begin) const {
    if constexpr (C.stages_bias()) {
      if (!a.bias_staged || tile.run[which].head < 0) return;
      const RowSource rows{
          static_cast<const std::uint16_t*>(p.bias.data) + tile.options[which].bias + tile.keys.begin,
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
    store_rows<D>(from, const_cast<std::uint16_t*>(to.data), to.stride, 0, tile.keys.end - tile.keys.begin,
                  to.columns, to.aligned, static_cast<int>(threadIdx.x), C.threads());
  }
};

}  // namespace tessera::cuda::flash2
