// The features of a problem that touch its scores, as the kernels take them.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace tessera::cuda {

// Which instances of a kernel there are: run-time branches for features cost 16 % even where none is used (measured
// on a prototype, H200), an instance of its own costs a second or two of compile time.
enum class Variant : int {
  plain,     // positive scale, rows on 16-byte boundaries, nothing below
  featured,  // any scale and alignment, softcap, bias, ALiBi
  dropout,   // the same and dropout
};

// Which elements dropout keeps, two at a time: fp16 numbers without a sign are ordered as their bits are, NaNs last. A
// threshold must not be a NaN itself, so for the upper half of all probabilities what is compared is turned round.
struct DropoutComparison {
  std::uint32_t flip = 0;    // of the random bits
  std::uint32_t limit = 0;   // twice
  std::uint32_t invert = 0;  // of the outcome

  static TESSERA_HD constexpr DropoutComparison of(std::uint32_t threshold) {
    constexpr std::uint32_t kTwice = 0x10001;
    if (threshold <= 0x4000) return {0, threshold * kTwice, 0};
    return {0x7FFF * kTwice, (0x8000 - threshold) * kTwice, ~0U};
  }

  // What is compared, by >= and in a way that a NaN reaches every limit.
  TESSERA_HD constexpr std::uint32_t operand(std::uint32_t word) const { return (word ^ flip) & 0x7FFF7FFF; }
};

// The features of a problem as floats, worked out once on the host.
struct ScoreFeatures {
  float scale_log2 = 1;   // scale * log2(e)
  float softcap_in = 0;   // scale / softcap; 0: no softcap
  float softcap_out = 0;  // softcap * log2(e)
  bool has_bias = false;
  bool has_alibi = false;
  std::uint32_t dropout_threshold = 0;  // of 2^15
  DropoutComparison dropout;
  float keep_scale = 1;

  static ScoreFeatures of(const core::Problem& p) {
    ScoreFeatures f;
    constexpr double kLog2EDouble = 1.4426950408889634;
    f.scale_log2 = static_cast<float>(p.scale * kLog2EDouble);
    if (p.softcap != 0) {
      f.softcap_in = static_cast<float>(p.scale / p.softcap);
      f.softcap_out = static_cast<float>(p.softcap * kLog2EDouble);
    }
    f.has_bias = p.has_bias;
    f.has_alibi = p.alibi_slopes != nullptr;
    f.dropout_threshold = p.dropout ? p.dropout_threshold : 0;
    f.dropout = DropoutComparison::of(f.dropout_threshold);
    f.keep_scale = p.dropout ? static_cast<float>(p.keep_scale) : 1.0F;
    return f;
  }
};

}  // namespace tessera::cuda
