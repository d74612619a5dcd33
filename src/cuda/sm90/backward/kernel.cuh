// The Hopper backward kernel: dK, dV and, by fp32 reductions, dQ, in 16-bit types as an asynchronous pipeline of TMA
// and wgmma. flash2's prepare kernel comes before it (delta = rowsum(dO o O) - dLSE, the LSE in base-2 logarithms,
// zeros for the sums of dQ and for the counter of tiles), flash2's finish kernel after it (dQ = scale * sums, as rows).
//
// One thread block per multiprocessor stays for the whole call and takes tiles of 128 keys of a key/value head: the
// first by its number, the others from an atomic counter. One thread loads (loader.cuh): K and V once per
// tile, in two stages, so that those of the next tile arrive during this one; Q, dO and their statistics once per step,
// in two stages. Two warp groups compute (consumer.cuh), 64 keys of the tile each, and walk over the queries
// that see the tile, head by head of the group that shares K and V: 128 queries a step at head_dim 64, 64 at 128.
//
//     S^T  = K Q^T                                 wgmma, both from shared memory; keys are rows
//     dP^T = V dO^T                                64 queries at a time: at head_dim 64 in two parts
//     P = 2^(S c - LSE),  dS = P o (dP - delta)    in registers; dS besides to shared memory (two stages)
//     dV += P^T dO,  dK += dS^T Q                  P^T and dS^T are A operands as they stand in registers
//     dQ = dS K, of the step before                64 x 64 by each warp group, over all 128 keys: half of the
//                                                  queries at head_dim 64, half of the columns at 128
//
//     tensor cores   dQ(n-1) dV(n) dK(n) S(n+1) dP(n+1)                          dQ(n) dV(n+1) dK(n+1) S(n+2) ...
//     registers          dQ(n-1) to the sums               softmax and dS (n+1)     dQ(n) to the sums
//     the other one                                     dQ dV dK S dP of its own
//
// dQ needs dS of both warp groups. A step later both have stored theirs, so nobody waits for the other's softmax. What
// stands together above is a turn: warp groups take turns, and one's softmax falls under the other's products. (The
// second part of dP at head_dim 64 is issued out of turn, when the first has become dS: there are no registers for
// both.)
//
// dQ goes from registers to its sums by `red.v4` of fp32, in blocks in the order of the accumulators, which finish
// turns into rows. The order of these additions differs from run to run; dK and dV have one owner and do not differ. dK
// and dV leave through the room of their tile's K and V, 16 rows by a warp, as TMA boxes; rows at the end of a packed
// sequence one by one. That room goes back to the loader in the first step of the next tile.
//
// What is not finite. P and dS are exactly 0 where a query does not see a key, but 0 times NaN is NaN. In steps that a
// mask or the end of a sequence cuts a warp group looks whether any of its scores or dP is not finite. If so, P becomes
// NaN where dP is not finite (dV has to show it), Q and dO in shared memory are rid of such numbers before dV and dK,
// and this step's dQ is computed again by `mma.sync`, without such numbers of K, in place of what wgmma gave. Pairs
// that see each other are NaN by their own score or dP. Steps that nothing cuts need nothing of this.
//
// Dropout. A Philox call serves one query and eight of 32 neighbouring keys, which are spread over two lanes of each of
// two warps. Each of the four draws a quarter of the queries; outcomes go to the other warp through shared memory and
// to the other lane by a shuffle, as bits. dS = kept P o dP - P o delta; what is kept is scaled at the end of all sums.
//
// Traffic: K, V, dK and dV once. Per tile of 128 keys and query that sees it, for every query head: Q and dO (4
// head_dim bytes, from L2 where tiles of a head run together), 8 bytes of statistics, and 4 head_dim bytes of
// reductions, which is 0.4 / 128 bytes per FLOP for the loads and as much for the reductions. prepare and finish: O, dO
// and dQ once, and the sums, 4 head_dim bytes per query and head, once written and once read.
#pragma once

#include "cuda/common/instances.h"
#include "cuda/sm90/backward/consumer.cuh"
#include "cuda/sm90/backward/epilogue.cuh"
#include "cuda/sm90/backward/loader.cuh"
#include "cuda/sm90/backward/scores.cuh"
#include "cuda/sm90/common/entry.cuh"

namespace tessera::cuda::hopper {

template <typename Config>
__global__ void __launch_bounds__(Config::value.threads(), 1)
    hopper_backward_kernel(const __grid_constant__ BackwardArguments arguments) {
  constexpr auto C = Config::value;
  sm90::run_warp_groups<C, BackwardMemory<C>, BackwardLoader<C>, BackwardConsumer<C>>(arguments);
}

// The instance of a config, for instances().
inline constexpr auto kInstanceOf = []<typename C>(C) {
  return BackwardInstance{C::value, hopper_backward_kernel<C>};
};

}  // namespace tessera::cuda::hopper
