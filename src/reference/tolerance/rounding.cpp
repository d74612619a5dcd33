#include "reference/tolerance/rounding.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "reference/oracle/elements.h"
#include "reference/oracle/row.h"
#include "reference/oracle/sequences.h"

namespace tessera::reference {
namespace {

// All errors below are sums of what each step may do, to first order, in units of the accumulator's
// epsilon, as if no two of them ever cancelled. They mostly do: over 10,000 random problems the
// errors that cpu.flash2 and cpu.standard had beyond the model's stayed below 1/7 of these sums for
// out, lse and grad_v, and below 1/15 for the other gradients, whose terms differ in sign; about
// twice that is expected here. For fp64 the promise is absolute and the whole sum is kept.
struct Shares {
  double direct = 0.25;       // out, lse, grad_v
  double difference = 0.125;  // grad_q, grad_k, grad_bias
};

Shares shares_of(DType dtype) { return dtype == DType::fp64 ? Shares{1, 1} : Shares{}; }

// Of a dot product: each of its additions rounds the sum so far, a random walk as long as the
// vectors.
double dot_error(std::span<const double> a, std::span<const double> b) {
  double sizes = 0;
  for (std::size_t d = 0; d < a.size(); ++d) sizes += std::abs(a[d] * b[d]);
  return sizes * (1 + std::sqrt(static_cast<double>(a.size())) / 4);
}

// What rounding `out` to its type when it is stored does to <grad_out, out>, the mean that the
// gradient of softmax subtracts: half a unit per element, independent of each other. It happens in
// full, also in a row of one key, so it is enlarged by what `Shares::difference` will take away.
double stored_out_error(DType dtype, std::span<const double> grad_out, std::span<const double> out) {
  double squares = 0;
  for (std::size_t d = 0; d < out.size(); ++d) squares += grad_out[d] * out[d] * grad_out[d] * out[d];
  const double half_unit = epsilon(dtype) / 2 / epsilon(accumulator_of(dtype));
  return half_unit * std::sqrt(squares) / shares_of(dtype).difference;
}

// The relative error of each probability of a row, and the error of its LSE.
struct RowErrors {
  std::vector<double> probability;
  std::vector<double> derivative;  // absolute, of the softcap's derivative
  double lse = 0;
};

RowErrors errors_of(const Inputs& in, const SequenceSpan& s, std::int64_t head, std::int64_t i,
                    const Row& row) {
  const double scale = std::abs(score_scale(in.attention, in.q)), cap = in.attention.softcap;
  const std::vector<double> q = token_row(in.q, s.tensor_batch, s.q_begin + i, head);
  RowErrors errors{std::vector<double>(row.score.size()), std::vector<double>(row.score.size())};
  std::vector<double> score_error(row.score.size()), k(q.size());
  double mean = 0;  // of the scores' errors: what the LSE inherits
  for (std::int64_t j = 0; j < s.k_length; ++j) {
    if (!row.seen[j] || !std::isfinite(row.score[j])) continue;
    read_row(in.k, s.tensor_batch, s.k_begin + j, in.kv_head(head), k);
    const double product = scale * dot_error(q, k);
    double added = std::abs(alibi_bias(in.attention, s, head, i, j));
    if (in.bias.given()) {
      const Extents at = bias_index(in.bias, s, head, i, j);
      added += std::abs(read(in.bias, at[0], at[1], at[2], at[3]));
    }
    score_error[j] = row.derivative[j] * product + added + std::abs(row.score[j]);
    if (cap > 0) errors.derivative[j] = 1 + 2 * row.derivative[j] * product / cap;
    mean += row.probability[j] * score_error[j];
  }
  errors.lse = mean + std::abs(row.lse);
  for (std::size_t j = 0; j < score_error.size(); ++j) {
    errors.probability[j] = 1 + score_error[j] + errors.lse;
  }
  return errors;
}

void add_sizes(std::span<double> target, double factor, std::span<const double> source) {
  for (std::size_t d = 0; d < target.size(); ++d) target[d] += std::abs(factor * source[d]);
}

void scale_all(std::vector<double>& values, double factor) {
  for (double& x : values) x *= factor;
}

// Adds up what one row of one head after the other contributes to the error of every result.
class ErrorSums {
 public:
  ErrorSums(const Inputs& in, const BackwardTensors& t)
      : in_(in),
        t_(t),
        out_shape_{t.q.shape[0], t.q.shape[1], t.q.shape[2], t.v.shape[3]},
        lse_shape_{t.q.shape[0], t.q.shape[2], t.q.shape[1], 1},
        sums_{{zeros(out_shape_), zeros(lse_shape_)},
              {zeros(t.q.shape), zeros(t.k.shape), zeros(t.v.shape), zeros(t.bias.shape)}} {}

