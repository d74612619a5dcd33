// The boolean mask of a tile as bits, and what it hides, for blocks with rows in lanes. A lane
// holds the bits of its own row for as many keys as it has bits, so nothing is transposed. Included
// once per target.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cpu/flash2/vector/scores-inl.h"
#include "cpu/flash2/vector/vector-inl.h"
#include "cpu/head_view.h"

// clang-format off
#if defined(TESSERA_CPU_SIMD_VISIBLE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_SIMD_VISIBLE_INL_H
#undef TESSERA_CPU_SIMD_VISIBLE_INL_H
#else
#define TESSERA_CPU_SIMD_VISIBLE_INL_H
#endif
// clang-format on

#if HWY_TARGET != HWY_SCALAR  // Target::portable is plain C++
HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

// As wide as an accumulator.
template <typename A>
using VisibleWord = std::conditional_t<sizeof(A) == 8, std::uint64_t, std::uint32_t>;
template <typename A>
inline constexpr std::int64_t kVisibleBits = 8 * sizeof(VisibleWord<A>);

// Words of `rows` rows for a tile of `keys` keys.
template <typename A>
constexpr std::int64_t visible_words(std::int64_t rows, std::int64_t keys) {
  return (keys + kVisibleBits<A> - 1) / kVisibleBits<A> * rows;
}

// Bit x % kVisibleBits of words[x / kVisibleBits * rows + r] says whether row first_row + r sees
// key first_key + x. Without words the tile hides nothing.
template <typename A>
struct VisibleBits {
  const VisibleWord<A>* words = nullptr;
  std::int64_t rows = 0;
  std::int64_t first_row = 0;
  std::int64_t first_key = 0;

  explicit operator bool() const { return words != nullptr; }
};

// Bit x says whether from[x] is not 0, for 64 bytes.
HWY_INLINE std::uint64_t bits_of_bytes(const std::uint8_t* HWY_RESTRICT from) {
  const hn::CappedTag<std::uint8_t, 64> d;
  const auto count = static_cast<std::int64_t>(hn::Lanes(d));
  std::uint8_t bytes[16];  // Highway may write eight bytes each time
  for (std::int64_t x = 0; x < 64; x += count) {
    hn::StoreMaskBits(d, hn::Ne(hn::LoadU(d, from + x), hn::Zero(d)), bytes + x / 8);
  }
  std::uint64_t bits = 0;
  std::memcpy(&bits, bytes, sizeof(bits));
  return bits;
}

// The bits of a mixed tile. `width`: its rows in whole vectors; those past the end repeat the last.
template <typename A>
VisibleBits<A> load_visible(const HeadView& head, const core::Interval& rows, std::int64_t width,
                            const core::Interval& keys, VisibleWord<A>* words) {
  const std::int64_t count = keys.length();
  for (std::int64_t r = 0; r < width; ++r) {
    const std::int64_t i = std::min(rows.begin + r, rows.end - 1);
    const auto* row = head.p.visible.row<const std::uint8_t>(head.s.index, head.q_head, i) + keys.begin;
    hwy::Prefetch(row + count);  // of the next step
    for (std::int64_t x = 0; x < count; x += 64) {
      std::uint8_t tail[64] = {};
      const bool whole = count - x >= 64;
      if (!whole) std::memcpy(tail, row + x, static_cast<std::size_t>(count - x));
      const std::uint64_t bits = bits_of_bytes(whole ? row + x : tail);
      VisibleWord<A>* to = words + x / kVisibleBits<A> * width + r;
      to[0] = static_cast<VisibleWord<A>>(bits);
      if constexpr (kVisibleBits<A> == 32) {
        if (count - x > 32) to[width] = static_cast<std::uint32_t>(bits >> 32);
      }
    }
  }
  return {words, width, rows.begin, keys.begin};
}

// Scores become -inf where the row does not see the key. Raises `maximum` (one value per lane),
// unless null.
template <typename A>
HWY_NOINLINE void hide_invisible(const VisibleBits<A>& visible, const ScoreBlock<A>& block, A* maximum) {
  const Tag<A> d;
  const hn::RebindToUnsigned<Tag<A>> du;
  const Vector<A> minus_infinity = hn::Set(d, core::kMinusInfinity<A>);
  const auto one = hn::Set(du, VisibleWord<A>{1});
  const std::int64_t first = block.keys.begin - visible.first_key, end = block.keys.end - visible.first_key;
  for (std::int64_t v = 0; v < block.vectors; ++v) {
    const std::int64_t at = v * lanes<A>();
    const VisibleWord<A>* words = visible.words + block.row - visible.first_row + at;
    Vector<A> largest = maximum == nullptr ? minus_infinity : hn::LoadU(d, maximum + at);
    A* line = block.s + at;
    for (std::int64_t x = first; x < end;) {
      const std::int64_t stop = std::min(end, (x / kVisibleBits<A> + 1) * kVisibleBits<A>);
      auto bits = hn::ShiftRightSame(hn::LoadU(du, words + x / kVisibleBits<A> * visible.rows),
                                     static_cast<int>(x % kVisibleBits<A>));
      for (; x < stop; ++x, line += block.stride) {
        const auto seen = hn::RebindMask(d, hn::TestBit(bits, one));
        const Vector<A> score = hn::IfThenElse(seen, hn::LoadU(d, line), minus_infinity);
        hn::StoreU(score, d, line);
        largest = hn::Max(score, largest);
        bits = hn::ShiftRight<1>(bits);
      }
    }
    if (maximum != nullptr) hn::StoreU(largest, d, maximum + at);
  }
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target include guard
