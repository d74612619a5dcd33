// cuda.flash2, backward, by recomputation. A thread block owns a tile of keys of one key/value head
// and streams the blocks of queries that see it, for every query head of the group.
//
//   issue_scores   S^T = K Q^T, and dP^T = V dO^T
//   differentiate  P = 2^(S - LSE) and dS = P o (dP - delta), packed to 16 bits; masked pairs are 0
//   issue_sums     dV += P^T dO, dK += dS^T Q, in registers: every sum has one owner, so no atomics
//   issue_dq       dQ = dS K of this tile of keys, added to fp32 sums in global memory
//                  (dq_sums.cuh), in deterministic mode in turns (schedule.cuh); skipped when dQ is
//                  not requested or has a kernel of its own
//
// Two forms. With one split a warp holds all queries of a step for its 32 keys, 32 queries at a
// time. P and dS go from the accumulators straight into the next product; only dS passes through
// shared memory, for dQ. With more splits several warps share 32 keys. They divide the queries
// among them for the scores, and the columns of head_dim for the sums. P and dS both pass through
// shared memory, and a warp's registers hold head_dim / splits columns of dK and dV. Wide heads
// need that.
//
// Steps go from the last query to the first. The rows of a step are copied one step ahead: by
// cp.async into the other stage, or, where there is no cp.async, through registers into the only
// stage. dQ comes last in a step, so that the copy has the time of dV and dK. Without cp.async dQ
// comes first and leaves its registers to the rows that arrive.
//
// The files: config.h says how a kernel is cut, key_tile.cuh what a thread block knows of its tile,
// loader.cuh what is moved, schedule.cuh the order of the steps and the turns, scores.cuh the way
// from scores to P and dS, step.cuh what a step computes. Here is what a thread block does from its
// first instruction to its last.
//
// Traffic per tile of keys: K and V are read once, dK and dV written once. Every step reads Q, dO
// and 8 bytes of statistics per row, and adds to the fp32 sums of dQ.
#pragma once

#include "cuda/common/host/images.h"
#include "cuda/common/instances.h"
#include "cuda/common/ptx/shared_memory.cuh"
#include "cuda/mma/backward/arguments.h"
#include "cuda/mma/backward/step.cuh"

