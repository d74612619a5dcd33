// What a call leaves as it was: the caller's context, device and pending errors.
// And a second GPU, first calls, large grids.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/common/host/context.h"
#include "cuda/common/host/images.h"
#include "cuda/common/host/launch.h"
#include "cuda/common/host/limits.h"
#include "cuda/common/host/memory.h"
#include "cuda/fp32/config.h"
#include "cuda/mma/forward/launch.h"
#include "cuda/sm90/forward/launch.h"
#include "support/gpu.h"
#include "support/tensors.h"

#if TESSERA_HAVE_CUDA

#include <cuda.h>

namespace tessera::test {
namespace {

using cuda::check;

template <typename Function>
Function driver_function(const char* name, unsigned since = 12000) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
  check(cudaGetDriverEntryPointByVersion(name, &found, since, cudaEnableDefault, &result), name);
#else
  (void)since;
  check(cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result), name);
#endif
  return reinterpret_cast<Function>(found);
}

CUcontext current_context() {
  CUcontext context = nullptr;
  EXPECT_EQ(driver_function<decltype(&cuCtxGetCurrent)>("cuCtxGetCurrent")(&context), CUDA_SUCCESS);
  return context;
}

bool primary_context_is_active(int device) {
  unsigned flags = 0;
  int active = 0;
  EXPECT_EQ(driver_function<decltype(&cuDevicePrimaryCtxGetState)>("cuDevicePrimaryCtxGetState")(
                device, &flags, &active),
            CUDA_SUCCESS);
  return active != 0;
}

CaseSpec causal_case(DType dtype = DType::fp16) {
  return {.dtype = dtype, .q_length = 200, .k_length = 200, .qk_dim = 64, .v_dim = 64, .right = 0};
}

std::string run_and_judge(const CaseSpec& spec, int device, const std::string& kernel = "") {
  const reference::Verdict verdict = reference::verify(spec, kernel, {}, Device::cuda(device));
  return verdict.ok ? "" : verdict.message;
}

// Tests of a process' first calls run in one of their own, which the test program starts for them.
class FirstCall : public Gpu {
 protected:
  void SetUp() override {
    Gpu::SetUp();
    GTEST_FLAG_SET(death_test_style, "threadsafe");
  }
};

[[noreturn]] void finish(const std::string& problem) {
  if (!problem.empty()) std::fprintf(stderr, "%s\n", problem.c_str());
  std::_Exit(problem.empty() ? 0 : 1);
}

// A thread that has never used CUDA has no context before a call, and none after it.
TEST_F(Gpu, AThreadWithoutAContextKeepsNone) {
  for (const DType dtype : {DType::fp32, DType::fp16}) {
    Case problem(causal_case(dtype));
    DeviceCase copy(problem.attention, problem.forward, problem.backward, Device::cuda(0));
    std::thread([&] {
      CUcontext before = nullptr;
      const auto get = driver_function<decltype(&cuCtxGetCurrent)>("cuCtxGetCurrent");
      ASSERT_EQ(get(&before), CUDA_SUCCESS);
      ASSERT_EQ(before, nullptr);
      forward(copy.attention, copy.forward);
      backward(copy.attention, copy.backward);
      EXPECT_EQ(current_context(), nullptr);
    }).join();
    EXPECT_EQ(copy.fetch(), "");
    EXPECT_TRUE(judge(problem, expect(problem)).ok);
  }
}

// Whatever context of the device is current stays so, and it is the one that the library works in.
TEST_F(Gpu, TheCallersContextIsKept) {
  check(cudaFree(nullptr), "cudaFree");
  const CUcontext primary = current_context();
  ASSERT_NE(primary, nullptr);
  EXPECT_EQ(run_and_judge(causal_case(), 0), "");
  EXPECT_EQ(current_context(), primary);

  // One that the caller made with the driver.
  using Create = CUresult (*)(CUcontext*, unsigned, CUdevice);
  const auto create = driver_function<Create>("cuCtxCreate", 11000);
  const auto destroy = driver_function<decltype(&cuCtxDestroy)>("cuCtxDestroy");
  CUcontext own = nullptr;
  ASSERT_TRUE(create != nullptr && destroy != nullptr);
  ASSERT_EQ(create(&own, 0, 0), CUDA_SUCCESS);
  {
    const cuda::DeviceScope scope(0);
    EXPECT_EQ(current_context(), own);
  }
  // Kernels, workspace and the handles of cuBLAS are those of this context, although the primary
  // one has had its own.
  for (const std::string& kernel : gpu_kernels()) {
    const Case problem(causal_case());
    if (!serves(kernel, problem, Direction::forward)) continue;
    SCOPED_TRACE(kernel);
    EXPECT_EQ(run_and_judge(causal_case(), 0, kernel), "");
    EXPECT_EQ(current_context(), own);
  }
  EXPECT_EQ(destroy(own), CUDA_SUCCESS);
  EXPECT_EQ(run_and_judge(causal_case(), 0), "");
}

