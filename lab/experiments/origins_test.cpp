#include "lab/experiments/origins.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

#include "lab/experiments/experiments.h"

namespace tessera::lab {
namespace {

TEST(Studies, EveryOriginNamesOneInWords) {
  const std::regex code("\\bS[0-9]\\b");
  for (const Experiment& experiment : experiments()) {
    EXPECT_TRUE(std::any_of(
        studies().begin(), studies().end(),
        [&](const Study& study) { return experiment.origin.find(study.name) != std::string::npos; }))
        << experiment.name << ": " << experiment.origin;
    EXPECT_FALSE(std::regex_search(describe(experiment), code)) << experiment.name;
  }
}

TEST(Studies, EachIsRepeatedAndExplained) {
  const std::string list = list_text(experiments());
  for (const Study& study : studies()) {
    EXPECT_TRUE(std::any_of(experiments().begin(), experiments().end(), [&](const Experiment& experiment) {
      return experiment.origin.find(study.name) != std::string::npos;
    })) << study.name;
    EXPECT_NE(list.find("- " + study.name), std::string::npos) << list;
  }
}

}  // namespace
}  // namespace tessera::lab
