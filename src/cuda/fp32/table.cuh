// Which instances of the kernels are compiled. The files *_from80.cu and *_sm75.cu expand these for one way to multiply.
#pragma once

#include "cuda/common/instances.h"
#include "cuda/fp32/config.h"

namespace tessera::cuda::fp32 {

// Calls f(Use<dim>) for the dim given at run time.
template <typename F>
const void* with_dim(int dim, F&& f) {
  if (dim == 64) return f(Use<64>{});
  if (dim == 128) return f(Use<128>{});
  return f(Use<256>{});
}

template <typename F>
const void* with_instance(Instance instance, F&& f) {
  if (instance == Instance::large) return f(Use<Instance::large>{});
  return instance == Instance::plain ? f(Use<Instance::plain>{}) : f(Use<Instance::featured>{});
}

template <typename F>
const void* with_flag(bool flag, F&& f) {
  return flag ? f(Use<true>{}) : f(Use<false>{});
}

}  // namespace tessera::cuda::fp32