// A context that takes the place of a destroyed one gets handles of its own.
TEST_F(Gpu, AContextHasANumberOfItsOwn) {
  using Create = CUresult (*)(CUcontext*, unsigned, CUdevice);
  const auto create = driver_function<Create>("cuCtxCreate", 11000);
  const auto destroy = driver_function<decltype(&cuCtxDestroy)>("cuCtxDestroy");
  check(cudaFree(nullptr), "cudaFree");
  const bool cublas = serves("cuda.standard", Case(causal_case()), Direction::forward);
  std::vector<std::uint64_t> ids = {cuda::current_context_id()};
  for (int i = 0; i < 3; ++i) {
    CUcontext own = nullptr;
    ASSERT_EQ(create(&own, 0, 0), CUDA_SUCCESS);
    ids.push_back(cuda::current_context_id());
    EXPECT_EQ(run_and_judge(causal_case(), 0, cublas ? "cuda.standard" : ""), "");
    EXPECT_EQ(destroy(own), CUDA_SUCCESS);
  }
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(std::unique(ids.begin(), ids.end()), ids.end());
}

// An error that the caller has not looked at yet is still there after a call, and a
// call that fails leaves none of its own.
TEST_F(Gpu, NobodysErrorIsSwallowed) {
  Case problem(causal_case());
  DeviceCase copy(problem.attention, problem.forward, problem.backward, Device::cuda(0));
  forward(copy.attention, copy.forward);
  cuda::synchronize(0);
  ASSERT_EQ(cudaPeekAtLastError(), cudaSuccess);

  ASSERT_EQ(cudaSetDevice(1000), cudaErrorInvalidDevice);
  forward(copy.attention, copy.forward);
  backward(copy.attention, copy.backward);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
  cuda::synchronize(0);

  int argument = 0;
  EXPECT_THROW(
      cuda::launch({.kernel = reinterpret_cast<const void*>(&cuda::grid_limit), .arguments = &argument},
                   "no kernel", 1, 32, 0, nullptr),
      Error);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

// What the driver has loaded is what image_for works out from the build, for a kernel of each Code.
TEST_F(Gpu, TheDriverLoadsTheImageThatTheBuildExpects) {
  int major = 0, minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0), "cudaDeviceGetAttribute");
  const int capability = 10 * major + minor;
  auto address = [](auto* kernel) { return reinterpret_cast<const void*>(kernel); };
  const std::pair<cuda::Code, const void*> kernels[] = {
      {cuda::Code::any, address(cuda::fp32::delta_kernel())},
      {cuda::Code::sm75, address(cuda::flash2_sm75_forward_fp16().front().kernel)},
      {cuda::Code::from80, address(cuda::flash2_forward_fp16().front().kernel)},
      {cuda::Code::sm90, address(cuda::hopper_forward_fp16().front().kernel)},
  };
  for (const auto& [code, kernel] : kernels) {
    SCOPED_TRACE(std::string(cuda::architectures_of(code)) + " on " + std::to_string(capability));
    const cuda::Image image = cuda::image_for(cuda::architectures_of(code), capability);
    cudaFuncAttributes loaded{};
    const cudaError_t status = cudaFuncGetAttributes(&loaded, kernel);
    cuda::forget(status);
    if (image.capability == 0) {
      EXPECT_NE(status, cudaSuccess) << "version " << loaded.binaryVersion;
      continue;
    }
    ASSERT_EQ(status, cudaSuccess) << cudaGetErrorString(status);
    EXPECT_EQ(loaded.binaryVersion, image.ptx ? capability : image.capability);
    EXPECT_EQ(loaded.ptxVersion, image.capability);
  }
}

// More thread blocks than a grid holds are refused before CUDA could take a number
// that wraps round.
TEST_F(Gpu, NoGridWrapsRound) {
  int argument = 0;
  for (const std::int64_t grid : {std::int64_t{1} << 31, (std::int64_t{1} << 32) + 32}) {
    try {
      cuda::launch({.kernel = reinterpret_cast<const void*>(&cuda::grid_limit), .arguments = &argument},
                   "too many", grid, 32, 0, nullptr);
      FAIL() << grid << " thread blocks were accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::device_failure);
      EXPECT_NE(std::string(error.what()).find("2^31 - 1"), std::string::npos) << error.what();
    }
  }
}

