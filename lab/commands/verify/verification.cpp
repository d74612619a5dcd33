#include "lab/commands/verify/verification.h"

#include <algorithm>
#include <chrono>
#include <exception>

#include "lab/commands/parse.h"
#include "lab/terminal/text.h"
#include "tessera/error.h"
#include "tessera/plan.h"

namespace tessera::lab {
namespace {

bool contains(const std::vector<std::string>& list, const std::string& word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

std::vector<reference::CaseSpec> selected_specs(const Selection& selection) {
  std::vector<reference::CaseSpec> specs;
  for (const DType dtype : selection.dtypes) {
    for (reference::CaseSpec& spec : reference::feature_matrix(dtype)) {
      if (!selection.features.empty() && !contains(selection.features, spec.feature)) continue;
      if (!selection.cases.empty() && !contains(selection.cases, spec.name)) continue;
      specs.push_back(std::move(spec));
    }
  }
  return specs;
}

CaseResult run_case(reference::Case& problem, const reference::Expected& expected, const std::string& kernel,
                    const Selection& selection) {
  CaseResult result{.spec = problem.spec(), .kernel = kernel};
  const auto begin = std::chrono::steady_clock::now();
  try {
    problem.poison();
    reference::run(problem, kernel, selection.execution, selection.device);
    const reference::Verdict verdict = reference::judge(problem, expected);
    result.tensors = verdict.tensors;
    if (!verdict.ok) {
      result.outcome = Outcome::failed;
      result.reason = one_line(verdict.message);
    }
    apply_tolerance(result, selection.tolerance);
  } catch (const Error& error) {
    const bool unsupported = error.code() == ErrorCode::unsupported;
    result.outcome = unsupported ? Outcome::unsupported : Outcome::failed;
    result.reason = one_line(unsupported ? reference::what_it_lacks(kernel, error.what()) : error.what());
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

}  // namespace

const char* name(Outcome outcome) {
  switch (outcome) {
    case Outcome::passed: return "passed";
    case Outcome::failed: return "failed";
    case Outcome::unsupported: break;
  }
  return "unsupported";
}

int Verification::count(Outcome outcome) const {
  return static_cast<int>(std::count_if(results.begin(), results.end(), [outcome](const CaseResult& result) {
    return result.outcome == outcome;
  }));
}

std::vector<std::string> kernel_names(std::optional<DeviceType> type) {
  const std::vector<DeviceInfo> here = devices();
  std::vector<std::string> names;
  for (const KernelInfo& kernel : kernels()) {
    const bool can_run = std::any_of(here.begin(), here.end(), [&](const DeviceInfo& device) {
      return device.device.type == kernel.device;
    });
    const bool wanted = !type || *type == kernel.device;
    if (wanted && can_run && !contains(names, kernel.name)) names.push_back(kernel.name);
  }
  return names;
}

std::vector<std::string> feature_names() {
  std::vector<std::string> names;
  for (const reference::CaseSpec& spec : reference::feature_matrix(DType::fp32)) {
    if (!contains(names, spec.feature)) names.push_back(spec.feature);
  }
  return names;
}

Verification verify(const Selection& selection,
                    const std::function<bool(const std::string& what, double share)>& proceed) {
  Verification verification;
  const std::vector<reference::CaseSpec> specs = selected_specs(selection);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const double share = static_cast<double>(i) / static_cast<double>(specs.size());
    const std::string what =
        std::string(name(specs[i].dtype)) + " " + specs[i].feature + ": " + specs[i].name;
    if (!proceed(what, share)) {
      verification.complete = false;
      break;
    }
    // What a case should give is the slow part, and the same for every kernel.
    reference::Case problem(specs[i]);
    const reference::Expected expected = reference::expect(problem);
    for (const std::string& kernel : selection.kernels) {
      verification.results.push_back(run_case(problem, expected, kernel, selection));
    }
  }
  return verification;
}

void apply_tolerance(CaseResult& result, double tolerance) {
  result.worst = 0;
  for (const reference::TensorError& tensor : result.tensors) {
    const double allowed = tensor.allowed * tolerance;
    const double share = tensor.error == 0 ? 0 : tensor.error / allowed;
    result.worst = std::max(result.worst, share);
    if (share > 1 && result.outcome == Outcome::passed) {
      result.outcome = Outcome::failed;
      result.reason = tensor.tensor + ": more than the allowed error";
    }
  }
}

}  // namespace tessera::lab
