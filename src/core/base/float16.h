// fp16 and bf16 as bit patterns, with conversions that round to nearest even. Plain integer
// arithmetic, so that every compiler and device agrees on every bit.
#pragma once

#include <bit>
#include <cstdint>

#include "tessera/tensor.h"

namespace tessera::core {

struct Half {
  std::uint16_t bits;
};

struct BFloat16 {
  std::uint16_t bits;
};

constexpr float to_float(BFloat16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

constexpr float to_float(Half x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000) << 16;
  const std::uint32_t magnitude = x.bits & 0x7FFF;
  if (magnitude >= 0x7C00) {  // infinity and NaN keep their payload
    return std::bit_cast<float>(sign | 0x7F800000 | (magnitude & 0x3FF) << 13);
  }
  if (magnitude >= 0x0400) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24F;  // exact
  return sign != 0 ? -subnormal : subnormal;
}

constexpr BFloat16 to_bfloat16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) {  // NaN: quiet, never rounded to infinity
    return {static_cast<std::uint16_t>(bits >> 16 | 0x40)};
  }
  return {static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}

constexpr Half to_half(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  const std::uint32_t magnitude = bits & 0x7FFFFFFF;
  auto with_sign = [sign](std::uint32_t half) { return Half{static_cast<std::uint16_t>(sign | half)}; };
  if (magnitude > 0x7F800000) return with_sign(0x7E00 | (magnitude >> 13 & 0x1FF));
  if (magnitude >= 0x477FF000) return with_sign(0x7C00);  // rounds past the largest finite value
  if (magnitude >= 0x38800000) {                          // normal
    const std::uint32_t rounded = magnitude + 0xFFF + (magnitude >> 13 & 1);
    return with_sign((rounded - 0x38000000) >> 13);
  }
  // Subnormal: adding 0.5 puts the last kept bit at the end of the significand, where the addition
  // rounds.
  const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
  return with_sign(std::bit_cast<std::uint32_t>(shifted) - 0x3F000000);
}

// Element types, their accumulators and their conversions, for templates.
template <typename T>
struct Element;

template <>
struct Element<double> {
  using Accumulator = double;
  static constexpr DType kDType = DType::fp64;
  static constexpr double load(double x) { return x; }
  static constexpr double store(double x) { return x; }
};

template <>
struct Element<float> {
  using Accumulator = float;
  static constexpr DType kDType = DType::fp32;
  static constexpr float load(float x) { return x; }
  static constexpr float store(float x) { return x; }
};

template <>
struct Element<Half> {
  using Accumulator = float;
  static constexpr DType kDType = DType::fp16;
  static constexpr float load(Half x) { return to_float(x); }
  static constexpr Half store(float x) { return to_half(x); }
};

template <>
struct Element<BFloat16> {
  using Accumulator = float;
  static constexpr DType kDType = DType::bf16;
  static constexpr float load(BFloat16 x) { return to_float(x); }
  static constexpr BFloat16 store(float x) { return to_bfloat16(x); }
};

template <typename T>
using Accumulator = typename Element<T>::Accumulator;

// Calls f.template operator()<T>() with the C++ type of `dtype`.
template <typename F>
constexpr decltype(auto) with_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::fp64: return f.template operator()<double>();
    case DType::fp32: return f.template operator()<float>();
    case DType::fp16: return f.template operator()<Half>();
    case DType::bf16:
    case DType::boolean: break;  // no tensor that anything is computed with
  }
  return f.template operator()<BFloat16>();
}

}  // namespace tessera::core
