#include "cuda/common/instances.h"

#include <gtest/gtest.h>

namespace tessera::cuda {
namespace {

struct Shape {
  int rows, columns;
};

constexpr std::array kShapes = {Shape{3, 5}, Shape{7, 2}, Shape{1, 1}};

template <typename Used>
int area() {
  return Used::value.rows * Used::value.columns;
}

struct Entry {
  Shape shape;
  int (*function)();
};

TEST(Instances, FollowTheTable) {
  static constexpr auto kEntries = instances<kShapes>([]<typename C>(C) { return Entry{C::value, area<C>}; });
  static_assert(kEntries.size() == kShapes.size());
  for (std::size_t i = 0; i < kShapes.size(); ++i) {
    EXPECT_EQ(kEntries[i].shape.rows, kShapes[i].rows);
    EXPECT_EQ(kEntries[i].function(), kShapes[i].rows * kShapes[i].columns);
  }
}

}  // namespace
}  // namespace tessera::cuda
