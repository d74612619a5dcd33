#include "lab/terminal/table.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "lab/terminal/terminal.h"
#include "lab/terminal/units.h"

namespace tessera::lab {
namespace {

TEST(Table, AlignsColumnsAndCountsCharactersNotBytes) {
  Table table({{"name", 0, Justify::left}, {"ms", 6, Justify::right}});
  table.fit({"f\u00fcnf\u2713", "1"});
  EXPECT_EQ(table.width(), 5U + 2U + 6U);
  EXPECT_EQ(table.offset(1), 7U);
  EXPECT_EQ(table.header(),
            "name       ms\n"
            "\u2500\u2500\u2500\u2500\u2500  \u2500\u2500\u2500\u2500\u2500\u2500\n");
  EXPECT_EQ(table.row({"f\u00fcnf\u2713", "1"}), "f\u00fcnf\u2713       1\n");
  EXPECT_EQ(table.row({"a", "12.50"}), "a       12.50\n");
}

TEST(Table, ShortRowsRunFreeAndLongCellsStayWhole) {
  const Table table({{"a", 3, Justify::left}, {"b", 3, Justify::right}, {"c", 3, Justify::right}});
  EXPECT_EQ(table.row({"x", "out of memory: too much"}), "x    out of memory: too much\n");
  EXPECT_EQ(table.row({"longer", "1", "2"}), "longer    1    2\n");
  EXPECT_EQ(table.row({"x"}), "x\n");
}

TEST(Table, RenderFitsWhatItHolds) {
  EXPECT_EQ(render({{"k", 0, Justify::left}, {"v", 0, Justify::right}}, {{"one", "1"}, {"three", "33"}}),
            "k       v\n"
            "\u2500\u2500\u2500\u2500\u2500  \u2500\u2500\n"
            "one     1\n"
            "three  33\n");
}

TEST(Table, Markdown) {
  EXPECT_EQ(render_markdown({{"k", 0, Justify::left}, {"v", 0, Justify::right}}, {{"a", "1"}}),
            "| k | v |\n|---|---:|\n| a | 1 |\n");
}

TEST(Wrap, BreaksAtBlanksAndIndents) {
  EXPECT_EQ(wrap("one two three", 80, 0), "one two three");
  EXPECT_EQ(wrap("one two three", 9, 2), "one two\n  three");
  EXPECT_EQ(wrap("unbreakable-word", 5, 2), "unbreakable-word");
  EXPECT_EQ(wrap("", 5, 2), "");
}

TEST(Units, SignificantDigits) {
  EXPECT_EQ(significant(0), "0");
  EXPECT_EQ(significant(0.012345), "0.0123");
  EXPECT_EQ(significant(4.5678), "4.57");
  EXPECT_EQ(significant(99.96), "100");
  EXPECT_EQ(significant(9.996), "10.0");
  EXPECT_EQ(significant(123.4), "123");
  EXPECT_EQ(significant(45678), "45678");
  EXPECT_EQ(significant(-2.5), "-2.50");
  EXPECT_EQ(significant(1234.5, 4), "1234");
  EXPECT_EQ(significant(0.00001234), "1.2e-05");
}

TEST(Units, BytesCountsAndTimes) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(512), "512 B");
  EXPECT_EQ(bytes_text(1536), "1.50 KiB");
  EXPECT_EQ(bytes_text(1023.9 * 1024), "1.00 MiB");
  EXPECT_EQ(bytes_text(1010.0 * 1024), "1010 KiB");
  EXPECT_EQ(bytes_text(16.0 * 1024 * 1024 * 1024), "16.0 GiB");
  EXPECT_EQ(count_text(34.4e9, "FLOP"), "34.4 GFLOP");
  EXPECT_EQ(count_text(64), "64");
  EXPECT_EQ(count_text(999.9e3), "1.00 M");
  EXPECT_EQ(duration_text(0.00085), "850 us");
  EXPECT_EQ(duration_text(0.0123), "12.3 ms");
  EXPECT_EQ(duration_text(4.56), "4.56 s");
  EXPECT_EQ(duration_text(125), "2 min 05 s");
  EXPECT_EQ(clock_text(7.2), "0:07");
  EXPECT_EQ(clock_text(760), "12:40");
  EXPECT_EQ(clock_text(3723), "1:02:03");
  EXPECT_EQ(error_text(0), "0");
  EXPECT_EQ(error_text(3.14e-7), "3.1e-07");
}

TEST(Terminal, TextInAsciiKeepsItsShape) {
  EXPECT_EQ(in_ascii("a \u2500\u2500 2\u00d7 5 \u00b5s \u2713"), "a -- 2x 5 us +");
  EXPECT_EQ(in_ascii("\u4e2d"), "?");
  EXPECT_EQ(in_ascii("plain"), "plain");
}

TEST(Terminal, LinesFollowTheEnvironment) {
  const char* before = std::getenv("COLUMNS");
  const std::string kept = before == nullptr ? "" : before;
  setenv("COLUMNS", "50", 1);
  if (!is_terminal(stdout)) {
    EXPECT_EQ(line_width(), 50U);
    setenv("COLUMNS", "7", 1);
    EXPECT_EQ(line_width(), 40U);  // nothing is legible in less
    unsetenv("COLUMNS");
    EXPECT_EQ(line_width(), 120U);
  }
  if (before == nullptr) unsetenv("COLUMNS");
  else setenv("COLUMNS", kept.c_str(), 1);
}

}  // namespace
}  // namespace tessera::lab
