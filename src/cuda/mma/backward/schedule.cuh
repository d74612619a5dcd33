// The walk of a thread block over the queries that see its tile of keys: from the last query to the
// first, one query head of the group after the other.
//
// Turns. Deterministic mode adds to dQ in a fixed order: tiles of keys add to a block of queries
// one after the other, from the first tile that it sees to the last. Every tile walks from the last
// query that sees it to the first, so neighbouring tiles follow each other at a distance of one
// step, and none waits once the first steps are through. A tile waits only for tiles of smaller
// number. Tasks are numbered in the order in which thread blocks begin to run (a ticket, not
// blockIdx), with the tiles of a head in ascending order. So whatever a tile waits for has begun.
#pragma once

#include "cuda/common/ptx/memory.cuh"
#include "cuda/mma/backward/loader.cuh"

namespace tessera::cuda::mma::backward {

// The current step, the next one, and how many turns were done when thread 0 last looked.
template <KeysConfig C>
struct KeyTileWalk {
  static constexpr int kBlockQ = C.block_q;

  KeyTileCopies<C>& copies;
  QueryStep step, next;
  std::uint32_t turns_done;

  // Finds the next step and begins to copy its rows.
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

  // The counter of the tiles that have added to the step's queries.
  __device__ __forceinline__ std::uint32_t* own_turn() const {
    return copies.a.turns + copies.block_of(copies.tile.run[step.which].head, step.begin) * kTurnsPerBlock +
           step.begin % kQueryBlock / kTurnQueries;
  }

  // Early in a step thread 0 looks whose turn it is.
  __device__ __forceinline__ void look_for_turn() {
    if (C.in_turns && copies.a.turns != nullptr && threadIdx.x == 0)
      turns_done = ptx::load_relaxed(own_turn());
  }

  // Before the barrier in front of the reductions it waits for its turn, and passes on that of the
  // step before, whose reductions lie behind a barrier.
  __device__ __forceinline__ void take_turn() {
    KeyTile& tile = copies.tile;
    if (!C.in_turns || copies.a.turns == nullptr || threadIdx.x != 0) return;
    const int before = tile.keys.begin / C.block_k() - max(0, step.begin + tile.band.low) / C.block_k();
    std::uint32_t* turn = own_turn();
    while (turns_done != static_cast<std::uint32_t>(before)) turns_done = ptx::load_relaxed(turn);
    ptx::fence();
    if (tile.turn != nullptr) ptx::increment(tile.turn);
    tile.turn = turn;
  }

  // After the last step, behind a barrier.
  __device__ __forceinline__ void pass_last_turn() {
    if (C.in_turns && threadIdx.x == 0 && copies.tile.turn != nullptr) {
      ptx::fence();
      ptx::increment(copies.tile.turn);
    }
  }
};

}  // namespace tessera::cuda::mma::backward
