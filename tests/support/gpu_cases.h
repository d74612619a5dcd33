// Which kernels for GPUs there are, and cases on a GPU: for the tests on one and on the model of
// one.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "reference/cases/device_case.h"
#include "reference/tolerance/check.h"
#include "tessera/error.h"
#include "tessera/plan.h"

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

}  // namespace tessera::test
