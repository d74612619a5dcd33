// Which fp32 kernels are compiled for a way to multiply.
#pragma once

#include <array>

#include "cuda/fp32/config.h"

namespace tessera::cuda::fp32 {

template <Multiply M>
inline constexpr std::array kForwardConfigs = {
    forward_config(M, 64, Instance::plain),     forward_config(M, 128, Instance::plain),
    forward_config(M, 256, Instance::plain),    forward_config(M, 64, Instance::large),
    forward_config(M, 128, Instance::large),    forward_config(M, 256, Instance::large),
    forward_config(M, 64, Instance::featured),  forward_config(M, 128, Instance::featured),
    forward_config(M, 256, Instance::featured),
};

template <Multiply M>
inline constexpr std::array kBackwardConfigs = {
    backward_config(M, Gradient::keys_and_values, 64, false),
    backward_config(M, Gradient::queries, 64, false),
    backward_config(M, Gradient::keys_and_values, 64, true),
    backward_config(M, Gradient::queries, 64, true),
    backward_config(M, Gradient::keys_and_values, 128, false),
    backward_config(M, Gradient::queries, 128, false),
    backward_config(M, Gradient::keys, 128, true),
    backward_config(M, Gradient::values, 128, true),
    backward_config(M, Gradient::queries, 128, true),
    backward_config(M, Gradient::keys, 256, false),
    backward_config(M, Gradient::values, 256, false),
    backward_config(M, Gradient::queries, 256, false),
    backward_config(M, Gradient::keys, 256, true),
    backward_config(M, Gradient::values, 256, true),
    backward_config(M, Gradient::queries, 256, true),
};

inline constexpr std::array kFusedConfigs = {fused_config(64), fused_config(128), fused_config(256)};

template <Multiply M>
inline constexpr std::array kBiasGradientConfigs = {bias_gradient_config(M, 64), bias_gradient_config(M, 128),
                                                    bias_gradient_config(M, 256)};

}  // namespace tessera::cuda::fp32
