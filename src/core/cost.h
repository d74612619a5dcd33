// The cost model: what a problem costs in arithmetic, in memory traffic and in memory, for each
// algorithm.
//
// Symbols: a tensor's letter stands for its bytes (Q, K, V, O, L for the LSE, and their gradients
// dQ ...); `rows` is the number of query rows over batch and query heads; e is the size of an
// element, a of an accumulator; M the bytes of fast memory (a cache or shared memory, as the caller
// chooses).
//
// The mask decides how much of the matrix of scores is visited at all:
//   pairs         visible (query, key) pairs over batch and query heads
//   area          all pairs, visible or not
//   visited       pairs in tiles that are not skipped
//   key_loads     sum over tiles of block_q queries of the keys they visit
//   query_loads   sum over tiles of block_k keys of the queries that visit them
// all of them counted over the same tiles that the kernels visit (core/visibility.h).
//
//   reread(once, loads) = once if what a tile revisits fits in M, else max(once, loads)
//
// FLOPs, by FlashAttention's convention: 2 * pairs * (d_qk + d_v) forward and 2.5 times that
// backward, where a plain causal mask over a square counts as half of the square.
//
// minimum_bytes: every tensor once. Forward Q + K + V + O + L + bias; backward Q + K + V + O + L +
// dO (+ dL) + bias and the requested gradients. A boolean mask counts like a bias of one byte an
// element whose elements are all true.
//
// traffic_bytes
//   standard      Theta(N d + N^2), whatever the mask. Minimum + area * a * passes + bias reread;
//                 the matrix never counts as fitting in M, as a batched matrix product leaves all
//                 of it behind.
//     forward     4 passes: S written; S read and P written by the softmax; P read. With dropout 2
//                 more.
//     backward    3 passes to compute P again (dropout: 5), 1 for dV, 4 for dS (dP written; P and
//                 dP read; dS written), 1 for each of dQ, dK and d(bias).
//   flash1        K + V + L + bias + reread(Q + O, query_loads * (d_qk e + 2 (d_v + 2) a)): the
//                 output, its maximum and its sum are read and written, in accumulators, per block
//                 of keys.
//     backward    K + V + dK + dV + L + bias + reread(Q + O + dO + dQ,
//                 query_loads * ((d_qk + 2 d_v) e + 2 a + 2 d_qk a)).
//   flash2        Theta(N^2 d^2 / M), since block_q * d grows with M:
//                 Q + O + L + bias + reread(K + V, key_loads * (d_qk + d_v) e).
//     backward    O + dO + delta to prepare; K + V + dK + dV + bias once; and reread(Q + dO + L +
//                 delta + dQ, query_loads * ((d_qk + d_v) e + 2 a + 2 d_qk a)): keys outside, dQ
//                 accumulated.
//   flash3, minimal and automatic count as flash2.
//   Keys that no query sees still count once, so that no algorithm is below the minimum.
//
// extra_bytes: what the algorithm needs besides Q, K, V, O and the gradients, workspace of threads
// excluded.
//   standard      area * a forward (S becomes P in place), twice that backward (P, dP).
//   flash1        maximum and sum of each row, and the output in accumulators unless e = a.
//     backward    the LSE, and dQ in accumulators unless e = a.
//   flash2        the LSE; backward the LSE, delta, and dQ in accumulators unless e = a.
#pragma once

#include <cstdint>

#include "core/problem.h"
#include "tessera/attention.h"

namespace tessera::core {

struct Cost {
  double visible_pairs = 0;
  double all_pairs = 0;      // area
  double visited_pairs = 0;  // visited
  double query_loads = 0;
  double flops = 0;
  double minimum_bytes = 0;
  double traffic_bytes = 0;
  double extra_bytes = 0;
};

// The cost of p.direction of a problem. Reads no data but the block mask and the cumulative
// lengths, which must be in host memory. Packed sequences whose lengths the host does not know
// (null, or on a device) all count as long as the longest. A tile of 0 is the whole length.
Cost cost(const Problem& p, Algorithm algorithm, std::int64_t block_q, std::int64_t block_k,
          double fast_memory_bytes);

}  // namespace tessera::core
