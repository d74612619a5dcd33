#include "reference/tolerance/low_precision.h"

#include <cmath>
#include <limits>

#include "core/base/float16.h"
#include "reference/oracle/elements.h"
#include "reference/oracle/sequences.h"

namespace tessera::reference {
namespace {

// A matrix in row-major order, in the accumulator type A.
template <typename A>
struct Matrix {
  std::int64_t rows = 0, columns = 0;
  std::vector<A> values{};

  Matrix(std::int64_t r, std::int64_t c) : rows(r), columns(c), values(static_cast<std::size_t>(r * c)) {}
  A& operator()(std::int64_t r, std::int64_t c) { return values[r * columns + c]; }
  const A& operator()(std::int64_t r, std::int64_t c) const { return values[r * columns + c]; }

  [[nodiscard]] Matrix transposed() const {
    Matrix result(columns, rows);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < columns; ++c) result(c, r) = (*this)(r, c);
    }
    return result;
  }
};

// `value` rounded to the type of the tensors.
template <typename A>
A rounded(DType dtype, A value) {
  switch (dtype) {
    case DType::fp16: return static_cast<A>(core::to_float(core::to_half(static_cast<float>(value))));
    case DType::bf16: return static_cast<A>(core::to_float(core::to_bfloat16(static_cast<float>(value))));
    default: return value;  // fp32 accumulates in fp32, fp64 in fp64
  }
}

// round(factor * a b^T), b given by its rows; each sum in order, in the accumulator type.
template <typename A>
Matrix<A> multiply(DType dtype, const Matrix<A>& a, const Matrix<A>& b, A factor = 1) {
  Matrix<A> result(a.rows, b.rows);
  for (std::int64_t r = 0; r < a.rows; ++r) {
    for (std::int64_t c = 0; c < b.rows; ++c) {
      A sum = 0;
      for (std::int64_t d = 0; d < a.columns; ++d) sum += a(r, d) * b(c, d);
      result(r, c) = rounded(dtype, factor * sum);
    }
  }
  return result;
}

template <typename A>
Matrix<A> load(const Tensor& t, std::int64_t batch, std::int64_t begin, std::int64_t length,
               std::int64_t head) {
  Matrix<A> result(length, t.shape[3]);
  for (std::int64_t r = 0; r < length; ++r) {
    for (std::int64_t d = 0; d < t.shape[3]; ++d) {
      result(r, d) = static_cast<A>(read(t, batch, begin + r, head, d));
    }
  }
  return result;
}

template <typename A>
void add_to(std::vector<double>& dense, const Extents& shape, std::int64_t batch, std::int64_t begin,
            std::int64_t head, const Matrix<A>& part) {
  for (std::int64_t r = 0; r < part.rows; ++r) {
    for (std::int64_t d = 0; d < part.columns; ++d) {
      double& target = dense[dense_index(shape, batch, begin + r, head, d)];
      target = static_cast<A>(target) + part(r, d);
    }
  }
}

// Everything the forward of one head of one sequence leaves behind.
template <typename A>
struct Head {
  Matrix<A> q, k, v;
  Matrix<A> derivative;   // of the softcap
  Matrix<A> probability;  // rounded to the type
  Matrix<A> dropped;      // probability * dropout factor, rounded
  std::vector<A> lse;
};

template <typename A>
class Model {
 public:
  Model(const Attention& attention, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& bias,
        const Tensor& visible)
      : attention_(attention), q_(q), k_(k), v_(v), bias_(bias), visible_(visible), dtype_(q.dtype) {}

  Forward forward() {
    const Extents out_shape{q_.shape[0], q_.shape[1], q_.shape[2], v_.shape[3]};
    const Extents lse_shape{q_.shape[0], q_.shape[2], q_.shape[1], 1};
    Forward result{zeros(out_shape), zeros(lse_shape)};
    for_each_head([&](const SequenceSpan& s, std::int64_t head) {
      const Head<A> h = run_head(s, head);
      add_to(result.out, out_shape, s.tensor_batch, s.q_begin, head,
             multiply(dtype_, h.dropped, h.v.transposed()));
      for (std::int64_t i = 0; i < s.q_length; ++i) {
        result.lse[dense_index(lse_shape, s.tensor_batch, head, s.q_begin + i, 0)] = h.lse[i];
      }
    });
    return result;
  }

