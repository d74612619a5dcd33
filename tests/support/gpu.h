// What the tests on a GPU share. Where there is no GPU every test says so and is skipped.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "cuda/common/host/gpus.h"
#include "support/gpu_cases.h"
#include "support/kernels.h"

#if TESSERA_HAVE_CUDA
#include "cuda/common/host/device.h"
#endif

namespace tessera::test {

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
