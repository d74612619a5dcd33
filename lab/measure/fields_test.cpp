#include "lab/measure/fields.h"

#include <gtest/gtest.h>

#include <set>

#include "lab/measure/results.h"

namespace tessera::lab {
namespace {

std::vector<std::string> names(const nlohmann::ordered_json& row) {
  std::vector<std::string> all;
  for (const auto& [name, value] : row.items()) all.push_back(name);
  return all;
}

TEST(Fields, RowsHaveThemInTheirOrder) {
  const std::vector<std::string> written = names(to_json(Row{}, "x", {"commit", "quick"}, "today"));
  EXPECT_EQ(written, names(default_row("bench")));
  EXPECT_EQ(written, names(default_row("lab")));
}

TEST(Fields, DefaultsHaveTheTypeOfTheirValues) {
  const nlohmann::ordered_json row = to_json(Row{}, "x", {"commit", "quick"}, "today");
  const nlohmann::ordered_json defaults = default_row("lab");
  for (const auto& [name, value] : defaults.items()) {
    const bool alike = value.is_null() || row[name].is_null() || row[name].type() == value.type() ||
                       (row[name].is_number() && value.is_number());
    EXPECT_TRUE(alike) << name << ": " << row[name].dump() << " and " << value.dump();
  }
}

TEST(Fields, EveryOneIsExplainedOnce) {
  std::set<std::string> seen;
  for (const Field& field : fields()) {
    EXPECT_TRUE(seen.insert(field.name).second) << field.name;
    EXPECT_FALSE(field.meaning.empty()) << field.name;
    EXPECT_FALSE(field.label.empty()) << field.name;
    EXPECT_FALSE(field.programs.empty()) << field.name;
  }
  EXPECT_EQ(find_field("no_such_field"), nullptr);
}

TEST(Fields, FiguresDrawKnownOnes) {
  for (const Experiment& experiment : experiments()) {
    for (const Figure& figure : experiment.figures) {
      for (const std::string& field : fields_of(figure)) {
        EXPECT_NE(find_field(field), nullptr) << experiment.name << ": " << field;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::lab
