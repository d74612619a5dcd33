// Every kernel against the oracle, over every feature of the contract. Random
// descriptions: fuzz_test.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <optional>

#include "reference/tolerance/check.h"
#include "support/kernels.h"
#include "tessera/error.h"

namespace tessera::test {
namespace {

using reference::Case;
using reference::CaseSpec;
using reference::Expected;
using reference::Verdict;

// Runs one case with one kernel and compares all its results with what they should be.
bool check(Case& problem, const Expected& expected, const std::string& kernel) {
  SCOPED_TRACE(kernel + " " + describe(problem.spec()));
  problem.poison();
  try {
    run(problem, kernel);
  } catch (const Error& error) {
    ADD_FAILURE() << name(error.code()) << ": " << error.what();
    return false;
  }
  const Verdict verdict = judge(problem, expected);
  EXPECT_TRUE(verdict.ok) << verdict.message;
  return verdict.ok;
}

// ---- the feature matrix -------------------------------------------------------------------------

using MatrixParameter = std::tuple<DType, std::size_t, std::string>;

std::string matrix_name(const testing::TestParamInfo<MatrixParameter>& info) {
  const auto& [dtype, index, kernel] = info.param;
  const CaseSpec spec = reference::feature_matrix(dtype).at(index);
  std::string text = std::string(name(dtype)) + "_" + spec.feature + "_" + spec.name + "_" + kernel;
  std::string clean;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      clean += c;
    } else if (!clean.empty() && clean.back() != '_') {
      clean += '_';
    }
  }
  return clean;
}

class FeatureMatrix : public testing::TestWithParam<MatrixParameter> {
 protected:
  struct Prepared {
    DType dtype;
    std::size_t index;
    Case problem;
    Expected expected;
  };

  // Kernels come one after the other for one case, so its oracle is only computed once.
  static Prepared& prepared(DType dtype, std::size_t index) {
    static std::optional<Prepared> last;
    if (!last || last->dtype != dtype || last->index != index) {
      Case problem(reference::feature_matrix(dtype).at(index));
      Expected expected = expect(problem);
      last.emplace(Prepared{dtype, index, std::move(problem), std::move(expected)});
    }
    return *last;
  }
};

TEST_P(FeatureMatrix, AgreesWithOracle) {
  const auto& [dtype, index, kernel] = GetParam();
  Prepared& last = prepared(dtype, index);
  check(last.problem, last.expected, kernel);
}

// Every case of every type, kernels innermost.
std::vector<MatrixParameter> matrix() {
  const std::vector<std::tuple<DType, std::string>> pairs = pairs_with_types(cpu_kernels());
  const std::size_t cases = reference::feature_matrix(DType::fp32).size();
  std::vector<MatrixParameter> all;
  for (const DType dtype : kDTypes) {
    for (std::size_t index = 0; index < cases; ++index) {
      for (const auto& [type, kernel] : pairs) {
        if (type == dtype) all.emplace_back(dtype, index, kernel);
      }
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Contract, FeatureMatrix, testing::ValuesIn(matrix()), matrix_name);

// Each kernel of the registry is in the matrix above, or has no backward and tests of its own
// (decode_test and, for cpu.packed, invariance_test), or cannot run here, which is said.
TEST(Contract, EveryKernelIsTested) {
  std::vector<std::string> tested = cpu_kernels();
  for (const std::string& kernel : forward_only_kernels()) tested.push_back(kernel);
  std::string skipped;
  for (const KernelInfo& kernel : kernels()) {
    if (kernel.device != DeviceType::cpu) continue;
    if (const std::string reason = obstacle(kernel.name); !reason.empty()) {
      skipped += kernel.name + " is not tested: " + reason + "\n";
      continue;
    }
    EXPECT_TRUE(std::find(tested.begin(), tested.end(), kernel.name) != tested.end())
        << kernel.name << " is in the registry and in no test of the contract";
  }
  if (!skipped.empty()) GTEST_SKIP() << skipped;
}

TEST(Contract, EveryKernelServesTheWholeContract) {
  ASSERT_FALSE(cpu_kernels().empty());
  for (const KernelInfo& kernel : kernels()) {
    if (kernel.device != DeviceType::cpu) continue;
    EXPECT_TRUE(kernel.missing.empty()) << kernel.name << " lacks " << kernel.missing.front();
  }
}

TEST(Contract, AutomaticChoiceAgreesWithOracle) {
  for (const DType dtype : kDTypes) {
    const Verdict verdict = reference::verify({.dtype = dtype, .right = 0}, "");
    EXPECT_TRUE(verdict.ok) << name(dtype) << ' ' << verdict.message;
  }
}

TEST(Contract, ChosenAlgorithmAgreesWithOracle) {
  for (const Algorithm algorithm : {Algorithm::standard, Algorithm::flash2}) {
    if (algorithm == Algorithm::standard && !obstacle("cpu.standard").empty()) continue;
    Case problem({.dtype = DType::fp32, .right = 0});
    problem.attention.algorithm = algorithm;
    EXPECT_EQ(plan(problem.attention, problem.forward).algorithm, algorithm);
    check(problem, expect(problem), "");
  }
}

}  // namespace
}  // namespace tessera::test
