// fp32 attention on GPUs: cuda.flash2 by three fp16 products for one (sm_80 and newer), cuda.flash2_sm75 by plain
// multiply-adds. The kernels: cuda/flash2_fp32; the page: docs/kernels/cuda-fp32.md.
#pragma once

#include <string>

#include "core/problem.h"
#include "registry/kernel.h"

#if TESSERA_HAVE_CUDA

#include "cuda/flash2_fp32/config.h"
#include "cuda/host/device.h"

namespace tessera::cuda {

// Whether a device lacks something for a problem in either direction, and what. A function of its arguments alone.
bool flash2_fp32_limits(fp32::Multiply multiply, const DeviceLimits& device, const core::Problem& problem,
                        core::Reason reason);

// Whether a problem takes the instances with all features.
bool flash2_fp32_featured(const core::Problem& problem);

template <fp32::Multiply M>
struct Flash2Fp32 {
  static bool limits(const core::Problem& problem, core::Reason reason);
  static registry::Configuration forward_configuration(const core::Problem& problem, int workers);
  static registry::Configuration backward_configuration(const core::Problem& problem, int workers);
  static std::string forward_details(const core::Problem& problem,
                                     const registry::Configuration& configuration);
  static std::string backward_details(const core::Problem& problem,
                                      const registry::Configuration& configuration);
  static void forward(const core::Problem& problem, const registry::Configuration& configuration,
                      const registry::Resources& resources);
  static void backward(const core::Problem& problem, const registry::Configuration& configuration,
                       const registry::Resources& resources);
};

extern template struct Flash2Fp32<fp32::Multiply::halves>;
extern template struct Flash2Fp32<fp32::Multiply::fma>;

}  // namespace tessera::cuda

#endif
