// The public options by their definition: the sequences, which keys each query sees, which elements
// dropout drops. Derived here from the public types alone, independently of the engines.
#pragma once

#include <cstdint>
#include <vector>

#include "core/band.h"
#include "core/philox.h"
#include "tessera/attention.h"

namespace tessera::reference {

// One batch entry or packed sequence.
struct SequenceSpan {
  std::int64_t index = 0;         // bias, ALiBi slopes and dropout count by it
  std::int64_t tensor_batch = 0;  // its batch index in q, k, v, out and lse: 0 when packed
  std::int64_t q_begin = 0, q_length = 0;
  std::int64_t k_begin = 0, k_length = 0;
  core::Band band{};  // in indices that count from the sequence's first row and column
};

std::vector<SequenceSpan> sequences(const Attention& attention, const Tensor& q, const Tensor& k);

// Whether row i of a head sees column j.
bool visible(const Attention& attention, const SequenceSpan& sequence, std::int64_t head, std::int64_t i,
             std::int64_t j);

// Whether the boolean mask, if there is one, shows column j to row i of a head.
bool shows(const Tensor& mask, const SequenceSpan& sequence, std::int64_t head, std::int64_t i,
           std::int64_t j);

// What ALiBi adds to the score of (i, j): 0 without it.
double alibi_bias(const Attention& attention, const SequenceSpan& sequence, std::int64_t head, std::int64_t i,
                  std::int64_t j);

// The factors by which dropout multiplies the probabilities of one head: for (i, j) 0 or 1 / (1 -
// probability); 1 without dropout.
class DropoutFactors {
 public:
  DropoutFactors(const Attention& attention, const SequenceSpan& sequence, std::int64_t head);
  [[nodiscard]] double operator()(std::int64_t i, std::int64_t j) const;

 private:
  double probability_ = 0;
  core::DropoutStream stream_{};
  std::int64_t first_row_ = 0, first_column_ = 0;
};

// The place of (i, j) in a bias or a boolean mask, whose sizes of 1 are broadcast.
Extents bias_index(const Tensor& bias, const SequenceSpan& sequence, std::int64_t head, std::int64_t i,
                   std::int64_t j);

// The scale of the scores: as given, or 1 / sqrt(head_dim).
double score_scale(const Attention& attention, const Tensor& q);

}  // namespace tessera::reference
