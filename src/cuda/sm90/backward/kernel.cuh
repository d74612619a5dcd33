// The Hopper backward kernel: dK, dV and, by fp32 reductions, dQ, for 16-bit types, as an
// asynchronous pipeline of TMA and wgmma. cuda.flash2's prepare kernel runs before it: delta =
// rowsum(dO o O) - dLSE, the LSE in base-2 logarithms, zeros for the sums of dQ and for the counter
// of tiles. Its finish kernel runs after it: dQ = scale * sums, as rows.
//
// Who does what. One thread block per multiprocessor stays for the whole call and takes tiles of
// 128 keys of a key/value head: the first by its number, the others from an atomic counter. One
// thread loads (loader.cuh). It loads K and V once per tile, in two stages, so that those of the
// next tile arrive during this one; and Q, dO and their statistics once per step, in two stages.
// Two warp groups compute (consumer.cuh), each for 64 keys of the tile. They walk over the queries
// that see the tile, head by head of the group that shares K and V: 128 queries a step at head_dim
// 64, and 64 at 128.
//
//   S^T  = K Q^T                              wgmma, both from shared memory; keys are rows
//   dP^T = V dO^T                             64 queries at a time: at head_dim 64 in two parts
//   P = 2^(S c - LSE), dS = P o (dP - delta)  in registers; dS also to shared memory (two stages)
//   dV += P^T dO,  dK += dS^T Q               P^T and dS^T are A operands as they are in registers
//   dQ = dS K, of the step before             64 x 64 by each warp group, over all 128 keys: half
//                                             of the queries at head_dim 64, half of the columns
//                                             at 128
//
// Schedule.
//
//   tensor cores  dQ(n-1) dV(n) dK(n) S(n+1) dP(n+1)                     dQ(n) dV(n+1) dK(n+1) ...
//   registers          dQ(n-1) to the sums             softmax, dS (n+1)      dQ(n) to the sums
//   other group                                      dQ dV dK S dP of its own
//
// dQ lags one step: it needs dS from both warp groups, and by then both have stored it, so neither
// waits for the other's softmax. The products that stand together above are a turn. The warp groups
// take turns, so that the softmax of one overlaps the products of the other. (At head_dim 64 there
// are no registers for both parts of dP. The second is issued outside the turn, when the first has
// become dS.)
//
// Where results go. dQ goes from registers to its sums (dq_sums.cuh) by fp32 reductions of four
// numbers. Their order differs from run to run. dK and dV have one owner and are bitwise
// reproducible. They leave through the room of their tile's K and V, 16 rows by each warp, as TMA
// boxes; rows at the end of a packed sequence leave number by number. That room goes back to the
// loader in the first step of the next tile.
//
// Non-finite inputs. P and dS are exactly 0 at masked positions, but 0 x NaN is NaN. In steps that
// a mask or the end of a sequence cuts, a warp group checks whether any of its scores or dP is not
// finite. If so, it does three things. P becomes NaN where dP is not finite, because dV has to show
// it. Q and dO in shared memory lose such values before dV and dK. And this step's dQ is computed
// again by `mma.sync`, without such values of K, in place of the result of wgmma. Visible pairs are
// NaN by their own score or dP. Steps that nothing cuts need none of this.
//
// Dropout. A Philox call covers one query and eight of 32 neighbouring keys, which are spread over
// two lanes of each of two warps. Each of the four lanes draws a quarter of the queries. The
// results, as bits, go to the other warp through shared memory and to the other lane by a shuffle.
// dS = kept P o dP - P o delta, and the factor of what is kept is applied to all sums at the end.
//
// Traffic. K, V, dK and dV once. Per tile of 128 keys and query that sees it, for every query head:
// Q and dO (4 head_dim bytes, from L2 where tiles of a head run together), 8 bytes of statistics,
// and 4 head_dim bytes of reductions. That is 0.4 / 128 bytes per FLOP for the loads and as much
// for the reductions. prepare and finish: O, dO and dQ once, and the sums, 4 head_dim bytes per
// query and head, once written and once read.
#pragma once

#include "cuda/common/instances.h"
#include "cuda/sm90/backward/consumer.cuh"
#include "cuda/sm90/backward/epilogue.cuh"
#include "cuda/sm90/backward/loader.cuh"
#include "cuda/sm90/backward/scores.cuh"
#include "cuda/sm90/common/entry.cuh"

namespace tessera::cuda::sm90::backward {

template <typename Config>
__global__ void __launch_bounds__(Config::value.threads(), 1)
    hopper_backward_kernel(const __grid_constant__ Arguments arguments) {
  constexpr auto C = Config::value;
  sm90::run_warp_groups<C, SharedMemory<C>, Loader<C>, Consumer<C>>(arguments);
}

// The instance of a config, for instances().
inline constexpr auto kInstanceOf = []<typename C>(C) {
  return Instance{C::value, hopper_backward_kernel<C>};
};

}  // namespace tessera::cuda::sm90::backward
