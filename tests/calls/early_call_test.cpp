// A call may come from the initialiser of a static object, before the library has made its own
// static data.
#include <gtest/gtest.h>

#include "memory_problem.h"

namespace tessera::test {
namespace {

bool forward_and_backward_are_right() {
  Problem problem;
  forward({}, problem.forward_tensors);
  const bool right = problem.forward_is_right();
  forward({}, problem.forward_tensors);
  backward({}, problem.backward_tensors);
  return right && problem.backward_is_right();
}

// The linker puts this file before those of the library, so its static data is made first.
const bool early_call_was_right = forward_and_backward_are_right();

TEST(EarlyCall, FromAnInitialiserOfStaticDataIsLikeAnyOther) {
  EXPECT_TRUE(early_call_was_right);
  EXPECT_TRUE(forward_and_backward_are_right());
}

}  // namespace
}  // namespace tessera::test
