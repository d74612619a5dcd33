#include "reference/oracle.h"

#include <cmath>
#include <limits>

#include "reference/elements.h"
#include "reference/sequences.h"

namespace tessera::reference {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// The inputs both directions read.
struct Inputs {
  const Attention& attention;
  const Tensor &q, &k, &v, &bias;

  [[nodiscard]] std::int64_t kv_head(std::int64_t head) const { return head / (q.shape[2] / k.shape[2]); }
};

// One row of the matrix of scores, by column; columns it does not see hold zeros.
struct Row {
  std::vector<char> seen;
  std::vector<double> score;        // softcap(scale * q.k) + bias + alibi
  std::vector<double> derivative;   // of the score by the scaled product q.k: 1 without softcap
  std::vector<double> probability;  // softmax of the scores
  std::vector<double> kept;         // what dropout multiplies the probability with
  double lse = kMinusInfinity;
};

double dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (std::size_t d = 0; d < a.size(); ++d) sum += a[d] * b[d];
  return sum;
}

std::vector<double> row_of(const Tensor& tensor, std::int64_t batch, std::int64_t token, std::int64_t head) {
  std::vector<double> row(static_cast<std::size_t>(tensor.shape[3]));
  read_row(tensor, batch, token, head, row);
  return row;
}

void fill_scores(const Inputs& in, const SequenceSpan& s, std::int64_t head, std::int64_t i, Row& row) {
  const double scale = score_scale(in.attention, in.q), cap = in.attention.softcap;
  const std::vector<double> q = row_of(in.q, s.tensor_batch, s.q_begin + i, head);
  std::vector<double> k(q.size());
  for (std::int64_t j = 0; j < s.k_length; ++j) {
    if (!visible(in.attention, s, head, i, j)) continue;
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
      score += read(in.bias, at[0], at[1], at[2], at[3]);
    }
    row.seen[j] = 1;
    row.score[j] = score;
    row.kept[j] = dropout_factor(in.attention, s, head, i, j);
  }
}

// probability = exp(score) / sum of exp(score), lse = log(sum). A row whose visible scores are all -inf is
// like one that sees nothing; a NaN score makes the whole row NaN.
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

// out = sum over seen columns of probability * kept * v, written to `out`.
void weigh_values(const Inputs& in, const SequenceSpan& s, std::int64_t head, const Row& row,
                  std::span<double> out) {
  std::vector<double> v(out.size());
  for (std::int64_t j = 0; j < s.k_length; ++j) {
    if (!row.seen[j]) continue;
    read_row(in.v, s.tensor_batch, s.k_begin + j, in.kv_head(head), v);
    for (std::size_t d = 0; d < out.size(); ++d) out[d] += row.probability[j] * row.kept[j] * v[d];
  }
}

// target += factor * source
void add(std::span<double> target, double factor, std::span<const double> source) {
  for (std::size_t d = 0; d < target.size(); ++d) target[d] += factor * source[d];
}

std::span<double> dense_row(std::vector<double>& all, const Extents& shape, std::int64_t batch,
                            std::int64_t token, std::int64_t head) {
  return std::span(all).subspan(static_cast<std::size_t>(dense_index(shape, batch, token, head, 0)),
                                static_cast<std::size_t>(shape[3]));
}

