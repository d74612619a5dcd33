#include "reference/oracle/elements.h"

#include <bit>
#include <cmath>
#include <limits>

#include "core/base/float16.h"

namespace tessera::reference {
namespace {

std::int64_t offset(const Tensor& t, std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
  return a * t.strides[0] + b * t.strides[1] + c * t.strides[2] + d;
}

// A double rounded to float in such a way that rounding that to fp16 or bf16 is right: to odd, so
// that no value that was not a tie becomes one.
float to_odd_float(double value) {
  const float nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || !std::isfinite(nearest)) return nearest;
  const auto bits = std::bit_cast<std::uint32_t>(nearest);
  if ((bits & 1) != 0) return nearest;
  const bool too_large = std::abs(static_cast<double>(nearest)) > std::abs(value);
  return std::bit_cast<float>(too_large ? bits - 1 : bits + 1);
}

}  // namespace

double read(const Tensor& t, std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
  const std::int64_t at = offset(t, a, b, c, d);
  if (t.dtype == DType::boolean) return static_cast<const std::uint8_t*>(t.data)[at] != 0 ? 1 : 0;
  return core::with_type(t.dtype, [&]<typename T>() -> double {
    return core::Element<T>::load(static_cast<const T*>(t.data)[at]);
  });
}

void write(const Tensor& t, std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d, double value) {
  const std::int64_t at = offset(t, a, b, c, d);
  switch (t.dtype) {
    case DType::fp64: static_cast<double*>(t.data)[at] = value; break;
    case DType::fp32: static_cast<float*>(t.data)[at] = static_cast<float>(value); break;
    case DType::fp16: static_cast<core::Half*>(t.data)[at] = core::to_half(to_odd_float(value)); break;
    case DType::bf16:
      static_cast<core::BFloat16*>(t.data)[at] = core::to_bfloat16(to_odd_float(value));
      break;
    case DType::boolean: static_cast<std::uint8_t*>(t.data)[at] = value != 0 ? 1 : 0; break;
  }
}

void read_row(const Tensor& t, std::int64_t a, std::int64_t b, std::int64_t c, std::span<double> row) {
  const std::int64_t at = offset(t, a, b, c, 0);
  core::with_type(t.dtype, [&]<typename T>() {
    const T* from = static_cast<const T*>(t.data) + at;
    for (std::size_t d = 0; d < row.size(); ++d) row[d] = core::Element<T>::load(from[d]);
  });
}

std::vector<double> values(const Tensor& t) {
  std::vector<double> all(static_cast<std::size_t>(count(t.shape)));
  const auto width = static_cast<std::size_t>(t.shape[3]);
  std::size_t at = 0;
  for (std::int64_t a = 0; a < t.shape[0]; ++a) {
    for (std::int64_t b = 0; b < t.shape[1]; ++b) {
      for (std::int64_t c = 0; c < t.shape[2]; ++c, at += width) {
        read_row(t, a, b, c, std::span(all).subspan(at, width));
      }
    }
  }
  return all;
}

std::int64_t count(const Extents& shape) { return shape[0] * shape[1] * shape[2] * shape[3]; }

double round_to(DType dtype, double value) {
  switch (dtype) {
    case DType::fp64: break;
    case DType::fp32: return static_cast<float>(value);
    case DType::fp16: return core::to_float(core::to_half(to_odd_float(value)));
    case DType::bf16: return core::to_float(core::to_bfloat16(to_odd_float(value)));
    case DType::boolean: return value != 0 ? 1 : 0;
  }
  return value;
}

double epsilon(DType dtype) {
  switch (dtype) {
    case DType::fp64: break;
    case DType::fp32: return std::numeric_limits<float>::epsilon();
    case DType::fp16: return 0x1p-10;
    case DType::bf16: return 0x1p-7;
    case DType::boolean: break;
  }
  return std::numeric_limits<double>::epsilon();
}

}  // namespace tessera::reference
