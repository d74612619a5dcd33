// One row of the matrix of scores, by the definition of the contract, in fp64.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "reference/oracle/sequences.h"
#include "tessera/attention.h"

namespace tessera::reference {

inline constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// The inputs that both directions read.
struct Inputs {
  const Attention& attention;
  const Tensor &q, &k, &v, &bias, &visible;

  [[nodiscard]] std::int64_t kv_head(std::int64_t head) const { return head / (q.shape[2] / k.shape[2]); }
};

// By column; 0 where the row does not see the column.
struct Row {
  std::vector<char> seen;
  std::vector<double> score;        // softcap(scale * q.k) + bias + alibi
  std::vector<double> derivative;   // of the score by the scaled product q.k: 1 without softcap
  std::vector<double> probability;  // softmax of the scores
  std::vector<double> kept;         // what dropout multiplies the probability with
  double lse = kMinusInfinity;
};

Row row_of_scores(const Inputs& in, const SequenceSpan& s, std::int64_t head, std::int64_t i);

// The head_dim elements of one token of one head.
std::vector<double> token_row(const Tensor& tensor, std::int64_t batch, std::int64_t token,
                              std::int64_t head);

// The same elements of a vector without gaps, writable.
std::span<double> dense_row(std::vector<double>& all, const Extents& shape, std::int64_t batch,
                            std::int64_t token, std::int64_t head);

double dot(std::span<const double> a, std::span<const double> b);

// As many zeros as a tensor of this shape has elements.
std::vector<double> zeros(const Extents& shape);

}  // namespace tessera::reference
