// The Hopper forward kernel: exact attention in 16-bit types as an asynchronous pipeline of TMA and wgmma.
//
// One thread block per multiprocessor stays for the whole call. One warp group loads (loader.cuh), the others compute: each
// owns 64 rows of the tile's queries, with S, P and O in registers, and walks over the keys from the last to the first:
//
//     tensor cores   S(n)  P(n+1) V(n+1)      S(n-1)  P(n) V(n)            S of a step and P V of the step before it
//     registers          softmax of S(n)             softmax of S(n-1)     are issued together; softmax runs under P V
//
// Warp groups issue in turn, so that one's softmax falls under the other's products. With two stages of Q a tile changes
// without a gap: P V of the last step, then S of the next tile's first, under which the output is normalised and stored.
// With one stage there is a wait between the two, for the warp group's own part of the next Q.
//
// The kernel may begin beside its predecessor in the stream; the loader waits for that one's end, all others for the loader.
//
// Speculation. Steps that a mask cuts search each row's maximum. The others exponentiate against the reference known so far
// (the first step of a tile: against 0) and vote afterwards: where a row sum is too large for P's type, the maximum is
// searched and the step exponentiated again; P V has not been issued yet, so nothing has to be undone. After a failure a
// warp searches in the next two, four, eight ... steps. What is decided depends on the tile alone: results are reproducible
// and do not depend on the rest of the batch.
//
// The reference m of a row is in base-2 logarithms: P = 2^(s c - m). Where maxima are searched, s c is rounded as m is, so
// that P of the maximum is exactly 1 and a row that sees one key returns its value bit for bit.
//
// Traffic: Q and O once, K and V once per block of queries and head (from L2 where heads of a wave share it), LSE once.
#pragma once

#include "cuda/common/instances.h"
#include "cuda/sm90/common/entry.cuh"
#include "cuda/sm90/forward/consumer.cuh"
#include "cuda/sm90/forward/epilogue.cuh"
#include "cuda/sm90/forward/loader.cuh"
#include "cuda/sm90/forward/softmax.cuh"

namespace tessera::cuda::sm90::forward {

template <typename Used>
__global__ void __launch_bounds__(Used::value.threads(), 1)
    forward_kernel(const __grid_constant__ Arguments arguments) {
  constexpr Config C = Used::value;
  run_warp_groups<C, SharedMemory<C>, Loader<C>, Consumer<C>>(arguments);
}

// The instance of a config, for instances().
inline constexpr auto kInstanceOf = []<typename C>(C) { return Instance{C::value, forward_kernel<C>}; };

}  // namespace tessera::cuda::sm90::forward
