// The features of a problem that touch its scores, in the form that the kernels read. Host and
// device.
#pragma once

#include <cstdint>

#include "core/philox.h"
#include "core/problem.h"

namespace tessera::cuda {

// log2(e), in the precision of the host's arithmetic and of the kernels'.
inline constexpr double kLog2EExact = 1.4426950408889634;
inline constexpr float kLog2E = static_cast<float>(kLog2EExact);

// The instances of a kernel. Run-time branches for features cost 16 % of the time even where no
// feature is used (measured on a prototype, H200); an instance of its own costs a second or two of
// compile time.
enum class Variant : int {
  plain,     // positive scale, rows on 16-byte boundaries, none of the features below
  featured,  // any scale and alignment, softcap, bias, ALiBi
  dropout,   // everything of `featured`, and dropout
};

// Compares two random numbers at a time with dropout's threshold, as fp16 numbers: without a sign
// they have the order of their bits, NaNs last. The threshold must not be a NaN itself, so the
// upper half of all probabilities compares the opposite.
struct DropoutComparison {
  std::uint32_t flip = 0;    // the random bits to invert
  std::uint32_t limit = 0;   // the threshold, in both halves
  std::uint32_t invert = 0;  // the bits of the outcome to invert

  static TESSERA_HD constexpr DropoutComparison of(std::uint32_t threshold) {
    constexpr std::uint32_t kTwice = 0x10001;
    if (threshold <= 0x4000) return {0, threshold * kTwice, 0};
    return {0x7FFF * kTwice, (0x8000 - threshold) * kTwice, ~0U};
  }

  // The numbers to compare with `limit`, by >=; a NaN reaches every limit.
  TESSERA_HD constexpr std::uint32_t operand(std::uint32_t word) const { return (word ^ flip) & 0x7FFF7FFF; }
};

// The features of a problem as floats, computed once on the host.
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
    f.scale_log2 = static_cast<float>(p.scale * kLog2EExact);
    if (p.softcap != 0) {
      f.softcap_in = static_cast<float>(p.scale / p.softcap);
      f.softcap_out = static_cast<float>(p.softcap * kLog2EExact);
    }
    f.has_bias = p.has_bias;
    f.has_alibi = p.alibi_slopes != nullptr;
    f.dropout_threshold = p.dropout ? p.dropout_threshold : 0;
    f.dropout = DropoutComparison::of(f.dropout_threshold);
    f.keep_scale = p.dropout ? static_cast<float>(p.keep_scale) : 1.0F;
    return f;
  }
};

// ---- dropout's random numbers in the layout of the backward kernels ----
//
// Keys are the rows of an accumulator and queries its columns. A lane holds keys lane / 4 + 8 r, r
// < 4, and of every eight queries 2 (lane % 4) + x, x < 2. A call of the generator yields, for one
// query and each r, two neighbouring keys: one of this lane and one of lane ^ 4. So each of the two
// lanes draws one of the queries x for both, and they exchange the results.

// The query (of every eight) for which a lane calls the generator, and the pair of columns of these
// calls.
TESSERA_HD constexpr int drawn_query(int lane) { return lane % 4 * 2 + lane / 4 % 2; }
TESSERA_HD constexpr int drawn_pair(int lane) { return lane / 8; }

// What the call for the j-th eight queries keeps: bit 4 j + r for the even key and bit 16 + 4 j + r
// for the odd one. kept_halves(word) is 0xFFFF in each half that is kept.
template <typename KeptHalves>
TESSERA_HD constexpr std::uint32_t drawn_bits(const core::PhiloxBlock& block, int j,
                                              KeptHalves&& kept_halves) {
  std::uint32_t bits = 0;
  for (int r = 0; r < 4; ++r) bits |= kept_halves(block.word[r]) & (0x10001U << (4 * j + r));
  return bits;
}

// The bits of a lane's own keys, from those that it drew and those that lane ^ 4 drew. Bit
// kept_bit(x, j, r) belongs to query 8 j + 2 (lane % 4) + x and key lane / 4 + 8 r.
TESSERA_HD constexpr std::uint32_t exchanged_bits(int lane, std::uint32_t own, std::uint32_t other) {
  return lane / 4 % 2 == 0 ? (own & 0xFFFF) | other << 16 : other >> 16 | (own & 0xFFFF0000U);
}
TESSERA_HD constexpr int kept_bit(int x, int j, int r) { return 16 * x + 4 * j + r; }

}  // namespace tessera::cuda
