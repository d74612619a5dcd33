#include "reference/oracle/oracle.h"

#include "reference/oracle/elements.h"
#include "reference/oracle/row.h"
#include "reference/oracle/sequences.h"

namespace tessera::reference {
namespace {

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

// Adds what one row of one head contributes to all gradients.
void backward_row(const Inputs& in, const BackwardTensors& t, const SequenceSpan& s, std::int64_t head,
                  std::int64_t i, Gradients& grad) {
  const Row row = row_of_scores(in, s, head, i);
  if (row.lse == kMinusInfinity) return;  // a row that sees nothing has no gradient
  const double scale = score_scale(in.attention, in.q);
  const std::int64_t batch = s.tensor_batch, token = s.q_begin + i, kv_head = in.kv_head(head);
  const std::vector<double> grad_out = token_row(t.grad_out, batch, token, head);
  const std::vector<double> q = token_row(in.q, batch, token, head);
  const double grad_lse = t.grad_lse.given() ? read(t.grad_lse, batch, head, token, 0) : 0;

  // dP: the gradient of the probabilities, through dropout; its mean under P is what softmax
  // subtracts.
  std::vector<double> grad_probability(row.probability.size()), k(q.size()), v(grad_out.size());
  double mean = 0;
  for (std::int64_t j = 0; j < s.k_length; ++j) {
    if (!row.seen[j]) continue;
    read_row(in.v, batch, s.k_begin + j, kv_head, v);
    grad_probability[j] = row.kept[j] * dot(grad_out, v);
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
    read_row(in.k, batch, s.k_begin + j, kv_head, k);
    add(dense_row(grad.q, in.q.shape, batch, token, head), grad_product, k);
    add(dense_row(grad.k, in.k.shape, batch, s.k_begin + j, kv_head), grad_product, q);
  }
}

}  // namespace

Forward oracle_forward(const Attention& attention, const ForwardTensors& t) {
  const Inputs in{attention, t.q, t.k, t.v, t.bias, t.visible};
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
  const Inputs in{attention, t.q, t.k, t.v, t.bias, t.visible};
  Gradients grad{zeros(t.q.shape), zeros(t.k.shape), zeros(t.v.shape), zeros(t.bias.shape)};
  for (const SequenceSpan& s : sequences(attention, t.q, t.k)) {
    for (std::int64_t head = 0; head < t.q.shape[2]; ++head) {
      for (std::int64_t i = 0; i < s.q_length; ++i) backward_row(in, t, s, head, i, grad);
    }
  }
  return grad;
}

Forward forward_rows(const Attention& attention, const ForwardTensors& t, std::span<const RowIndex> rows) {
  const Inputs in{attention, t.q, t.k, t.v, t.bias, t.visible};
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
