// cuda.flash2, backward, by recomputation: a thread block owns a tile of keys of one key/value head and streams the blocks
// of queries that see it, for every query head of the group.
//
//   issue_qk           S^T = K Q^T, and dP^T = V dO^T
//   apply_mask         what a query does not see becomes 0 in P and dS
//   P = 2^(S - LSE)    and dS = P o (dP - delta), packed to 16 bits
//   issue_dv, issue_dk dV += P^T dO, dK += dS^T Q, in registers, one owner each: no atomics
//   issue_dq           dQ = dS K of this tile of keys, added to fp32 sums in global memory, in deterministic mode in turns
//                      (ordered_sums.cuh); left out when dQ is not asked for or has a kernel of its own
//
// Two forms. With one split a warp holds all queries of a step for its 32 keys, 32 queries at a time: P and dS go from the
// accumulators straight into the next product, only dS passes through shared memory, for dQ. With more splits the warps
// that share 32 keys split the queries in the scores and head_dim in the sums: P and dS both pass through shared memory,
// and registers hold head_dim / splits columns of dK and dV. Wide heads need that.
//
// Steps go from the last query to the first. Their rows are copied a step ahead: by cp.async into the other stage, or, where
// there is none, through registers into the only one. dQ comes last, so that dV and dK have the copy's time; without
// cp.async it comes first, and leaves its registers to the rows that arrive.
//
// The rooms: key_tile.cuh has the configuration, the plan of shared memory and the step from scores to P and dS;
// loader.cuh what is moved, schedule.cuh the order of the steps and the turns, products.cuh what a
// step computes; here is what a thread block does from its first instruction to its last.
//
// Traffic per tile of keys: K, V read and dK, dV written once; Q, dO, 8 bytes of statistics per row and the fp32 sums of dQ
// (a reduction each) once per step.
#pragma once

#include "cuda/mma/backward/products.cuh"

namespace tessera::cuda::flash2 {

template <BackwardConfig C>
__device__ __forceinline__ void compute_key_tile(const BackwardArguments& a) {
  constexpr int kBlockQ = C.block_q;
  constexpr Engine E = C.engine;
  using Shared = BackwardShared<C>;
  using Products = KeyTileProducts<C>;
  extern __shared__ __align__(1024) unsigned char shared[];

  const core::Problem& p = a.problem;
  KeyTile& tile = *reinterpret_cast<KeyTile*>(shared + Shared::kTile);
  {
    std::uint32_t index = blockIdx.x;
    if (C.in_turns && a.turns != nullptr) {  // see ordered_sums.cuh
      if (threadIdx.x == 0) tile.ticket = atomicAdd(a.ticket, 1U);
      __syncthreads();
      index = tile.ticket;
    }
    const auto task = a.order[index];
    const core::Sequence s = core::sequence(p, task.sequence);
    const core::Tiling tiling{s.k_length, C.block_k(), p.blocks ? p.blocks.block_k : 0};
    if (task.tile >= tiling.count()) return;
    const core::Tile keys = tiling[task.tile];
    if (threadIdx.x == 0) {
      tile.keys = {static_cast<int>(task.sequence), static_cast<int>(task.head), static_cast<int>(keys.begin),
                   static_cast<int>(keys.end)};
      tile.q_begin = static_cast<int>(s.q_begin), tile.k_begin = static_cast<int>(s.k_begin);
      tile.q_length = static_cast<int>(s.q_length);
      tile.band = core::diagonals(s.band);
      tile.turn = nullptr;
      QueryRuns runs(p, tile.keys);
      tile.run[0] = runs.next(p, tile.keys, kBlockQ);
      tile.runs = runs;
      if (C.variant != Variant::plain && tile.run[0].head >= 0)
        tile.options[0] = head_options(p, s, tile.run[0].head);
    }
  }
  __syncthreads();
  const std::uint32_t base = ptx::shared_address(shared);
  ArrivingQueries<C> arriving;
  KeyTileCopies<C> copies{a, p, tile, base, arriving};
  copies.load_keys(base, p.k, p.qk_dim);
  copies.load_keys(base + Shared::kV, p.v, p.v_dim);
  if (tile.run[0].head >= 0) copies.load_queries(tile.run[0].head, tile.run[0].begin, 0);
  copies.load_bias_tile(0, tile.run[0].begin);
  commit_copies<E>();

  typename Products::Sums grad_k = {}, grad_v = {};
  KeyTileWalk<C> walk{copies, {tile.run[0].begin, 0, 0}, {tile.run[0].begin, 0, 0}, 0};
  bool full = false;
  Products products{a, tile, base, walk, grad_k, grad_v, full};
  QueryStep& step = walk.step;
  while (tile.run[step.which].head >= 0) {
    wait_copies<E>();
    __syncthreads();  // the stage has arrived, and everyone is done with the step before
    if constexpr (C.splits > 1 && C.stages > 1) walk.look_for_turn();
    const QueryRun& run = tile.run[step.which];
    const int begin = step.begin;
    // A bias may hide keys (-inf): its steps are taken like those that a mask cuts.
    full = (C.variant == Variant::plain || !a.features.has_bias) && begin >= run.first &&
           begin + kBlockQ <= run.last && tile.keys.end - tile.keys.begin == C.block_k() &&
           tile.keys.begin >= begin + kBlockQ - 1 + tile.band.low &&
           tile.keys.end - 1 <= begin + tile.band.high;
    if (!C.one_copy() && full) products.template compute_step<false>();
    else products.template compute_step<true>();
    if constexpr (C.stages == 1) __syncthreads();
    if constexpr (!C.fetches_early()) walk.prefetch();
    step = walk.next;
    if constexpr (C.through_registers()) {
      if (tile.run[step.which].head >= 0) copies.store_fetched(step.stage);
    }
  }

  // ---- finalize: dK and dV through the room of K and V ----
  wait_copies<E>();
  __syncthreads();
  walk.pass_last_turn();
  const Place<C> place;
  const int row = place.group * 32, chunk = place.split * (Products::kColumns / 8);
  stage_rows<Products::kType, C.head_dim>(base, row, chunk, grad_k, a.gradient_scale());
  stage_rows<Products::kType, C.head_dim>(base + Shared::kV, row, chunk, grad_v, a.features.keep_scale);
  __syncthreads();
  if (p.has_grad_k) copies.store_keys(p.grad_k, base, p.qk_dim);
  if (p.has_grad_v) copies.store_keys(p.grad_v, base + Shared::kV, p.v_dim);
}

template <typename Config>
__global__ void __launch_bounds__(Config::value.threads(), Config::value.thread_blocks)
    backward_keys(const __grid_constant__ BackwardArguments a) {
  // No GPU before 9.0 has more than 163 KB of shared memory for a thread block. A newer one that runs such code all the same
  // (the host's limits see to it that none does) must not go on with results that nobody has computed.
  if constexpr (!kBefore90 || BackwardShared<Config::value>::kBytes <= kSharedMemoryBefore90)
    compute_key_tile<Config::value>(a);
  else __trap();
}

template <BackwardConfig C>
constexpr BackwardKernel keys_kernel() {
  return {&backward_keys<Use<C>>,
          C.head_dim,
          C.variant,
          C.block_q,
          C.block_k(),
          C.threads(),
          BackwardShared<C>::kBytes,
          C.in_turns,
          C.thread_blocks,
          BackwardShared<C>::kBiasBytes};
}

}  // namespace tessera::cuda::flash2
