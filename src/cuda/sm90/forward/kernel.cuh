// The Hopper forward kernel: exact attention in 16-bit types as an asynchronous pipeline of TMA and
// wgmma.
//
// Roles
//   One thread block per multiprocessor stays for the whole call and takes one tile of queries of
//   one head after another. One warp group loads (loader.cuh); the others compute (consumer.cuh).
//   Each of them owns 64 rows of the tile, with S, P and O in registers, and walks over the keys
//   from the last to the first.
//
// Schedule
//   A warp group issues S of a step together with P V of the step before it, so that the softmax
//   runs while P V does:
//
//       tensor cores   S(n)  P(n+1) V(n+1)      S(n-1)  P(n) V(n)
//       registers          softmax of S(n)             softmax of S(n-1)
//
//   Warp groups take turns at the tensor cores, so that one group's softmax runs during another's
//   products. With two stages of Q, tiles change without a gap: the last P V of a tile and S of the
//   next tile's first step are issued together, and the output is normalised and stored meanwhile.
//   With one stage, a warp group first waits for its own part of the next Q. The kernel may start
//   while its predecessor in the stream still runs. The loader waits for the predecessor to end,
//   and all others wait for the loader.
//
// Speculation
//   The online softmax needs the maximum of a row before it can compute P. Finding it takes time
//   that only steps cut by a mask spend. All other steps use the reference known so far (0 in the
//   first step of a tile) and check afterwards: if a row sum is too large for P's type, the warp
//   searches the maximum and exponentiates again. P V has not been issued by then, so nothing has
//   to be undone. After a failure, a warp searches in the next two, four, eight ... steps. These
//   decisions depend on the tile alone, so results are reproducible and independent of the rest of
//   the batch.
//
// Rounding
//   The reference m of a row is in base-2 logarithms: P = 2^(s c - m). Where the maximum is
//   searched, s c is rounded as m is. So P of the maximum is exactly 1, and a row that sees one key
//   returns its value bit for bit.
//
// Traffic
//   Q, O and LSE once; K and V once per tile of queries and head, from L2 where the heads of a wave
//   share them.
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
