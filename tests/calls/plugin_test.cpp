// The static library inside a plugin that is unloaded: no thread of it may be left in code that is
// gone.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <thread>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

namespace tessera::test {
namespace {

// The library's tables are never destroyed, so that late destructors may call. A plugin that
// is unloaded leaves them, a few hundred bytes each, and the leak detector would report them.
struct TablesMayStay {
#if defined(__SANITIZE_ADDRESS__)
  __lsan::ScopedDisabler disabler;
#endif
  TablesMayStay() {}
};

// The plugin while it is loaded.
class Plugin {
 public:
  Plugin() {
    const TablesMayStay tables_may_stay;
    handle_ = dlopen(TESSERA_TEST_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) throw std::runtime_error(dlerror());
  }
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;
  ~Plugin() { EXPECT_EQ(dlclose(handle_), 0); }

  [[nodiscard]] bool call(int threads, bool standard = false) const {
    const TablesMayStay tables_may_stay;
    return reinterpret_cast<bool (*)(int, bool)>(dlsym(handle_, "plugin_call"))(threads, standard);
  }

  [[nodiscard]] bool has_standard() const {
    const TablesMayStay tables_may_stay;
    return reinterpret_cast<bool (*)()>(dlsym(handle_, "plugin_has_standard"))();
  }

 private:
  void* handle_ = nullptr;
};

// How many threads this process has: `expected` as soon as it is so many. A thread
// that was joined is gone from /proc a moment later.
int threads(int expected) {
  int count = 0;
  for (int attempt = 0; attempt < 200; ++attempt) {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    count = static_cast<int>(std::distance(begin(tasks), end(tasks)));
    if (count == expected) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return count;
}

// The threads there are without the plugin's.
int threads_before() {
  std::thread([] {}).join();  // ThreadSanitizer starts one of its own with the first
  return threads(1);
}

bool mapped() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.ends_with(TESSERA_TEST_PLUGIN)) return true;
  }
  return false;
}

TEST(Plugin, UnloadingEndsItsThreads) {
  const int before = threads_before();
  for (int round = 0; round < 20; ++round) {
    {
      const Plugin plugin;
      for (int call = 0; call <= round % 3; ++call) EXPECT_TRUE(plugin.call(4));
      EXPECT_EQ(threads(before + 3), before + 3);
      EXPECT_TRUE(mapped());
    }
    ASSERT_FALSE(mapped()) << "this test needs a plugin that is really unloaded";
    EXPECT_EQ(threads(before), before);
  }
}

TEST(Plugin, UnloadingBeforeItsThreadsBegin) {
  const int before = threads_before();
  for (int round = 0; round < 100; ++round) {
    {
      EXPECT_TRUE(Plugin().call(2));
    }
    ASSERT_FALSE(mapped());
  }
  EXPECT_EQ(threads(before), before);
}

// A child of this process that ends at once, as it should.
void expect_a_fork_works() {
  const pid_t child = fork();
  if (child == 0) _exit(7);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

// What the plugin registered for forks is gone with it.
TEST(Plugin, AForkAfterwards) {
  {
    EXPECT_TRUE(Plugin().call(2));
  }
  ASSERT_FALSE(mapped());
  expect_a_fork_works();
}

// OpenBLAS stays, with its threads; what the plugin registered for forks and its own threads are
// gone. Last in this file, because the tests above count the threads of a process without OpenBLAS.
TEST(Plugin, UnloadingAfterACallOfStandard) {
  threads_before();
  int left = 0;
  for (int round = 0; round < 10; ++round) {
    {
      const Plugin plugin;
      if (!plugin.has_standard()) GTEST_SKIP() << "OpenBLAS is not installed";
      EXPECT_TRUE(plugin.call(1, true));
      EXPECT_TRUE(plugin.call(4, true));
    }
    ASSERT_FALSE(mapped());
    expect_a_fork_works();
    if (round == 0) left = threads(0);
    EXPECT_EQ(threads(left), left);
  }
}

}  // namespace
}  // namespace tessera::test