  // Heads that share keys and values, and broadcast biases, are summed in the accumulator type as a
  // framework reduces them, and rounded once more at the end.
  Gradients backward(const Tensor& grad_out, const Tensor& grad_lse) {
    Gradients grad{zeros(q_.shape), zeros(k_.shape), zeros(v_.shape), zeros(bias_.shape)};
    for_each_head(
        [&](const SequenceSpan& s, std::int64_t head) { backward_head(s, head, grad_out, grad_lse, grad); });
    for (double& x : grad.k) x = rounded(dtype_, static_cast<A>(x));
    for (double& x : grad.v) x = rounded(dtype_, static_cast<A>(x));
    for (double& x : grad.bias) x = rounded(bias_.dtype, static_cast<A>(x));
    return grad;
  }

 private:
  static std::vector<double> zeros(const Extents& shape) {
    return std::vector<double>(static_cast<std::size_t>(count(shape)));
  }

  template <typename Visit>
  void for_each_head(Visit&& visit) {
    for (const SequenceSpan& s : sequences(attention_, q_, k_)) {
      for (std::int64_t head = 0; head < q_.shape[2]; ++head) visit(s, head);
    }
  }

  std::int64_t kv_head(std::int64_t head) const { return head / (q_.shape[2] / k_.shape[2]); }

  Head<A> run_head(const SequenceSpan& s, std::int64_t head) {
    Head<A> h{.q = load<A>(q_, s.tensor_batch, s.q_begin, s.q_length, head),
              .k = load<A>(k_, s.tensor_batch, s.k_begin, s.k_length, kv_head(head)),
              .v = load<A>(v_, s.tensor_batch, s.k_begin, s.k_length, kv_head(head)),
              .derivative = Matrix<A>(s.q_length, s.k_length),
              .probability = Matrix<A>(s.q_length, s.k_length),
              .dropped = Matrix<A>(s.q_length, s.k_length),
              .lse = std::vector<A>(static_cast<std::size_t>(s.q_length))};
    Matrix<A> scores = multiply(dtype_, h.q, h.k, static_cast<A>(score_scale(attention_, q_)));
    const DropoutFactors dropout(attention_, s, head);
    for (std::int64_t i = 0; i < s.q_length; ++i) {
      for (std::int64_t j = 0; j < s.k_length; ++j) adjust(s, head, i, j, scores, h.derivative);
      h.lse[i] = softmax_row(i, scores, h.probability);
      for (std::int64_t j = 0; j < s.k_length; ++j) {
        const auto factor = static_cast<A>(dropout(i, j));
        h.dropped(i, j) = rounded(dtype_, h.probability(i, j) * factor);
      }
    }
    return h;
  }

  // Softcap, biases and mask on one score.
  void adjust(const SequenceSpan& s, std::int64_t head, std::int64_t i, std::int64_t j, Matrix<A>& scores,
              Matrix<A>& derivative) {
    A& score = scores(i, j);
    derivative(i, j) = 1;
    if (attention_.softcap > 0) {
      const auto cap = static_cast<A>(attention_.softcap);
      const A bent = rounded(dtype_, std::tanh(rounded(dtype_, score / cap)));
      score = rounded(dtype_, cap * bent);
      derivative(i, j) = rounded(dtype_, 1 - bent * bent);
    }
    if (attention_.alibi.slopes != nullptr) {
      score = rounded(dtype_, score + static_cast<A>(alibi_bias(attention_, s, head, i, j)));
    }
    bool hidden = !visible(attention_, s, head, i, j) || !shows(visible_, s, head, i, j);
    if (bias_.given()) {
      const Extents at = bias_index(bias_, s, head, i, j);
      const auto bias = static_cast<A>(read(bias_, at[0], at[1], at[2], at[3]));
      hidden = hidden || bias == -std::numeric_limits<A>::infinity();
      score = rounded(dtype_, score + bias);
    }
    if (hidden) score = -std::numeric_limits<A>::infinity();
  }

  A softmax_row(std::int64_t i, const Matrix<A>& scores, Matrix<A>& probability) {
    A maximum = -std::numeric_limits<A>::infinity();
    for (std::int64_t j = 0; j < scores.columns; ++j) {
      if (!(scores(i, j) <= maximum)) maximum = scores(i, j);
    }
    if (maximum == -std::numeric_limits<A>::infinity()) return maximum;
    A sum = 0;
    for (std::int64_t j = 0; j < scores.columns; ++j) sum += std::exp(scores(i, j) - maximum);
    for (std::int64_t j = 0; j < scores.columns; ++j) {
      probability(i, j) = rounded(dtype_, std::exp(scores(i, j) - maximum) / sum);
    }
    return maximum + std::log(sum);
  }