namespace tessera::cuda::mma::backward {

// Finds the task of this thread block and writes down what it is to know of its tile. False: there
// is no such tile.
template <KeysConfig C>
__device__ __forceinline__ bool begin_key_tile(const BackwardCall& a, KeyTile& tile) {
  const core::Problem& p = a.problem;
  std::uint32_t index = blockIdx.x;
  if (C.in_turns && a.turns != nullptr) {  // see schedule.cuh
    if (threadIdx.x == 0) tile.ticket = atomicAdd(a.ticket, 1U);
    __syncthreads();
    index = tile.ticket;
  }
  const auto task = a.order[index];
  const core::Sequence s = core::sequence(p, task.sequence);
  const core::Tiling tiling{s.k_length, C.block_k(), p.blocks ? p.blocks.block_k : 0};
  if (task.tile >= tiling.count()) return false;
  const core::Interval keys = tiling[task.tile];
  if (threadIdx.x == 0) {
    tile.keys = {static_cast<int>(task.sequence), static_cast<int>(task.head), static_cast<int>(keys.begin),
                 static_cast<int>(keys.end)};
    tile.q_begin = static_cast<int>(s.q_begin), tile.k_begin = static_cast<int>(s.k_begin);
    tile.q_length = static_cast<int>(s.q_length);
    tile.band = diagonals(s.band);
    tile.turn = nullptr;
    QueryRuns runs(p, tile.keys);
    tile.run[0] = runs.next(p, tile.keys, C.block_q);
    tile.runs = runs;
    if (C.variant != Variant::plain && tile.run[0].head >= 0)
      tile.options[0] = head_options(p, s, tile.run[0].head);
  }
  return true;
}

template <KeysConfig C>
__device__ __forceinline__ void compute_key_tile(const BackwardCall& a) {
  constexpr Engine E = C.engine;
  using Shared = KeysMemory<C>;
  using Step = KeyTileStep<C>;
  TESSERA_DYNAMIC_SHARED(unsigned char, 1024, shared);

  const core::Problem& p = a.problem;
  KeyTile& tile = *reinterpret_cast<KeyTile*>(shared + Shared::kTile);
  if (!begin_key_tile<C>(a, tile)) return;
  __syncthreads();
  const std::uint32_t base = ptx::shared_address(shared);
  ArrivingQueries<C> arriving;
  KeyTileCopies<C> copies{a, p, tile, base, arriving};
  copies.load_keys(base, p.k, p.qk_dim);
  copies.load_keys(base + Shared::kV, p.v, p.v_dim);
  if (tile.run[0].head >= 0) copies.load_queries(tile.run[0].head, tile.run[0].begin, 0);
  copies.load_bias_tile(0, tile.run[0].begin);
  commit_copies<E>();

  typename Step::Sums grad_k = {}, grad_v = {};
  KeyTileWalk<C> walk{copies, {tile.run[0].begin, 0, 0}, {tile.run[0].begin, 0, 0}, 0};
  bool full = false;
  Step work{a, tile, base, walk, grad_k, grad_v, full};
  QueryStep& step = walk.step;
  while (tile.run[step.which].head >= 0) {
    wait_copies<E>();
    __syncthreads();  // the stage has arrived, and all warps are done with the step before
    if constexpr (C.splits > 1 && C.stages > 1) walk.look_for_turn();
    const QueryRun& run = tile.run[step.which];
    const int begin = step.begin;
    // A bias may hide keys (-inf), so a step with a bias counts as masked.
    full = (C.variant == Variant::plain || !a.features.has_bias) && begin >= run.first &&
           begin + C.block_q <= run.last && tile.keys.end - tile.keys.begin == C.block_k() &&
           tile.keys.begin >= begin + C.block_q - 1 + tile.band.low &&
           tile.keys.end - 1 <= begin + tile.band.high;
    if (!C.one_copy() && full) work.template compute<false>();
    else work.template compute<true>();
    if constexpr (C.stages == 1) __syncthreads();
    if constexpr (!C.fetches_early()) walk.prefetch();
    step = walk.next;
    if constexpr (C.through_registers()) {
      if (tile.run[step.which].head >= 0) copies.store_fetched(step.stage);
    }
  }

  // dK and dV leave through the room of K and V.
  wait_copies<E>();
  __syncthreads();
  walk.pass_last_turn();
  const Place<C> place;
  const int row = place.group * 32, chunk = place.split * (Step::kColumns / 8);
  stage_rows<Step::kType, C.head_dim>(base, row, chunk, grad_k, a.gradient_scale());
  stage_rows<Step::kType, C.head_dim>(base + Shared::kV, row, chunk, grad_v, a.features.keep_scale);
  __syncthreads();
  if (p.has_grad_k) copies.store_keys(p.grad_k, base, p.qk_dim);
  if (p.has_grad_v) copies.store_keys(p.grad_v, base + Shared::kV, p.v_dim);
}

template <typename Config>
__global__ void __launch_bounds__(Config::value.threads(), Config::value.thread_blocks)
    backward_keys(const __grid_constant__ BackwardCall a) {
  // No GPU before 9.0 has more than 163 KB of shared memory for a thread block. The host's limits
  // see to it that no newer GPU runs code for an older one that needs more. Should one do so all
  // the same, it must not continue with results that no kernel has computed.
  if constexpr (!ptx::kBefore90 || KeysMemory<Config::value>::kBytes <= kSharedMemoryBefore90)
    compute_key_tile<Config::value>(a);
  else __trap();
}

// The instance of a config, for instances().
inline constexpr auto kKeysInstance = []<typename Config>(Config) {
  constexpr KeysConfig C = Config::value;
  return Instance{.kernel = &backward_keys<Config>,
                  .head_dim = C.head_dim,
                  .variant = C.variant,
                  .block_q = C.block_q,
                  .block_k = C.block_k(),
                  .threads = C.threads(),
                  .shared_memory = KeysMemory<C>::kBytes,
                  .in_turns = C.in_turns,
                  .thread_blocks = C.thread_blocks,
                  .bias_bytes = KeysMemory<C>::kBiasBytes};
};

}  // namespace tessera::cuda::mma::backward
