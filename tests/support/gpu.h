// What the tests on a GPU share. Where there is no GPU every test says so and is skipped.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "cuda/common/host/gpus.h"
#include "reference/cases/device_case.h"
#include "reference/tolerance/check.h"
#include "support/kernels.h"
#include "tessera/error.h"

#if TESSERA_HAVE_CUDA
#include "cuda/common/host/device.h"
#endif

namespace tessera::test {

using reference::Case;
using reference::CaseSpec;
using reference::DeviceCase;
using reference::ForceKernel;

inline std::vector<std::string> gpu_kernels() {
  std::vector<std::string> names;
  for (const KernelInfo& kernel : kernels()) {
    const bool listed = std::find(names.begin(), names.end(), kernel.name) != names.end();
    if (kernel.device == DeviceType::cuda && kernel.direction == Direction::forward && !listed) {
      names.push_back(kernel.name);
    }
  }
  return names;
}

// Whether a kernel can serve a case in a direction, on this machine.
inline bool serves(const std::string& kernel, const Case& problem, Direction direction) {
  const ForceKernel forced(kernel);
  auto on_gpu = [](auto tensors, auto... members) {
    (((tensors.*members).device = Device::cuda(0)), ...);
    return tensors;
  };
  Attention attention = problem.attention;
  if (attention.mask.lengths.count != 0) {
    attention.mask.lengths.max_q = problem.spec().q_length;
    attention.mask.lengths.max_k = problem.spec().k_length;
  }
  try {
    if (direction == Direction::forward) {
      using T = ForwardTensors;
      (void)plan(attention,
                 on_gpu(problem.forward, &T::q, &T::k, &T::v, &T::bias, &T::out, &T::lse, &T::visible));
    } else {
      using T = BackwardTensors;
      (void)plan(attention,
                 on_gpu(problem.backward, &T::q, &T::k, &T::v, &T::bias, &T::out, &T::lse, &T::grad_out,
                        &T::grad_lse, &T::grad_q, &T::grad_k, &T::grad_v, &T::grad_bias, &T::visible));
    }
    return true;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported) << error.what();
    return false;
  }
}

// Both directions on the GPU: each by the kernel named where it serves it, else by
// the automatic choice, which takes what the other left. False: it serves neither.
inline bool run_where_served(Case& problem, const std::string& kernel) {
  const bool forwards = serves(kernel, problem, Direction::forward);
  const bool backwards = serves(kernel, problem, Direction::backward);
  if (!forwards && !backwards) return false;
  DeviceCase copy(problem.attention, problem.forward, problem.backward, Device::cuda(0));
  {
    const ForceKernel forced(forwards ? kernel : "");
    forward(copy.attention, copy.forward);
  }
  {
    const ForceKernel forced(backwards ? kernel : "");
    backward(copy.attention, copy.backward);
  }
  EXPECT_EQ(copy.fetch(), "");
  return true;
}

class Gpu : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = cuda::unusable(0); !reason.empty()) GTEST_SKIP() << reason;
  }
};

// Calls test(kernel, dtype) for every kernel in every type that it serves at all.
inline void for_each_lane(const std::function<void(const std::string& kernel, DType dtype)>& test) {
  int lanes = 0;
  for (const std::string& kernel : gpu_kernels()) {
    for (const DType dtype : kDTypes) {
      if (!serves(kernel, Case({.dtype = dtype, .q_length = 8, .k_length = 8}), Direction::forward)) continue;
      SCOPED_TRACE(kernel + " in " + name(dtype));
      try {
        test(kernel, dtype);
      } catch (const std::exception& error) {  // the other kernels are tested all the same
        ADD_FAILURE() << error.what();
      }
      ++lanes;
    }
  }
  EXPECT_GT(lanes, 0);
}

#if TESSERA_HAVE_CUDA

using cuda::check;

// A stream that does not wait for the default stream.
class Stream {
 public:
  Stream() { cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate"); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }  // NOLINT: as CUDA takes it
  void wait() const { cuda::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_ = nullptr;
};

// A captured graph.
class Graph {
 public:
  Graph(const Stream& stream, const std::function<void()>& calls) {
    cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
    try {
      calls();
    } catch (...) {
      cudaStreamEndCapture(stream, &graph_);
      throw;
    }
    cuda::check(cudaStreamEndCapture(stream, &graph_), "cudaStreamEndCapture");
    cuda::check(cudaGraphInstantiate(&executable_, graph_, 0), "cudaGraphInstantiate");
  }
  ~Graph() {
    cudaGraphExecDestroy(executable_);
    cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void replay(const Stream& stream) const {
    cuda::check(cudaGraphLaunch(executable_, stream), "cudaGraphLaunch");
    stream.wait();
  }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

#endif

}  // namespace tessera::test
