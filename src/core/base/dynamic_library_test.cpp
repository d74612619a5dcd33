#include "core/base/dynamic_library.h"

#include <gtest/gtest.h>

namespace tessera::core {
namespace {

TEST(DynamicLibrary, FindsFunctionsAndNamesThoseThatAreMissing) {
  DynamicLibrary library;
  ASSERT_TRUE(library.open("libc.so.6", {"/there/is/no/such/folder/", ""}));
  int (*absolute)(int) = nullptr;
  library.find(absolute, "abs");
  ASSERT_NE(absolute, nullptr);
  EXPECT_EQ(absolute(-3), 3);
  EXPECT_EQ(library.missing(), "");
  library.find(absolute, "no_such_function");
  EXPECT_EQ(absolute, nullptr);
  EXPECT_EQ(library.missing(), "libc.so.6 has no no_such_function");
}

TEST(DynamicLibrary, SaysWhenNoFolderHasIt) {
  EXPECT_FALSE(DynamicLibrary().open("libno_such_library.so.1"));
  EXPECT_FALSE(DynamicLibrary().open("libc.so.6", {"/there/is/no/such/folder/"}));
}

}  // namespace
}  // namespace tessera::core