// The caller works on GPU 0 and hands over tensors of GPU 1.
TEST_F(Gpu, ASecondGpu) {
  if (cuda::device_count() < 2)
    GTEST_SKIP() << "this machine has " << cuda::device_count() << " GPU; 2 are needed";
  check(cudaSetDevice(0), "cudaSetDevice");
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    EXPECT_EQ(run_and_judge(causal_case(dtype), 1), "");
    int current = -1;
    check(cudaGetDevice(&current), "cudaGetDevice");
    EXPECT_EQ(current, 0);
  }
}

// A process that uses GPU 1 alone gets no context on GPU 0, which would take
// hundreds of megabytes there.
TEST_F(FirstCall, NoContextOnAnotherGpu) {
  if (cuda::device_count() < 2)
    GTEST_SKIP() << "this machine has " << cuda::device_count() << " GPU; 2 are needed";
  EXPECT_EXIT(
      {
        std::string problem = run_and_judge(causal_case(), 1);
        if (problem.empty() && primary_context_is_active(0)) problem = "GPU 0 has a context";
        finish(problem);
      },
      testing::ExitedWithCode(0), "");
}

// On a GPU without memory pools workspace is ordinary memory, which a graph cannot take.
TEST_F(Gpu, WorkspaceWithoutMemoryPools) {
  const cuda::WithoutMemoryPools scope;
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    SCOPED_TRACE(name(dtype));
    EXPECT_EQ(run_and_judge(causal_case(dtype), 0), "");
  }
  Case problem(causal_case());
  DeviceCase copy(problem.attention, problem.forward, problem.backward, Device::cuda(0));
  const Stream stream;
  forward(copy.attention, copy.forward, {.stream = stream});
  backward(copy.attention, copy.backward, {.stream = stream});
  stream.wait();
  try {
    const Graph graph(stream, [&] { backward(copy.attention, copy.backward, {.stream = stream}); });
    FAIL() << "a graph has taken ordinary memory";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported) << error.what();
    EXPECT_NE(std::string(error.what()).find("has no memory pools"), std::string::npos) << error.what();
  }
}

// The first call of a process comes while its stream is captured: nothing has been
// loaded or made yet.
TEST_F(FirstCall, InsideACapture) {
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    SCOPED_TRACE(name(dtype));
    EXPECT_EXIT(
        {
          Case problem(causal_case(dtype));
          DeviceCase copy(problem.attention, problem.forward, problem.backward, Device::cuda(0));
          const Stream stream;
          const Graph graph(stream, [&] {
            forward(copy.attention, copy.forward, {.stream = stream});
            backward(copy.attention, copy.backward, {.stream = stream});
          });
          graph.replay(stream);
          std::string text = copy.fetch();
          if (text.empty()) text = judge(problem, expect(problem)).message;
          finish(text);
        },
        testing::ExitedWithCode(0), "");
  }
}

// Two calls in one graph: each has workspace and a count of tiles of its own.
TEST_F(Gpu, TwoCausalForwardsInOneGraph) {
  for_each_lane([](const std::string& kernel, DType dtype) {
    std::vector<std::unique_ptr<Case>> alone, problems;
    std::vector<std::unique_ptr<DeviceCase>> copies;
    const ForceKernel forced(kernel);
    for (const std::uint64_t seed : {1, 2}) {
      const CaseSpec spec{.dtype = dtype,
                          .q_length = 700,
                          .k_length = seed == 1 ? 700 : 900,
                          .qk_dim = 64,
                          .v_dim = 64,
                          .right = 0,
                          .seed = seed};
      alone.push_back(std::make_unique<Case>(spec));
      DeviceCase direct(alone.back()->attention, alone.back()->forward, {}, Device::cuda(0));
      forward(direct.attention, direct.forward);
      EXPECT_EQ(direct.fetch(), "");
      problems.push_back(std::make_unique<Case>(spec));
      copies.push_back(std::make_unique<DeviceCase>(problems.back()->attention, problems.back()->forward,
                                                    BackwardTensors{}, Device::cuda(0)));
    }
    const Stream stream;
    const Graph graph(stream, [&] {
      for (const auto& copy : copies) forward(copy->attention, copy->forward, {.stream = stream});
    });
    for (int replay = 0; replay < 3; ++replay) {
      for (const auto& problem : problems) problem->poison();
      graph.replay(stream);
      for (int i = 0; i < 2; ++i) {
        EXPECT_EQ(copies[i]->fetch(), "");
        EXPECT_EQ(first_difference(alone[i]->forward, problems[i]->forward), "") << "call " << i;
      }
    }
  });
}

}  // namespace
}  // namespace tessera::test

#endif