// Adds what one row of one head contributes to all gradients.
void backward_row(const Inputs& in, const BackwardTensors& t, const SequenceSpan& s, std::int64_t head,
                  std::int64_t i, Gradients& grad) {
  const Row row = row_of_scores(in, s, head, i);
  if (row.lse == kMinusInfinity) return;  // a row that sees nothing has no gradient
  const double scale = score_scale(in.attention, in.q);
  const std::int64_t batch = s.tensor_batch, token = s.q_begin + i, kv_head = in.kv_head(head);
  const std::vector<double> grad_out = row_of(t.grad_out, batch, token, head);
  const std::vector<double> q = row_of(in.q, batch, token, head);
  const double grad_lse = t.grad_lse.given() ? read(t.grad_lse, batch, head, token, 0) : 0;

  // dP: the gradient of the probabilities, through dropout; its mean under P is what softmax subtracts.
  std::vector<double> grad_probability(row.probability.size());
  double mean = 0;
  for (std::int64_t j = 0; j < s.k_length; ++j) {
    if (!row.seen[j]) continue;
    const double grad_dropped = dot(grad_out, row_of(in.v, batch, s.k_begin + j, kv_head));
    grad_probability[j] = row.kept[j] * grad_dropped;
    mean += row.probability[j] * grad_probability[j];
  }
  for (std::int64_t j = 0; j < s.k_length; ++j) {
    if (!row.seen[j]) continue;
    add(dense_row(grad.v, in.v.shape, batch, s.k_begin + j, kv_head), row.probability[j] * row.kept[j],
        grad_out);
    // d lse / d score is the probability.
    const double grad_score = row.probability[j] * (grad_probability[j] - mean + grad_lse);
    if (in.bias.given()) {
      const Extents at = bias_index(in.bias, s, head, i, j);
      grad.bias[dense_index(in.bias.shape, at[0], at[1], at[2], at[3])] += grad_score;
    }
    const double grad_product = grad_score * row.derivative[j] * scale;
    add(dense_row(grad.q, in.q.shape, batch, token, head), grad_product,
        row_of(in.k, batch, s.k_begin + j, kv_head));
    add(dense_row(grad.k, in.k.shape, batch, s.k_begin + j, kv_head), grad_product, q);
  }
}

std::vector<double> zeros(const Extents& shape) {
  return std::vector<double>(static_cast<std::size_t>(count(shape)));
}

}  // namespace

Forward oracle_forward(const Attention& attention, const ForwardTensors& t) {
  const Inputs in{attention, t.q, t.k, t.v, t.bias};
  const Extents out_shape{t.q.shape[0], t.q.shape[1], t.q.shape[2], t.v.shape[3]};
  const Extents lse_shape{t.q.shape[0], t.q.shape[2], t.q.shape[1], 1};
  Forward result{zeros(out_shape), zeros(lse_shape)};
  for (const SequenceSpan& s : sequences(attention, t.q, t.k)) {
    for (std::int64_t head = 0; head < t.q.shape[2]; ++head) {
      for (std::int64_t i = 0; i < s.q_length; ++i) {
        const Row row = row_of_scores(in, s, head, i);
        const std::int64_t token = s.q_begin + i;
        weigh_values(in, s, head, row, dense_row(result.out, out_shape, s.tensor_batch, token, head));
        result.lse[dense_index(lse_shape, s.tensor_batch, head, token, 0)] = row.lse;
      }
    }
  }
  return result;
}

Gradients oracle_backward(const Attention& attention, const BackwardTensors& t) {
  const Inputs in{attention, t.q, t.k, t.v, t.bias};
  Gradients grad{zeros(t.q.shape), zeros(t.k.shape), zeros(t.v.shape), zeros(t.bias.shape)};
  for (const SequenceSpan& s : sequences(attention, t.q, t.k)) {
    for (std::int64_t head = 0; head < t.q.shape[2]; ++head) {
      for (std::int64_t i = 0; i < s.q_length; ++i) backward_row(in, t, s, head, i, grad);
    }
  }
  return grad;
}

Forward forward_rows(const Attention& attention, const ForwardTensors& t, std::span<const RowIndex> rows) {
  const Inputs in{attention, t.q, t.k, t.v, t.bias};
  const std::vector<SequenceSpan> all = sequences(attention, t.q, t.k);
  const auto width = static_cast<std::size_t>(t.v.shape[3]);
  Forward result{std::vector<double>(rows.size() * width), std::vector<double>(rows.size())};
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const SequenceSpan& s = all.at(static_cast<std::size_t>(rows[r].sequence));
    const Row row = row_of_scores(in, s, rows[r].head, rows[r].row);
    weigh_values(in, s, rows[r].head, row, std::span(result.out).subspan(r * width, width));
    result.lse[r] = row.lse;
  }
  return result;
}

}  // namespace tessera::reference
