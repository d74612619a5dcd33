#include "lab/commands/verify/verification.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/commands/parse.h"
#include "lab/terminal/table.h"
#include "lab/terminal/text.h"

namespace tessera::lab {
namespace {

CaseResult result(const std::string& kernel, DType dtype, const std::string& feature, Outcome outcome,
                  double worst) {
  CaseResult made{.spec = {.name = "a case", .feature = feature, .dtype = dtype}, .kernel = kernel};
  made.outcome = outcome;
  made.worst = worst;
  made.tensors = {{.tensor = "out", .error = worst, .allowed = 1}};
  return made;
}

CaseResult unsupported(const std::string& kernel, DType dtype, const std::string& feature) {
  CaseResult made = result(kernel, dtype, feature, Outcome::unsupported, 0);
  made.reason = "lacks bias";
  return made;
}

Verification example() {
  return {.results = {result("cpu.a", DType::fp32, "causal", Outcome::passed, 0.25),
                      result("cpu.b", DType::fp32, "causal", Outcome::failed, 3),
                      result("cpu.a", DType::fp32, "causal", Outcome::passed, 0.5),
                      result("cpu.a", DType::bf16, "causal", Outcome::passed, 0.75),
                      unsupported("cpu.a", DType::bf16, "bias"), unsupported("cpu.a", DType::bf16, "bias")}};
}

TEST(Verification, TableShowsTheWorstCaseOfEachFeature) {
  EXPECT_EQ(verification_table(example(), false),
            "         cpu.a             cpu.b\n"
            "feature  fp32     bf16     fp32\n"
            "\u2500\u2500\u2500\u2500\u2500\u2500\u2500  \u2500\u2500\u2500\u2500\u2500\u2500\u2500  "
            "\u2500\u2500\u2500\u2500\u2500\u2500\u2500  \u2500\u2500\u2500\u2500\u2500\u2500\u2500\n"
            "causal   \u2713 0.50   \u2713 0.75   FAIL\n"
            "bias              -\n");
}

TEST(Verification, LongNamesOfKernelsWidenTheirColumns) {
  const Verification two = {.results = {result("cpu.long_name", DType::fp32, "bias", Outcome::passed, 0.5),
                                        result("cpu.b", DType::fp32, "bias", Outcome::passed, 0.25)}};
  const auto lines = split(verification_table(two, false), '\n');
  EXPECT_EQ(lines[0], "cpu.long_name  cpu.b");  // split trims blanks
  EXPECT_EQ(lines[1], "feature  fp32           fp32");
  EXPECT_EQ(lines[3], "bias     \u2713 0.50         \u2713 0.25");
}

TEST(Verification, TableIsCutIntoPartsThatFit) {
  Verification wide;
  for (int kernel = 0; kernel < 9; ++kernel) {
    for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
      wide.results.push_back(
          result("cuda.kernel" + std::to_string(kernel), dtype, "causal", Outcome::passed, 0.5));
    }
  }
  const auto lines = split(verification_table(wide, false), '\n');
  EXPECT_GT(lines.size(), 8U);
  for (const std::string& line : lines) EXPECT_LE(display_width(line), line_width()) << line;
}

TEST(Verification, Markdown) {
  EXPECT_EQ(verification_markdown(example()),
            "| feature | `cpu.a` fp32 | `cpu.a` bf16 | `cpu.b` fp32 |\n"
            "|---|---|---|---|\n"
            "| causal | \u2713 | \u2713 | \u2717 |\n"
            "| bias | \u2013 | \u2013 | \u2013 |\n");
}

TEST(Verification, FailuresHaveNumbersAndAReplay) {
  const std::string text = failure_list(example(), 1);
  EXPECT_NE(text.find("FAIL cpu.b fp32 causal: a case\n"), std::string::npos) << text;
  EXPECT_NE(text.find("out: error 3.0e+00 of 1.0e+00 allowed"), std::string::npos) << text;
  EXPECT_NE(text.find("tessera verify --kernel cpu.b --dtype fp32 --feature causal --case 'a case'\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("cpu.a"), std::string::npos) << text;
}

TEST(Verification, JsonCounts) {
  const nlohmann::ordered_json json = verification_json(example());
  EXPECT_EQ(json["ok"], false);
  EXPECT_EQ(json["passed"], 3);
  EXPECT_EQ(json["failed"], 1);
  EXPECT_EQ(json["unsupported"], 2);
  EXPECT_EQ(json["cases"].size(), 6U);
}

TEST(Verification, ReasonsForWhatIsNotSupportedAppearOnce) {
  EXPECT_EQ(unsupported_list(example()), "- cpu.a: lacks bias\n");
}

TEST(Verification, ToleranceScalesWhatIsAllowed) {
  CaseResult passed = result("cpu.a", DType::fp32, "causal", Outcome::passed, 0.5);
  apply_tolerance(passed, 1);
  EXPECT_EQ(passed.outcome, Outcome::passed);
  EXPECT_DOUBLE_EQ(passed.worst, 0.5);
  apply_tolerance(passed, 0.1);
  EXPECT_EQ(passed.outcome, Outcome::failed);
  EXPECT_DOUBLE_EQ(passed.worst, 5);
}

TEST(Verification, RunsWhatIsSelectedAndStopsWhenTold) {
  Selection selection{.dtypes = {DType::fp64}, .kernels = kernel_names(), .features = {"GQA"}};
  ASSERT_FALSE(selection.kernels.empty());
  const Verification all = verify(selection, [](const std::string&, double) { return true; });
  EXPECT_TRUE(all.complete);
  EXPECT_EQ(all.count(Outcome::failed), 0) << failure_list(all, 1);
  EXPECT_EQ(all.results.size() % selection.kernels.size(), 0U);
  EXPECT_GT(all.results.size(), selection.kernels.size());
  const Verification stopped = verify(selection, [](const std::string&, double share) { return share == 0; });
  EXPECT_FALSE(stopped.complete);
  EXPECT_EQ(stopped.results.size(), selection.kernels.size());
}

}  // namespace
}  // namespace tessera::lab
