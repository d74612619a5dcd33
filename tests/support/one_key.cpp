#include "support/one_key.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "core/base/text.h"
#include "reference/oracle/elements.h"

namespace tessera::test {
namespace {

using reference::read;

// The bits of an element.
std::uint64_t bits_of(const Tensor& t, std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t d) {
  const std::int64_t at = b * t.strides[0] + i * t.strides[1] + h * t.strides[2] + d;
  std::uint64_t bits = 0;
  std::memcpy(&bits, static_cast<const std::byte*>(t.data) + at * static_cast<std::int64_t>(size_of(t.dtype)),
              size_of(t.dtype));
  return bits;
}

}  // namespace

void write_special_values(const Tensor& v) {
  struct Type {
    int least_exponent, digits;
    double largest;
  };
  const Type type = v.dtype == DType::fp64   ? Type{-1022, 53, std::numeric_limits<double>::max()}
                    : v.dtype == DType::fp32 ? Type{-126, 24, std::numeric_limits<float>::max()}
                    : v.dtype == DType::fp16 ? Type{-14, 11, 65504}
                                             : Type{-126, 8, 0x1.FEp127};
  const double normal = std::ldexp(1.0, type.least_exponent);
  const double unit = std::ldexp(1.0, 1 - type.digits);  // of the last place of 1
  const double special[] = {0.0,    -0.0,     normal * unit, -normal * unit, -normal * (1 - unit),
                            normal, 1 + unit, type.largest,  -type.largest};
  for (std::int64_t b = 0; b < v.shape[0]; ++b) {
    for (std::int64_t j = 0; j < v.shape[1]; ++j) {
      for (std::int64_t h = 0; h < v.shape[2]; ++h) {
        std::int64_t d = j % 5;
        for (const double x : special) reference::write(v, b, j, h, d++, x);
      }
    }
  }
}

std::string first_wrong_value(const reference::Case& problem, bool flushes_subnormals) {
  const Tensor &out = problem.forward.out, &v = problem.forward.v;
  const std::int64_t group = out.shape[2] / v.shape[2];
  for (std::int64_t h = 0; h < out.shape[2]; ++h) {
    for (std::int64_t i = 0; i < out.shape[1]; ++i) {
      const std::int64_t j = v.shape[1] == 1 ? 0 : i;
      for (std::int64_t d = 0; d < out.shape[3]; ++d) {
        const double value = read(v, 1, j, h / group, d), result = read(out, 1, i, h, d);
        const bool flushed = flushes_subnormals && std::abs(value) < 0x1p-126;
        const bool right =
            value == 0 ? result == 0 : bits_of(out, 1, i, h, d) == bits_of(v, 1, j, h / group, d);
        if (right || (flushed && result == 0)) continue;
        return core::concat("head ", h, ", row ", i, ", column ", d, ": ", value, " became ", result);
      }
    }
  }
  return {};
}

}  // namespace tessera::test
