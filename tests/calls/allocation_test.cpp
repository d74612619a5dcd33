// A failure at every allocation gives out_of_memory, leaks nothing and leaves the library usable.
#include <dlpack/dlpack.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "counting_new.h"
#include "memory_problem.h"
#include "tessera/capi.h"
#include "tessera/tessera.h"

namespace tessera::test {
namespace {

// Calls `call` (which returns whether it succeeded, or throws) with a failure at allocation 0, 1,
// 2, ... until there is no such allocation any more. Every failure must be out_of_memory, nothing
// may leak, and after every call `is_right` must hold if it succeeded. Returns at how many
// allocations it failed.
template <typename Call, typename Check>
int fail_everywhere(const char* what, bool from_then_on, bool check_leaks, Call&& call, Check&& is_right) {
  static constexpr int kMany = 10'000;  // far above what any call does: stops a loop that would not end
  for (int n = 0; n < kMany; ++n) {
    const std::int64_t before = live_blocks;
    bool succeeded = false, out_of_memory = false, other = false;
    {
      const Failing failing(n, from_then_on);
      try {
        succeeded = call();
        out_of_memory = !succeeded;
      } catch (const Error& error) {
        out_of_memory = error.code() == ErrorCode::out_of_memory && error.what()[0] != '\0';
      } catch (...) {
        other = true;
      }
    }
    const std::int64_t leaked = live_blocks - before;
    EXPECT_FALSE(other) << what << ": something other than tessera::Error came out, allocation " << n;
    EXPECT_TRUE(succeeded || out_of_memory) << what << ": not out_of_memory, or no message, allocation " << n;
    if (succeeded) {
      EXPECT_TRUE(is_right()) << what << ": succeeded with a wrong result, allocation " << n;
    }
    if (check_leaks) {
      EXPECT_EQ(leaked, 0) << what << ": blocks leaked, allocation " << n;
    }
    if (!has_failed) {
      EXPECT_TRUE(succeeded) << what << ": failed without a failed allocation";
      return n;
    }
  }
  ADD_FAILURE() << what << ": does not come to an end";
  return kMany;
}

// Both ways of failing, then the call as usual.
template <typename Call, typename Check>
void survives(const char* what, Call&& call, Check&& is_right) {
  ASSERT_TRUE(call()) << what;  // warm: tables, pool and locale are made once and stay
  ASSERT_TRUE(is_right()) << what;
  for (const bool from_then_on : {false, true}) {
    const int failures = fail_everywhere(what, from_then_on, true, call, is_right);
    EXPECT_GT(failures, 0) << what << ": allocates nothing, so that nothing was tested";
    EXPECT_TRUE(call()) << what;
    EXPECT_TRUE(is_right()) << what;
  }
}

// First in this file, so that it runs before anything is warm: tables and threads
// are made under failure.
TEST(AllocationFailure, FirstCallOfTheProcess) {
  Problem problem;
  fail_everywhere(
      "first forward", false, false, [&] { return forward({}, problem.forward_tensors), true; },
      [&] { return problem.forward_is_right(); });
}

constexpr Algorithm kAlgorithms[] = {Algorithm::automatic, Algorithm::standard, Algorithm::flash2};

TEST(AllocationFailure, Forward) {
  Problem problem;
  for (const Algorithm algorithm : kAlgorithms) {
    if (!served(algorithm)) continue;
    const Attention attention{.algorithm = algorithm};
    survives(
        name(algorithm), [&] { return forward(attention, problem.forward_tensors), true; },
        [&] { return problem.forward_is_right(); });
  }
}

TEST(AllocationFailure, Backward) {
  Problem problem;
  forward({}, problem.forward_tensors);
  for (const Algorithm algorithm : kAlgorithms) {
    if (!served(algorithm)) continue;
    const Attention attention{.algorithm = algorithm};
    survives(
        name(algorithm), [&] { return backward(attention, problem.backward_tensors), true; },
        [&] { return problem.backward_is_right(); });
  }
}

TEST(AllocationFailure, PlansAndTexts) {
  Problem problem;
  const Shapes shapes{.q_length = 512, .k_length = 512};
  const std::string expected_text = to_string(plan({}, shapes)), expected_info = build_info();
  std::string kernel, text, info;
  kernel.reserve(256);
  auto clear = [&] { return kernel.clear(), true; };
  survives(
      "plan of shapes",
      [&] {
        const Plan made = plan({}, shapes);
        return kernel.assign(made.kernel), true;  // within its capacity
      },
      [&] { return !kernel.empty() && clear(); });
  survives(
      "plan of a backward call",
      [&] { return plan({}, problem.backward_tensors).direction == Direction::backward; },
      [] { return true; });
  bool right = false;
  survives(
      "text of a plan", [&] { return right = to_string(plan({}, shapes)) == expected_text, true; },
      [&] { return right; });
  survives("build_info", [&] { return right = build_info() == expected_info, true; }, [&] { return right; });
  const std::size_t kernel_count = kernels().size(), device_count = devices().size();
  survives("kernels", [&] { return right = kernels().size() == kernel_count, true; }, [&] { return right; });
  survives("devices", [&] { return right = devices().size() == device_count, true; }, [&] { return right; });
  survives(
      "alibi_slopes", [&] { return right = alibi_slopes(12).size() == 12, true; }, [&] { return right; });
}

// The message of a refusal is made in memory too: without any it is out_of_memory that is reported.
TEST(AllocationFailure, WhileRefusing) {
  Problem problem;
  ForwardTensors wrong = problem.forward_tensors;
  wrong.k.shape[3] = 7;
  auto refused = [&] {
    try {
      forward({}, wrong);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_argument) throw;
      return std::string_view(error.what()) == "k.shape[3] (head_dim) is 7; it must be 8, as q";
    }
    return false;
  };
  survives("refusal", refused, [] { return true; });
}

TEST(AllocationFailure, WhileRefusingMasksAndTensors) {
  // Whether `call` is refused as invalid; what else comes out goes on.
  auto refused = [](auto&& call) {
    return [call] {
      try {
        call();
      } catch (const Error& error) {
        if (error.code() != ErrorCode::invalid_argument) throw;
        return true;
      }
      return false;
    };
  };
  auto always = [] { return true; };
  const BlockLayout layout{.q_length = 64, .k_length = 64, .block_q = 8, .block_k = 8};
  std::int64_t shape[3] = {1, -2, 3};
  DLTensor foreign{};
  foreign.device = {kDLCPU, 0};
  foreign.ndim = 3;
  foreign.dtype = {kDLFloat, 32, 1};
  foreign.shape = shape;
  survives("from_dlpack", refused([&] { (void)from_dlpack(&foreign, TensorRole::tokens); }), always);
  survives("two diagonals", refused([] { (void)(causal_at(1) & causal_at(2)); }), always);
  survives("BlockMask::local", refused([&] { (void)BlockMask::local(layout, -1); }), always);
  survives("BlockMask::from_csr", refused([&] { (void)BlockMask::from_csr(layout, {}, {}); }), always);
  survives("BlockMask::row", refused([&] { (void)BlockMask().row(0, 0); }), always);
  survives("alibi_slopes", refused([] { (void)alibi_slopes(-1); }), always);
  survives("plan", refused([] { (void)plan({}, Shapes{.batch = -1}); }), always);
  const Attention flash3{.algorithm = Algorithm::flash3};
  survives(
      "unsupported",
      [&] {
        try {
          (void)plan(flash3, Shapes{});
        } catch (const Error& error) {
          if (error.code() != ErrorCode::unsupported) throw;
          return true;
        }
        return false;
      },
      always);
}

TEST(AllocationFailure, BlockMasks) {
  const BlockLayout layout{.q_length = 512, .k_length = 512, .block_q = 32, .block_k = 32, .heads = 2};
  std::vector<std::int64_t> offsets(33);
  std::vector<std::int32_t> columns(32);
  for (int i = 0; i < 32; ++i) {
    offsets[static_cast<std::size_t>(i) + 1] = i + 1;
    columns[static_cast<std::size_t>(i)] = i % 16;
  }
  const std::vector<std::uint8_t> kept(512, 1), visible(512 * 512 * 2, 1);
  std::int64_t count = 0;
  auto makes = [&](const char* what, std::int64_t expected, auto&& make) {
    survives(what, [&] { return count = make().kept(), true; }, [&] { return count == expected; });
  };
  makes("from_csr", 32, [&] { return BlockMask::from_csr(layout, offsets, columns); });
  makes("from_blocks", 512, [&] { return BlockMask::from_blocks(layout, kept); });
  makes("from_dense", 512, [&] { return BlockMask::from_dense(layout, visible); });
  makes("local", 92, [&] { return BlockMask::local(layout, 1); });
  makes("strided", BlockMask::strided(layout, 4).kept(), [&] { return BlockMask::strided(layout, 4); });
  makes("fixed", BlockMask::fixed(layout, 4).kept(), [&] { return BlockMask::fixed(layout, 4); });
  makes("big_bird", BlockMask::big_bird(layout, 1, 1, 2).kept(),
        [&] { return BlockMask::big_bird(layout, 1, 1, 2); });
  makes("butterfly", BlockMask::butterfly(layout).kept(), [&] { return BlockMask::butterfly(layout); });
  makes("random", 128, [&] { return BlockMask::random(layout, 0.25); });
  const BlockMask mask = BlockMask::local(layout, 1);
  bool right = false;
  survives("draw", [&] { return right = mask.draw().size() == 16 * 17, true; }, [&] { return right; });
}

// --- the C interface -----------------------------------------------------------------------------

tsr_tensor to_c(const Tensor& t) {
  return tsr_tensor_contiguous(t.data, static_cast<tsr_dtype>(t.dtype), t.shape[0], t.shape[1], t.shape[2],
                               t.shape[3]);
}

// TSR_OK: true; TSR_OUT_OF_MEMORY with a text: false; anything else fails the test.
bool status_is_ok(tsr_status status) {
  EXPECT_TRUE(status == TSR_OK || status == TSR_OUT_OF_MEMORY) << status << ": " << tsr_last_error();
  EXPECT_TRUE(status == TSR_OK || tsr_last_error()[0] != '\0');
  return status == TSR_OK;
}

TEST(AllocationFailure, CInterface) {
  Problem problem;
  const tsr_tensor q = to_c(problem.forward_tensors.q), k = to_c(problem.forward_tensors.k);
  const tsr_tensor v = to_c(problem.forward_tensors.v), out = to_c(problem.forward_tensors.out);
  const tsr_tensor lse = to_c(problem.forward_tensors.lse);
  tsr_forward_tensors tensors = TSR_FORWARD_TENSORS_INIT;
  tensors.q = &q, tensors.k = &k, tensors.v = &v, tensors.out = &out, tensors.lse = &lse;
  survives(
      "tsr_forward", [&] { return status_is_ok(tsr_forward(nullptr, &tensors, nullptr)); },
      [&] { return problem.forward_is_right(); });

  auto always = [] { return true; };
  survives(
      "tsr_plan_forward",
      [&] {
        tsr_plan plan = TSR_PLAN_INIT;
        const bool made = status_is_ok(tsr_plan_forward(nullptr, &tensors, nullptr, &plan));
        EXPECT_EQ(plan.storage != nullptr, made);
        tsr_plan_release(&plan);
        return made;
      },
      always);
  survives(
      "tsr_block_mask_random",
      [] {
        const tsr_block_layout layout{sizeof(tsr_block_layout), 512, 512, 32, 32, 2};
        tsr_block_mask* mask = nullptr;
        const bool made = status_is_ok(tsr_block_mask_random(&layout, 0.5, 1, &mask));
        EXPECT_EQ(mask != nullptr, made);
        tsr_block_mask_release(mask);
        return made;
      },
      always);
  survives(
      "tsr_kernel_list_create",
      [] {
        tsr_kernel_list* list = nullptr;
        const bool made = status_is_ok(tsr_kernel_list_create(&list, nullptr));
        EXPECT_EQ(list != nullptr, made);
        tsr_kernel_list_release(list);
        return made;
      },
      always);
  survives(
      "tsr_device_list_create",
      [] {
        tsr_device_list* list = nullptr;
        const bool made = status_is_ok(tsr_device_list_create(&list, nullptr));
        tsr_device_list_release(list);
        return made;
      },
      always);
  survives(
      "tsr_build_info",
      [] {
        std::size_t length = 0;
        return status_is_ok(tsr_build_info(nullptr, 0, &length));
      },
      always);
}

TEST(CallersAllocator, WithoutMemoryIsOutOfMemory) {
  Problem problem;
  Counting allocator;
  const Execution execution{.allocator = &allocator};
  auto code_of = [](auto&& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode{};
  };
  allocator.empty = true;
  EXPECT_EQ(code_of([&] { forward({}, problem.forward_tensors, execution); }), ErrorCode::out_of_memory);
  EXPECT_EQ(code_of([&] { backward({}, problem.backward_tensors, execution); }), ErrorCode::out_of_memory);
  EXPECT_EQ(problem.out[0], -1.0F);  // untouched
  EXPECT_EQ(problem.grad_v[0], -1.0F);
  allocator.empty = false;
  forward({}, problem.forward_tensors, execution);
  EXPECT_EQ(allocator.blocks, 0);
  backward({}, problem.backward_tensors, execution);
  EXPECT_TRUE(problem.forward_is_right());
  EXPECT_TRUE(problem.backward_is_right());
  EXPECT_EQ(allocator.blocks, 0);
  EXPECT_EQ(allocator.asked, allocator.returned);
}

}  // namespace
}  // namespace tessera::test
