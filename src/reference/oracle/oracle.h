// The oracle: attention by its definition, one row after the other, in fp64. It reads the public
// options and the caller's tensors itself. It shares with the engines only the definitions of a
// band, of a kept block and of a random bit. Nothing here is meant to be fast.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/attention.h"

namespace tessera::reference {

struct Forward {
  std::vector<double> out;  // in the shape of `out`, without gaps
  std::vector<double> lse;  // in the shape of `lse`, without gaps
};

// Each in the shape of its tensor, without gaps; `bias` is empty when there is no bias.
struct Gradients {
  std::vector<double> q, k, v, bias;
};

// One row of one query head; `row` counts within the batch entry or packed sequence.
struct RowIndex {
  std::int64_t sequence = 0;
  std::int64_t head = 0;
  std::int64_t row = 0;
};

// Output and LSE, from q, k, v, bias and visible.
Forward oracle_forward(const Attention& attention, const ForwardTensors& tensors);

// The gradients of the contract, from q, k, v, bias, visible, grad_out and grad_lse. Recomputed
// from the exact forward, not from the given `out` and `lse`: their rounding errors count as the
// engine's.
Gradients oracle_backward(const Attention& attention, const BackwardTensors& tensors);

// Output and LSE of some rows only: out[r * v_dim + d] and lse[r] belong to rows[r].
Forward forward_rows(const Attention& attention, const ForwardTensors& tensors,
                     std::span<const RowIndex> rows);

}  // namespace tessera::reference
