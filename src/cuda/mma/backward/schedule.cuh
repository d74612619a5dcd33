// The walk of a thread block over the queries that see its tile of keys: from the last query to the first, for one query head
// of the group after the other; and, in deterministic mode, its turns at their dQ.
#pragma once

#include "cuda/mma/backward/loader.cuh"
#include "cuda/mma/backward/ordered_sums.cuh"

namespace tessera::cuda::flash2 {

// The step at hand, the one after it, and what was last seen of the turns.
template <BackwardConfig C>
struct KeyTileWalk {
  static constexpr int kBlockQ = C.block_q;

  KeyTileCopies<C>& copies;
  QueryStep step, next;
  std::uint32_t turns_done;

  // Finds the next step and begins to copy it.
  __device__ __forceinline__ void prefetch() {
    const core::Problem& p = copies.p;
    KeyTile& tile = copies.tile;
    int begin = step.begin - kBlockQ, which = step.which;
    if (step.begin <= tile.run[which].first) {
      which ^= 1;
      if (threadIdx.x == 0) {
        QueryRuns runs = tile.runs;
        const QueryRun run = runs.next(p, tile.keys, kBlockQ);
        if (C.variant != Variant::plain && run.head >= 0)
          tile.options[which] = head_options(p, core::sequence(p, tile.keys.sequence), run.head);
        tile.run[which] = run;
        tile.runs = runs;
      }
      __syncthreads();
      begin = tile.run[which].begin;
    }
    next = {begin, which, C.stages > 1 ? step.stage ^ 1 : 0};
    if (tile.run[which].head >= 0) {
      if constexpr (C.through_registers()) copies.fetch_queries(tile.run[which].head, begin);
      else copies.load_queries(tile.run[which].head, begin, next.stage);
    }
    if constexpr (!C.bias_later()) copies.load_bias_tile(which, begin);
    commit_copies<C.engine>();
  }

  // Deterministic mode: thread 0 looks early in a step whose turn it is, and before the barrier in front of the reductions
  // waits, if need be, and passes on the turn of the step before, whose reductions lie behind a barrier.
  __device__ __forceinline__ std::uint32_t* own_turn() const {
    return copies.a.turns + copies.block_of(copies.tile.run[step.which].head, step.begin) * kTurnsPerBlock +
           step.begin % kQueryBlock / kTurnQueries;
  }
  __device__ __forceinline__ void look_for_turn() {
    if (C.in_turns && copies.a.turns != nullptr && threadIdx.x == 0) turns_done = load_turn(own_turn());
  }
  __device__ __forceinline__ void take_turn() {
    KeyTile& tile = copies.tile;
    if (!C.in_turns || copies.a.turns == nullptr || threadIdx.x != 0) return;
    const int before = tile.keys.begin / C.block_k() - max(0, step.begin + tile.band.low) / C.block_k();
    std::uint32_t* turn = own_turn();
    while (turns_done != static_cast<std::uint32_t>(before)) turns_done = load_turn(turn);
    fence();
    if (tile.turn != nullptr) pass_turn(tile.turn);
    tile.turn = turn;
  }
  // After the last step, behind a barrier.
  __device__ __forceinline__ void pass_last_turn() {
    if (C.in_turns && threadIdx.x == 0 && copies.tile.turn != nullptr) {
      fence();
      pass_turn(copies.tile.turn);
    }
  }
};

}  // namespace tessera::cuda::flash2
