// Which elements dropout keeps, in the layout of the backward kernels: keys are the rows of an accumulator, queries its
// columns.
//
// A lane holds keys lane / 4 + 8 r, r < 4, and of every eight queries 2 (lane % 4) + x, x < 2. A call of the generator gives,
// for one query, for each r two neighbouring keys: those of this lane and of lane ^ 4. So each of the two lanes draws one of
// the queries x for both, and they exchange what they found.
#pragma once

#include <cstdint>

#include "core/base/host_device.h"
#include "core/philox.h"
#include "cuda/common/dropout_columns.h"

namespace tessera::cuda::flash2 {

// The query, of every eight, that a lane draws, and the pair of columns of its calls.
TESSERA_HD constexpr int drawn_query(int lane) { return lane % 4 * 2 + lane / 4 % 2; }
TESSERA_HD constexpr int drawn_pair(int lane) { return lane / 8; }

// What the call for the j-th eight queries says, as bits 4 j + r (the even key) and 16 + 4 j + r (the odd one).
// kept_halves(word): 0xFFFF for each half that is kept.
template <typename KeptHalves>
TESSERA_HD constexpr std::uint32_t drawn_bits(const core::PhiloxBlock& block, int j,
                                              KeptHalves&& kept_halves) {
  std::uint32_t bits = 0;
  for (int r = 0; r < 4; ++r) bits |= kept_halves(block.word[r]) & (0x10001U << (4 * j + r));
  return bits;
}

// The bits of a lane's own keys from those that it drew and those that lane ^ 4 drew: bit kept_bit(x, j, r).
TESSERA_HD constexpr std::uint32_t exchanged_bits(int lane, std::uint32_t own, std::uint32_t other) {
  return lane / 4 % 2 == 0 ? (own & 0xFFFF) | other << 16 : other >> 16 | (own & 0xFFFF0000U);
}
TESSERA_HD constexpr int kept_bit(int x, int j, int r) { return 16 * x + 4 * j + r; }

}  // namespace tessera::cuda::flash2
