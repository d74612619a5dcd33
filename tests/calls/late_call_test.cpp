// A call may come from the destructor of a static object, however late that runs:
// nothing of the library is gone by then.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

#include "counting_new.h"
#include "cpu/machine/target.h"
#include "memory_problem.h"
#include "support/kernels.h"

namespace tessera::test {
namespace {

// Everything that the library keeps in static data is used, and gives the same as before.
struct Everything {
  Problem problem;
  std::string texts;

  std::string collect() {
    std::string all = build_info();
    for (const Algorithm algorithm : {Algorithm::automatic, Algorithm::standard, Algorithm::flash1}) {
      if (!served(algorithm)) continue;
      const Attention attention{.mask = {.blocks = BlockMask::local({.q_length = Problem::kRows,
                                                                     .k_length = Problem::kKeys,
                                                                     .block_q = 128,
                                                                     .block_k = 128,
                                                                     .heads = 1},
                                                                    1)},
                                .algorithm = algorithm};
      for (const int threads : {1, 2, 0}) {
        forward(attention, problem.forward_tensors, {.threads = threads});
        all += problem.forward_is_right() ? "right\n" : "wrong\n";
        forward(attention, problem.forward_tensors, {.threads = threads});
        backward(attention, problem.backward_tensors, {.threads = threads});
        all += problem.backward_is_right() ? "right\n" : "wrong\n";
      }
      all += to_string(plan(attention, problem.forward_tensors));
      all += to_string(plan(attention, problem.backward_tensors));
    }
    try {
      (void)plan({}, Shapes{.q_length = 8, .k_length = 8}, Device::cuda(63));
    } catch (const Error& error) {
      all += error.what();
    }
    for (const DeviceInfo& device : devices()) all += device.name + device.description;
    for (const KernelInfo& kernel : kernels()) all += kernel.name;
    for (const cpu::Target target : cpu::available_targets()) all += name(target);
    return all + error_without_memory();
  }

  // What a call says that gets no memory, not even for its error.
  std::string error_without_memory() {
    std::string text(100, ' ');
    {
      const Failing failing(0, true);
      try {
        forward({}, problem.forward_tensors, {.threads = 1});
      } catch (const Error& error) {
        text = error.what();  // within its capacity
      }
    }
    return text;
  }
};

// Made before the library's static data, and so destroyed after it.
struct Late {
  std::unique_ptr<Everything> everything;

  ~Late() {
    if (everything == nullptr) return;
    const std::string again = everything->collect();
    const bool right = again == everything->texts && again.find("wrong") == std::string::npos;
    std::cerr << (right ? "as before" : "something else: " + again) << std::endl;
    std::_Exit(right ? 0 : 1);
  }
} late;

TEST(LateCall, FromADestructorAfterThoseOfStaticDataIsLikeAnyOther) {
  if (std::getenv("QEMU_CPU") != nullptr) GTEST_SKIP() << "qemu-user cannot start the program again";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        late.everything = std::make_unique<Everything>();
        late.everything->texts = late.everything->collect();
        std::exit(2);  // the destructor sets the status
      },
      testing::ExitedWithCode(0), "as before");
}

}  // namespace
}  // namespace tessera::test
