// Which fp32 kernels are compiled for a way to multiply.
#pragma once

#include <array>

#include "cuda/fp32/config.h"

namespace tessera::cuda::fp32 {

template <Multiply M>
inline constexpr std::array kForwardConfigs = {
    forward_config(M, 64, Variant::plain),        forward_config(M, 128, Variant::plain),
    forward_config(M, 256, Variant::plain),       forward_config(M, 64, Variant::plain, true),
    forward_config(M, 128, Variant::plain, true), forward_config(M, 256, Variant::plain, true),
    forward_config(M, 64, Variant::featured),     forward_config(M, 128, Variant::featured),
    forward_config(M, 256, Variant::featured),
};

template <Multiply M>
inline constexpr std::array kPassConfigs = {
    pass_config(M, Gradient::keys_and_values, 64, Variant::plain),
    pass_config(M, Gradient::queries, 64, Variant::plain),
    pass_config(M, Gradient::keys_and_values, 64, Variant::featured),
    pass_config(M, Gradient::queries, 64, Variant::featured),
    pass_config(M, Gradient::keys_and_values, 128, Variant::plain),
    pass_config(M, Gradient::queries, 128, Variant::plain),
    pass_config(M, Gradient::keys, 128, Variant::featured),
    pass_config(M, Gradient::values, 128, Variant::featured),
    pass_config(M, Gradient::queries, 128, Variant::featured),
    pass_config(M, Gradient::keys, 256, Variant::plain),
    pass_config(M, Gradient::values, 256, Variant::plain),
    pass_config(M, Gradient::queries, 256, Variant::plain),
    pass_config(M, Gradient::keys, 256, Variant::featured),
    pass_config(M, Gradient::values, 256, Variant::featured),
    pass_config(M, Gradient::queries, 256, Variant::featured),
};

inline constexpr std::array kFusedConfigs = {fused_config(64), fused_config(128), fused_config(256)};

template <Multiply M>
inline constexpr std::array kBiasGradientConfigs = {bias_gradient_config(M, 64), bias_gradient_config(M, 128),
                                                    bias_gradient_config(M, 256)};

}  // namespace tessera::cuda::fp32
