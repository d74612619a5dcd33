// dQ in a fixed order of its summands, for deterministic mode: tiles of keys add to a block of queries one after the other,
// from the first that it sees to the last.
//
// Every tile walks from the last query that sees it to the first, so neighbouring tiles follow each other at a distance of one
// step and nobody waits once the first steps are through. A tile waits for tiles of smaller number alone. Tasks are numbered
// in the order in which thread blocks begin to run (a ticket, not blockIdx), with the tiles of a head in ascending order: what
// is waited for has always begun.
#pragma once

#include <cstdint>

namespace tessera::cuda::flash2 {

// How many tiles have added theirs. PTX ISA: ld.relaxed.
__device__ __forceinline__ std::uint32_t load_turn(const std::uint32_t* turn) {
  std::uint32_t done;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(done) : "l"(turn) : "memory");
  return done;
}

// Between a look at a turn and what it allows, and between reductions (of other threads too, if a barrier lies between) and
// passing a turn on. PTX ISA: fence.acq_rel.
__device__ __forceinline__ void fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// PTX ISA: red.relaxed.
__device__ __forceinline__ void pass_turn(std::uint32_t* turn) {
  asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(turn) : "memory");
}

}  // namespace tessera::cuda::flash2
