// Judging a kernel's result: against the oracle, with the error of a standard implementation in the same type
// as the measure.
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

// Factors of RELIABILITY.md: error of ours over the error of a standard implementation in the same type.
inline constexpr double kForwardFactor = 1.5;
inline constexpr double kGradientFactor = 2;

// The result in `actual` against exact values and those of the model, both in its shape without gaps. Infinite
// and NaN values must be where the exact ones are. Tolerance: factor * the model's error + what storing the
// result costs + `rounding`, the error that computing may add (see rounding.h; empty: none).
TensorError compare(const std::string& name, const Tensor& actual, std::span<const double> exact,
                    std::span<const double> model, double factor, std::span<const double> rounding = {});

// What a case should give: exactly, as the model of its type computes it, and what rounding may do to it.
struct Expected {
  Forward exact, model;
  Gradients exact_gradients, model_gradients;
  Rounding rounding;
};

Expected expect(const Case& problem);

// Chooses a kernel by name for a scope, as TESSERA_KERNEL does; an empty name leaves the choice alone.
class ForceKernel {
 public:
  explicit ForceKernel(const std::string& kernel);

 private:
  std::optional<core::EnvironmentOverride> forced_;
};

// What one kernel lacks, out of an error's message that lists what every kernel lacks; the message itself when it does not
// name the kernel.
std::string what_it_lacks(const std::string& kernel, const std::string& message);

// Where a kernel runs: cuda:0 for those of GPUs, else (also for an empty name) the CPU.
Device device_of(const std::string& kernel);

// Runs forward and backward into the case's tensors with the kernel named (empty: automatic). A kernel without
// backward runs forward only, and what it leaves serves the CPU's automatic choice of backward. On a GPU (by default
// where the kernel runs) everything is copied there and back; what was written outside of the results is an Error
// (device_failure).
void run(Case& problem, const std::string& kernel, const Execution& execution = {},
         std::optional<Device> device = {});

// The results now in the case's tensors against what they should be.
Verdict judge(const Case& problem, const Expected& expected);

// All of it: makes the case, runs the kernel named, judges. An Error becomes a verdict that is not ok.
Verdict verify(const CaseSpec& spec, const std::string& kernel, const Execution& execution = {},
               std::optional<Device> device = {});

}  // namespace tessera::reference
