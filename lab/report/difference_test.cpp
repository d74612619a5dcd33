#include "lab/report/difference.h"

#include <gtest/gtest.h>

#include "lab/report/model.h"
#include "lab/report/page/page.h"
#include "lab/report/test_rows.h"

namespace tessera::lab::report {
namespace {

nlohmann::json timed(const std::string& algorithm, int seq, double ms, double spread) {
  nlohmann::json row = test_row(algorithm, seq, ms);
  row["lower_quartile_ms"] = ms * (1 - spread);
  row["upper_quartile_ms"] = ms * (1 + spread);
  return row;
}

Difference of(std::vector<nlohmann::json> before, std::vector<nlohmann::json> after) {
  for (nlohmann::json& row : after) row["commit"] = "fedcba9876", row["scale"] = "quick";
  return difference_of(test_results(std::move(before)), test_results(std::move(after)));
}

TEST(ReportDifference, AChangeNeedsQuartilesThatDoNotOverlap) {
  const Difference found = of({timed("flash2", 128, 10, 0.02), timed("flash2", 256, 10, 0.02),
                               timed("flash2", 512, 10, 0.2), timed("flash2", 1024, 10, 0.001)},
                              {timed("flash2", 128, 8, 0.02), timed("flash2", 256, 12, 0.02),
                               timed("flash2", 512, 8, 0.2), timed("flash2", 1024, 10.3, 0.001)});
  ASSERT_EQ(found.rows.size(), 4U);
  EXPECT_EQ(found.rows[0].change, Change::faster);
  EXPECT_EQ(found.rows[1].change, Change::slower);
  EXPECT_EQ(found.rows[2].change, Change::unclear);
  EXPECT_EQ(found.rows[3].change, Change::same);  // 3 %, although the quartiles are apart
  EXPECT_NEAR(found.rows[0].ratio, 0.8, 1e-12);
  EXPECT_NEAR(found.rows[0].low, 0.8 * 0.98 / 1.02, 1e-12);
  EXPECT_NEAR(found.rows[0].high, 0.8 * 1.02 / 0.98, 1e-12);
  EXPECT_EQ(ratio_text(found.rows[0]), "0.800 (0.769 to 0.833)");
  EXPECT_EQ(found.rows[0].point, "N = 128");
  EXPECT_EQ(summary_text(found), "1 faster, 1 slower, 1 the same within 5 %, 1 without a difference found");
}

TEST(ReportDifference, RowsThatFailNowAreBroken) {
  const Difference found =
      of({timed("flash2", 128, 10, 0.02), test_missing("standard", 128, "out_of_memory", "full")},
         {test_missing("flash2", 128, "failed", "why"), timed("standard", 128, 10, 0.02)});
  EXPECT_EQ(found.count(Change::broken), 1U);
  EXPECT_EQ(found.count(Change::repaired), 1U);
  EXPECT_EQ(found.rows[0].new_time, "failed");
  EXPECT_EQ(found.rows[1].old_time, "out of memory");
  EXPECT_EQ(ratio_text(found.rows[0]), "");
}

TEST(ReportDifference, PointsOfOneRunAloneAreCounted) {
  const Difference found =
      of({timed("flash2", 128, 10, 0.02), timed("flash2", 256, 10, 0.02)},
         {timed("flash2", 256, 10, 0.02), timed("flash2", 512, 9, 0.02), timed("flash1", 512, 9, 0.02)});
  EXPECT_EQ(found.rows.size(), 1U);
  EXPECT_EQ(found.only_old, 1U);
  EXPECT_EQ(found.only_new, 2U);
  EXPECT_EQ(summary_text(of({timed("flash2", 128, 1, 0)}, {timed("flash1", 128, 1, 0)})),
            "no point in common");
}

TEST(ReportDifference, ThePageShowsWhatChanged) {
  const Difference found = of({timed("flash2", 128, 10, 0.02)}, {timed("flash2", 128, 20, 0.02)});
  const std::string page = report_page(make_report({test_results(test_rows())}), {}, found);
  EXPECT_NE(page.find("Of 1 common point: 1 slower."), std::string::npos);
  EXPECT_NE(page.find("2.00 (1.92 to 2.08)"), std::string::npos);
  EXPECT_EQ(report_page(make_report({test_results(test_rows())}), {}).find("id=\"difference\""),
            std::string::npos);
}

}  // namespace
}  // namespace tessera::lab::report
