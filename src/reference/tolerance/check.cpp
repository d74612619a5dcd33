#include "reference/tolerance/check.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <sstream>

#include "reference/cases/device_case.h"
#include "reference/tolerance/low_precision.h"
#include "tessera/error.h"
#include "tessera/plan.h"

namespace tessera::reference {
namespace {

// Differences of two results of one shape, over the elements that are finite in both.
struct Distance {
  double largest = 0;
  double root_mean_square = 0;
  double cosine = 1;
  std::size_t worst = 0;  // where the largest is
};

Distance distance(std::span<const double> actual, std::span<const double> exact) {
  Distance d;
  double squares = 0, product = 0, actual_squares = 0, exact_squares = 0;
  std::size_t finite = 0;
  for (std::size_t e = 0; e < exact.size(); ++e) {
    if (!std::isfinite(exact[e]) || !std::isfinite(actual[e])) continue;
    ++finite;
    const double error = std::abs(actual[e] - exact[e]);
    if (error > d.largest) {
      d.largest = error;
      d.worst = e;
    }
    squares += error * error;
    product += actual[e] * exact[e];
    actual_squares += actual[e] * actual[e];
    exact_squares += exact[e] * exact[e];
  }
  if (finite > 0) d.root_mean_square = std::sqrt(squares / static_cast<double>(finite));
  // Between zero vectors there is no angle; a zero against something is as wrong as can be.
  if (exact_squares > 0) {
    d.cosine = actual_squares > 0 ? product / std::sqrt(actual_squares * exact_squares) : 0;
  }
  return d;
}

struct Size {
  double largest = 0;
  double root_mean_square = 0;
};

Size size_of_values(std::span<const double> exact) {
  Size size;
  double squares = 0;
  std::size_t finite = 0;
  for (const double x : exact) {
    if (!std::isfinite(x)) continue;
    ++finite;
    size.largest = std::max(size.largest, std::abs(x));
    squares += x * x;
  }
  if (finite > 0) size.root_mean_square = std::sqrt(squares / static_cast<double>(finite));
  return size;
}

// The first element that is infinite or NaN in one result and not the same in the other.
std::string non_finite_mismatch(std::span<const double> actual, std::span<const double> exact) {
  for (std::size_t e = 0; e < exact.size(); ++e) {
    if (std::isfinite(actual[e]) && std::isfinite(exact[e])) continue;
    if (std::isnan(actual[e]) && std::isnan(exact[e])) continue;
    if (actual[e] == exact[e]) continue;
    std::ostringstream text;
    text << "element " << e << " is " << actual[e] << ", should be " << exact[e];
    return text.str();
  }
  return {};
}

// Storing a result costs half a unit in the last place; relative to the largest value of the
// tensor. For fp64 the promise is absolute instead: 1e-12.
double relative_floor(DType dtype) { return dtype == DType::fp64 ? 1e-12 : epsilon(dtype) / 2; }

std::string number(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", x);
  return text;
}

bool exists(const std::string& kernel, Direction direction) {
  const std::vector<KernelInfo> all = kernels();
  return std::any_of(all.begin(), all.end(), [&](const KernelInfo& info) {
    return info.name == kernel && info.direction == direction;
  });
}

}  // namespace

TensorError compare(const std::string& name, const Tensor& actual_tensor, std::span<const double> exact,
                    std::span<const double> model, double factor, std::span<const double> rounding) {
  const std::vector<double> actual = values(actual_tensor);
  TensorError result{.tensor = name};
  if (actual.size() != exact.size() || actual.size() != model.size()) {
    result.ok = false;
    result.reason = "has another number of elements than expected";
    return result;
  }
  const Distance ours = distance(actual, exact), models = distance(model, exact);
  const Size size = size_of_values(exact), computing = size_of_values(rounding);
  const double floor = relative_floor(actual_tensor.dtype);
  result.error = ours.largest;
  result.model_error = models.largest;
  result.allowed = factor * models.largest + floor * size.largest + computing.largest;
  result.rmse = ours.root_mean_square;
  result.model_rmse = models.root_mean_square;
  result.cosine = ours.cosine;

  // RMSE: 1.2 times the model's going forward, the gradients' own factor going back.
  const double rmse_factor = factor <= kForwardFactor ? 1.2 : factor;
  const double allowed_rmse =
      rmse_factor * models.root_mean_square + floor * size.root_mean_square + computing.root_mean_square;
  // An error of relative size e costs at most e^2 / 2 of the cosine; more than the RMSE allows is
  // not asked for.
  const double relative = size.root_mean_square > 0 ? allowed_rmse / size.root_mean_square : 0;
  const double allowed_angle = std::max(1e-5, relative * relative);

  result.reason = non_finite_mismatch(actual, exact);
  if (result.reason.empty() && !(result.error <= result.allowed)) {
    result.reason = "error " + number(result.error) + " > " + number(result.allowed) +
                    " allowed, at element " + std::to_string(ours.worst) + ": " + number(actual[ours.worst]) +
                    " for " + number(exact[ours.worst]);
  }
  if (result.reason.empty() && !(result.rmse <= allowed_rmse)) {
    result.reason = "RMSE " + number(result.rmse) + " > " + number(allowed_rmse) + " allowed";
  }
  if (result.reason.empty() && !(1 - result.cosine <= allowed_angle)) {
    result.reason = "1 - cosine " + number(1 - result.cosine) + " > " + number(allowed_angle) + " allowed";
  }
  result.ok = result.reason.empty();
  return result;
}

Expected expect(const Case& problem) {
  return {.exact = oracle_forward(problem.attention, problem.forward),
          .model = model_forward(problem.attention, problem.forward),
          .exact_gradients = oracle_backward(problem.attention, problem.backward),
          .model_gradients = model_backward(problem.attention, problem.backward),
          .rounding = expected_rounding(problem.attention, problem.backward)};
}

ForceKernel::ForceKernel(const std::string& kernel) {
  if (!kernel.empty()) forced_.emplace(&core::Environment::kernel, kernel);
}

std::string what_it_lacks(const std::string& kernel, const std::string& message) {
  const std::string line = "\n  " + kernel + ": ";
  const std::size_t found = message.find(line);
  if (found == std::string::npos) return message;
  const std::size_t begin = found + line.size();
  return message.substr(begin, message.find('\n', begin) - begin);
}

Device device_of(const std::string& kernel) {
  const std::vector<KernelInfo> all = kernels();
  const bool on_gpu = std::any_of(all.begin(), all.end(), [&](const KernelInfo& info) {
    return info.name == kernel && info.device == DeviceType::cuda;
  });
  return on_gpu ? Device::cuda(0) : Device::cpu();
}

namespace {

void run_on_gpu(Case& problem, const std::string& kernel, const Execution& execution, Device device) {
  const bool with_backward = kernel.empty() || exists(kernel, Direction::backward);
  DeviceCase copy(problem.attention, problem.forward, problem.backward, device);
  {
    const ForceKernel forced(kernel);
    tessera::forward(copy.attention, copy.forward, execution);
    if (with_backward) tessera::backward(copy.attention, copy.backward, execution);
  }
  if (const std::string damage = copy.fetch(); !damage.empty()) {
    throw Error(ErrorCode::device_failure, damage);
  }
  if (!with_backward) {
    tessera::backward(problem.attention, problem.backward, {.threads = execution.threads});
  }
}

}  // namespace

void run(Case& problem, const std::string& kernel, const Execution& execution, std::optional<Device> device) {
  const Device where = device.value_or(device_of(kernel));
  if (where.type == DeviceType::cuda) return run_on_gpu(problem, kernel, execution, where);
  {
    const ForceKernel forced(kernel);
    tessera::forward(problem.attention, problem.forward, execution);
  }
  const ForceKernel forced(exists(kernel, Direction::backward) ? kernel : "");
  tessera::backward(problem.attention, problem.backward, execution);
}

Verdict judge(const Case& problem, const Expected& expected) {
  Verdict verdict;
  auto add = [&](const char* name, const Tensor& actual, const std::vector<double>& exact,
                 const std::vector<double>& model, double factor, const std::vector<double>& rounding) {
    verdict.tensors.push_back(compare(name, actual, exact, model, factor, rounding));
    const TensorError& error = verdict.tensors.back();
    if (error.ok || !verdict.ok) return;
    verdict.ok = false;
    verdict.message = error.tensor + ": " + error.reason;
  };
  const Forward &exact = expected.exact, &model = expected.model, &rounding = expected.rounding.forward;
  add("out", problem.forward.out, exact.out, model.out, kForwardFactor, rounding.out);
  add("lse", problem.forward.lse, exact.lse, model.lse, kForwardFactor, rounding.lse);
  const Gradients &gradients = expected.exact_gradients, &models = expected.model_gradients;
  const Gradients& roundings = expected.rounding.gradients;
  const BackwardTensors& t = problem.backward;
  add("grad_q", t.grad_q, gradients.q, models.q, kGradientFactor, roundings.q);
  add("grad_k", t.grad_k, gradients.k, models.k, kGradientFactor, roundings.k);
  add("grad_v", t.grad_v, gradients.v, models.v, kGradientFactor, roundings.v);
  if (t.grad_bias.given()) {
    add("grad_bias", t.grad_bias, gradients.bias, models.bias, kGradientFactor, roundings.bias);
  }
  return verdict;
}

Verdict verify(const CaseSpec& spec, const std::string& kernel, const Execution& execution,
               std::optional<Device> device) {
  const auto start = std::chrono::steady_clock::now();
  Verdict verdict;
  try {
    Case problem(spec);
    run(problem, kernel, execution, device);
    verdict = judge(problem, expect(problem));
  } catch (const Error& error) {
    verdict.ok = false;
    verdict.message = std::string(name(error.code())) + ": " + error.what();
    std::replace(verdict.message.begin(), verdict.message.end(), '\n', ' ');
  }
  verdict.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return verdict;
}

}  // namespace tessera::reference
