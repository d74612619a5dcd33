#include "core/base/reason.h"

#include <gtest/gtest.h>

#include <ostream>

namespace tessera::core {
namespace {

// Something that can be printed, and knows whether it was.
struct Printed {
  bool* printed;
};

std::ostream& operator<<(std::ostream& stream, const Printed& part) {
  *part.printed = true;
  return stream << "part";
}

TEST(Reason, WordsAreMadeOnlyWhereSomebodyReads) {
  bool printed = false;
  EXPECT_TRUE(Reason().give("a ", Printed{&printed}));
  EXPECT_FALSE(printed);
  std::string text;
  EXPECT_TRUE(Reason(text).give("a ", Printed{&printed}));
  EXPECT_TRUE(printed);
  EXPECT_EQ(text, "a part");
}

TEST(Reason, SeveralAreSeparatedBySemicolons) {
  std::string text;
  const Reason reason(text);
  reason.give("needs ", 7);
  reason.give("has ", 3);
  EXPECT_EQ(text, "needs 7; has 3");
}

TEST(Reason, DeclinesForFunctionsThatReturnAnOptional) {
  std::string text;
  const auto decide = [](const Reason& reason) -> std::optional<int> {
    return reason.decline("requires ", 7);
  };
  EXPECT_FALSE(decide(Reason(text)));
  EXPECT_FALSE(decide(Reason()));
  EXPECT_EQ(text, "requires 7");
}

}  // namespace
}  // namespace tessera::core
