// What the analysis of FlashAttention says about a problem, from the library's cost model.
#pragma once

#include "core/cost.h"
#include "lab/measure/rows.h"
#include "lab/problem/operation.h"

namespace tessera::lab {

// The cost of a problem with any algorithm and tile, also those that no kernel has. Throws Error.
core::Cost cost_of(const Operation& operation, Direction direction, Algorithm algorithm, std::int64_t block_q,
                   std::int64_t block_k, double fast_memory_bytes);

// The floating-point operations that an algorithm executes with these tiles, where `flops` of a
// plan is nominal: 2 or 5 products over the visible pairs. With P pairs in the tiles that are not
// skipped (standard: all pairs), R rows of queries, and T rows counted once for each tile of keys
// that they meet:
//
//   forward    2 P (d_qk + d_v)      the two products
//              5 P (+ P)             scale, maximum, subtraction, exponential, sum (dropout)
//     standard P                     each probability divided by its sum
//     flash1   T (3 d_v + 1)         output multiplied by its sum, rescaled, divided by the new sum
//     others   T (d_v + 1) + R d_v   output and sum rescaled; output divided at the end
//   backward   2 P (3 d_qk + 2 d_v)  S again, dP, dV, dQ, dK
//              5 P (+ 2 P)           P again from S and the LSE, dS (dropout)
//              2 R d_v               delta
//
// An exponential counts as one. Throws Error.
double executed_flops(const Operation& operation, Direction direction, Algorithm algorithm,
                      std::int64_t block_q, std::int64_t block_k);

// For tiles of block_q queries and block_k keys. Throws Error.
Theory theory_of(const Operation& operation, Direction direction, std::int64_t block_q, std::int64_t block_k);

}  // namespace tessera::lab