  void add_row(const SequenceSpan& s, std::int64_t head, std::int64_t i) {
    const Row row = row_of_scores(in_, s, head, i);
    if (!std::isfinite(row.lse)) return;
    const RowErrors errors = errors_of(in_, s, head, i, row);
    const std::int64_t batch = s.tensor_batch, token = s.q_begin + i, kv_head = in_.kv_head(head);
    const std::vector<double> grad_out = token_row(t_.grad_out, batch, token, head);
    const std::vector<double> q = token_row(in_.q, batch, token, head);
    const double grad_lse = t_.grad_lse.given() ? read(t_.grad_lse, batch, head, token, 0) : 0;
    const double scale = std::abs(score_scale(in_.attention, in_.q));
    // With few keys there is little to cancel: a row of one key may use three times its share.
    const double few = 1 + 2.0 / static_cast<double>(std::count(row.seen.begin(), row.seen.end(), 1));
    sums_.forward.lse[dense_index(lse_shape_, batch, head, token, 0)] = errors.lse;

    // dP with its error, and the mean that softmax subtracts, with its error.
    std::vector<double> grad(row.score.size()), grad_error(row.score.size());
    std::vector<double> out(grad_out.size()), v(grad_out.size()), k(q.size());
    double mean = 0, mean_error = std::abs(grad_lse);
    for (std::int64_t j = 0; j < s.k_length; ++j) {
      if (!row.seen[j]) continue;
      const double p = row.probability[j] * row.kept[j];
      read_row(in_.v, batch, s.k_begin + j, kv_head, v);
      grad[j] = row.kept[j] * dot(grad_out, v);
      grad_error[j] = row.kept[j] * dot_error(grad_out, v);
      mean += row.probability[j] * grad[j];
      mean_error += row.probability[j] * errors.probability[j] * grad_error[j];
      for (std::size_t d = 0; d < out.size(); ++d) out[d] += p * v[d];
      add_sizes(dense_row(sums_.forward.out, out_shape_, batch, token, head), p * errors.probability[j], v);
      add_sizes(dense_row(sums_.gradients.v, in_.v.shape, batch, s.k_begin + j, kv_head),
                p * errors.probability[j], grad_out);
    }
    mean_error += stored_out_error(in_.q.dtype, grad_out, out);

    for (std::int64_t j = 0; j < s.k_length; ++j) {
      if (!row.seen[j]) continue;
      const double p = row.probability[j];
      const double difference = std::abs(grad[j] - mean + grad_lse);
      const double error = few * p * (errors.probability[j] * difference + grad_error[j] + mean_error);
      if (in_.bias.given()) {
        const Extents at = bias_index(in_.bias, s, head, i, j);
        sums_.gradients.bias[dense_index(in_.bias.shape, at[0], at[1], at[2], at[3])] += error;
      }
      const double product_error =
          scale * (error * row.derivative[j] + p * difference * errors.derivative[j]);
      read_row(in_.k, batch, s.k_begin + j, kv_head, k);
      add_sizes(dense_row(sums_.gradients.q, in_.q.shape, batch, token, head), product_error, k);
      add_sizes(dense_row(sums_.gradients.k, in_.k.shape, batch, s.k_begin + j, kv_head), product_error, q);
    }
  }

  // The shares of it that are to be expected, as absolute errors.
  Rounding expected() && {
    const Shares shares = shares_of(in_.q.dtype);
    const double unit = epsilon(accumulator_of(in_.q.dtype));
    for (std::vector<double>* values : {&sums_.forward.out, &sums_.forward.lse, &sums_.gradients.v}) {
      scale_all(*values, unit * shares.direct);
    }
    for (std::vector<double>* values : {&sums_.gradients.q, &sums_.gradients.k, &sums_.gradients.bias}) {
      scale_all(*values, unit * shares.difference);
    }
    return std::move(sums_);
  }

 private:
  const Inputs& in_;
  const BackwardTensors& t_;
  Extents out_shape_, lse_shape_;
  Rounding sums_;
};

}  // namespace

Rounding expected_rounding(const Attention& attention, const BackwardTensors& t) {
  const Inputs in{attention, t.q, t.k, t.v, t.bias, t.visible};
  ErrorSums sums(in, t);
  for (const SequenceSpan& s : sequences(attention, t.q, t.k)) {
    for (std::int64_t head = 0; head < t.q.shape[2]; ++head) {
      for (std::int64_t i = 0; i < s.q_length; ++i) sums.add_row(s, head, i);
    }
  }
  return std::move(sums).expected();
}

}  // namespace tessera::reference
