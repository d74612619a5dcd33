#include "reference/oracle/row.h"

#include <cmath>

#include "reference/oracle/elements.h"

namespace tessera::reference {
namespace {

void fill_scores(const Inputs& in, const SequenceSpan& s, std::int64_t head, std::int64_t i, Row& row) {
  const double scale = score_scale(in.attention, in.q), cap = in.attention.softcap;
  const std::vector<double> q = token_row(in.q, s.tensor_batch, s.q_begin + i, head);
  const DropoutFactors dropout(in.attention, s, head);
  std::vector<double> k(q.size());
  for (std::int64_t j = 0; j < s.k_length; ++j) {
    if (!visible(in.attention, s, head, i, j) || !shows(in.visible, s, head, i, j)) continue;
    read_row(in.k, s.tensor_batch, s.k_begin + j, in.kv_head(head), k);
    double score = scale * dot(q, k);
    row.derivative[j] = 1;
    if (cap > 0) {
      const double bent = std::tanh(score / cap);
      score = cap * bent;
      row.derivative[j] = 1 - bent * bent;
    }
    score += alibi_bias(in.attention, s, head, i, j);
    if (in.bias.given()) {
      const Extents at = bias_index(in.bias, s, head, i, j);
      const double bias = read(in.bias, at[0], at[1], at[2], at[3]);
      if (bias == kMinusInfinity) continue;  // hides the key as a mask does
      score += bias;
    }
    row.seen[j] = 1;
    row.score[j] = score;
    row.kept[j] = dropout(i, j);
  }
}

// probability = exp(score) / sum of exp(score), lse = log(sum). A row whose visible scores are all
// -inf is like one that sees nothing; a NaN score makes the whole row NaN.
void softmax(Row& row) {
  double maximum = kMinusInfinity;
  bool has_nan = false;
  for (std::size_t j = 0; j < row.score.size(); ++j) {
    if (!row.seen[j]) continue;
    has_nan = has_nan || std::isnan(row.score[j]);
    if (row.score[j] > maximum) maximum = row.score[j];
  }
  if (maximum == kMinusInfinity && !has_nan) return;
  double sum = 0;
  for (std::size_t j = 0; j < row.score.size(); ++j) {
    if (!row.seen[j]) continue;
    row.probability[j] = std::exp(row.score[j] - maximum);
    sum += row.probability[j];
  }
  for (double& p : row.probability) p /= sum;
  row.lse = maximum + std::log(sum);
}

}  // namespace

double dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (std::size_t d = 0; d < a.size(); ++d) sum += a[d] * b[d];
  return sum;
}

std::vector<double> token_row(const Tensor& tensor, std::int64_t batch, std::int64_t token,
                              std::int64_t head) {
  std::vector<double> row(static_cast<std::size_t>(tensor.shape[3]));
  read_row(tensor, batch, token, head, row);
  return row;
}

std::span<double> dense_row(std::vector<double>& all, const Extents& shape, std::int64_t batch,
                            std::int64_t token, std::int64_t head) {
  return std::span(all).subspan(static_cast<std::size_t>(dense_index(shape, batch, token, head, 0)),
                                static_cast<std::size_t>(shape[3]));
}

std::vector<double> zeros(const Extents& shape) {
  return std::vector<double>(static_cast<std::size_t>(count(shape)));
}

Row row_of_scores(const Inputs& in, const SequenceSpan& s, std::int64_t head, std::int64_t i) {
  const auto columns = static_cast<std::size_t>(s.k_length);
  Row row{.seen = std::vector<char>(columns),
          .score = std::vector<double>(columns),
          .derivative = std::vector<double>(columns),
          .probability = std::vector<double>(columns),
          .kept = std::vector<double>(columns)};
  fill_scores(in, s, head, i, row);
  softmax(row);
  return row;
}

}  // namespace tessera::reference
