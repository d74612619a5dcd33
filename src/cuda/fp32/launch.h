// fp32 attention on GPUs: cuda.flash2 by three fp16 products for one (sm_80 and newer), cuda.flash2_sm75 by plain
// multiply-adds. The kernels stand beside this file; the page: docs/kernels/cuda-fp32.md.
#pragma once

#include <string>

#include "core/kernel.h"
#include "core/problem.h"

#include "cuda/common/host/device.h"
#include "cuda/fp32/config.h"

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
