// Judges a kernel's result against the oracle. The measure is the error of a standard
// implementation in the same type.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/environment.h"
#include "reference/cases/case.h"
#include "reference/oracle/elements.h"
#include "reference/oracle/oracle.h"
#include "reference/tolerance/rounding.h"
#include "tessera/execution.h"
#include "tessera/tensor.h"

namespace tessera::reference {

// How far one tensor is from the exact result, and how far it may be.
struct TensorError {
  std::string tensor;
  double error = 0, model_error = 0, allowed = 0;  // largest absolute error
  double rmse = 0, model_rmse = 0;
  double cosine = 1;
  bool ok = true;
  std::string reason{};  // why not ok
};

struct Verdict {
  std::vector<TensorError> tensors;
  bool ok = true;
  std::string message{};  // why not ok, one line
  double seconds = 0;
};

// Factors of RELIABILITY.md: error of ours over the error of a standard implementation in the same
// type.
inline constexpr double kForwardFactor = 1.5;
inline constexpr double kGradientFactor = 2;

// Judges `actual` against exact values and those of the model, both in its shape without gaps.
// Infinities and NaN must be where the exact ones are. The tolerance is factor * the model's error
// + the rounding of storing the result + `rounding`, the error that computing may add (rounding.h;
// empty: none).
TensorError compare(const std::string& name, const Tensor& actual, std::span<const double> exact,
                    std::span<const double> model, double factor, std::span<const double> rounding = {});

// The expected results of a case: exact, as the model of its type computes them, and the errors
// that rounding may add.
struct Expected {
  Forward exact, model;
  Gradients exact_gradients, model_gradients;
  Rounding rounding;
};

Expected expect(const Case& problem);

// Forces a kernel by name for a scope, as TESSERA_KERNEL does. An empty name leaves the choice to
// the library.
class ForceKernel {
 public:
  explicit ForceKernel(const std::string& kernel);

 private:
  std::optional<core::EnvironmentOverride> forced_;
};

// Why one kernel does not support a call, from an error's message that lists the reasons of every
// kernel; the message itself when it does not name the kernel.
std::string what_it_lacks(const std::string& kernel, const std::string& message);

// The device of a kernel: cuda:0 for GPU kernels, else (also for an empty name) the CPU.
Device device_of(const std::string& kernel);

// Runs forward and backward into the case's tensors with the named kernel (empty: automatic). A
// kernel without backward runs forward only; its results go to the backward kernel that the CPU
// chooses. On a GPU (by default where the kernel runs) all tensors are copied there and back; a
// write outside of the results is an Error (device_failure).
void run(Case& problem, const std::string& kernel, const Execution& execution = {},
         std::optional<Device> device = {});

// Judges the results in the case's tensors against the expected ones.
Verdict judge(const Case& problem, const Expected& expected);

// Makes the case, runs the named kernel and judges the results. An Error becomes a verdict that is
// not ok.
Verdict verify(const CaseSpec& spec, const std::string& kernel, const Execution& execution = {},
               std::optional<Device> device = {});

}  // namespace tessera::reference