  void backward_head(const SequenceSpan& s, std::int64_t head, const Tensor& grad_out_tensor,
                     const Tensor& grad_lse_tensor, Gradients& grad) {
    const Head<A> h = run_head(s, head);
    const std::int64_t batch = s.tensor_batch;
    const Matrix<A> grad_out = load<A>(grad_out_tensor, batch, s.q_begin, s.q_length, head);
    const Matrix<A> grad_dropped = multiply(dtype_, grad_out, h.v);
    Matrix<A> grad_scores(s.q_length, s.k_length);
    for (std::int64_t i = 0; i < s.q_length; ++i) {
      const A grad_lse = grad_lse_tensor.given()
                             ? static_cast<A>(read(grad_lse_tensor, batch, head, s.q_begin + i, 0))
                             : A{0};
      softmax_backward_row(s, head, i, h, grad_dropped, grad_lse, grad_scores);
      add_bias_gradient(s, head, i, grad_scores, grad.bias);
      for (std::int64_t j = 0; j < s.k_length; ++j) {
        grad_scores(i, j) = rounded(dtype_, grad_scores(i, j) * h.derivative(i, j));
      }
    }
    const auto scale = static_cast<A>(score_scale(attention_, q_));
    add_to(grad.v, v_.shape, batch, s.k_begin, kv_head(head),
           multiply(dtype_, h.dropped.transposed(), grad_out.transposed()));
    add_to(grad.q, q_.shape, batch, s.q_begin, head, multiply(dtype_, grad_scores, h.k.transposed(), scale));
    add_to(grad.k, k_.shape, batch, s.k_begin, kv_head(head),
           multiply(dtype_, grad_scores.transposed(), h.q.transposed(), scale));
  }

  void softmax_backward_row(const SequenceSpan& s, std::int64_t head, std::int64_t i, const Head<A>& h,
                            const Matrix<A>& grad_dropped, A grad_lse, Matrix<A>& grad_scores) {
    const DropoutFactors dropout(attention_, s, head);
    A mean = 0;
    for (std::int64_t j = 0; j < s.k_length; ++j) {
      const auto factor = static_cast<A>(dropout(i, j));
      grad_scores(i, j) = rounded(dtype_, grad_dropped(i, j) * factor);
      mean += h.probability(i, j) * grad_scores(i, j);
    }
    for (std::int64_t j = 0; j < s.k_length; ++j) {
      grad_scores(i, j) = rounded(dtype_, h.probability(i, j) * (grad_scores(i, j) - mean + grad_lse));
    }
  }

  void add_bias_gradient(const SequenceSpan& s, std::int64_t head, std::int64_t i,
                         const Matrix<A>& grad_scores, std::vector<double>& grad_bias) {
    if (!bias_.given()) return;
    for (std::int64_t j = 0; j < s.k_length; ++j) {
      const Extents at = bias_index(bias_, s, head, i, j);
      double& target = grad_bias[dense_index(bias_.shape, at[0], at[1], at[2], at[3])];
      target = static_cast<A>(target) + grad_scores(i, j);
    }
  }

  const Attention& attention_;
  const Tensor &q_, &k_, &v_, &bias_, &visible_;
  DType dtype_;
};

// Calls f with a model in the accumulator type of q.
template <typename F>
auto with_model(const Attention& attention, const Tensor& q, const Tensor& k, const Tensor& v,
                const Tensor& bias, const Tensor& visible, F&& f) {
  if (q.dtype == DType::fp64) return f(Model<double>(attention, q, k, v, bias, visible));
  return f(Model<float>(attention, q, k, v, bias, visible));
}

}  // namespace

Forward model_forward(const Attention& attention, const ForwardTensors& t) {
  return with_model(attention, t.q, t.k, t.v, t.bias, t.visible, [](auto model) { return model.forward(); });
}

Gradients model_backward(const Attention& attention, const BackwardTensors& t) {
  return with_model(attention, t.q, t.k, t.v, t.bias, t.visible,
                    [&](auto model) { return model.backward(t.grad_out, t.grad_lse); });
}

}  // namespace tessera::reference
