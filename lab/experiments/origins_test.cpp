#include "lab/experiments/origins.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

#include "lab/experiments/experiment.h"

namespace tessera::lab {
namespace {

TEST(Origins, EveryOriginNamesOneInWords) {
  const std::regex code("\\bS[0-9]\\b");
  for (const Experiment& experiment : experiments()) {
    EXPECT_TRUE(std::any_of(
        origins().begin(), origins().end(),
        [&](const Origin& origin) { return experiment.origin.find(origin.name) != std::string::npos; }))
        << experiment.name << ": " << experiment.origin;
    EXPECT_FALSE(std::regex_search(describe(experiment), code)) << experiment.name;
  }
}

TEST(Origins, EachIsRepeatedAndExplained) {
  const std::string list = list_text(experiments());
  for (const Origin& origin : origins()) {
    EXPECT_TRUE(std::any_of(experiments().begin(), experiments().end(), [&](const Experiment& experiment) {
      return experiment.origin.find(origin.name) != std::string::npos;
    })) << origin.name;
    EXPECT_NE(list.find("- " + origin.name), std::string::npos) << list;
  }
}

}  // namespace
}  // namespace tessera::lab
