// A stretch of keys and values of one head as accumulators, which tiles of queries meet. Included once per
// target.
#include <hwy/highway.h>

#include <cstdint>
#include <type_traits>
#include <utility>

#include "core/visibility.h"
#include "cpu/flash2/vector/vector-inl.h"
#include "cpu/head.h"

// clang-format off
#if defined(TESSERA_CPU_SIMD_KEY_BLOCK_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_SIMD_KEY_BLOCK_INL_H
#undef TESSERA_CPU_SIMD_KEY_BLOCK_INL_H
#else
#define TESSERA_CPU_SIMD_KEY_BLOCK_INL_H
#endif
// clang-format on

#if HWY_TARGET != HWY_SCALAR  // the portable kernel serves there
HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

// Keys and values [keys.begin, keys.end) of a head: key j is at k + (j - keys.begin) * k_row.
template <typename A>
struct KeyBlock {
  core::Tile keys;
  const A* k;
  std::int64_t k_row;
  const A* v;
  std::int64_t v_row;
  bool finite;  // both, everywhere; true as long as nobody looked
};

// The block where it lies, or, each of K and V where memory is given, copied to rows without gaps. With `held`
// the copies are there already.
template <typename T, typename A = core::Accumulator<T>>
KeyBlock<A> key_block(const Head& head, const core::Tile& keys, A* k, A* v, bool held = false) {
  auto rows = [&](const core::View& view, std::int64_t dim, A* to) HWY_ATTR {
    auto row = [&](std::int64_t j) HWY_ATTR { return head.key_row<const T>(view, keys.begin + j); };
    if constexpr (std::is_same_v<T, A>) {
      if (to == nullptr) return std::pair<const A*, std::int64_t>(row(0), view.row_stride);
    }
    for_each_row(
        held ? 0 : keys.end - keys.begin, [&](std::int64_t j) HWY_ATTR { prefetch_row(row(j), dim); },
        [&](std::int64_t j) HWY_ATTR { load_row(row(j), dim, A{1}, to + j * dim); });
    return std::pair<const A*, std::int64_t>(to, dim);
  };
  const auto [k_data, k_row] = rows(head.p.k, head.p.qk_dim, k);
  const auto [v_data, v_row] = rows(head.p.v, head.p.v_dim, v);
  return {keys, k_data, k_row, v_data, v_row, true};
}

// Whether K and V of the block are finite everywhere.
template <typename A>
bool all_finite(const KeyBlock<A>& block, const core::Problem& p) {
  const std::int64_t count = block.keys.end - block.keys.begin;
  bool finite = true;
  for_each_row(
      count,
      [&](std::int64_t j) HWY_ATTR {
        prefetch_row(block.k + j * block.k_row, p.qk_dim);
        prefetch_row(block.v + j * block.v_row, p.v_dim);
      },
      [&](std::int64_t j) HWY_ATTR {
        finite = finite && all_finite(block.k + j * block.k_row, p.qk_dim) &&
                 all_finite(block.v + j * block.v_row, p.v_dim);
      });
  return finite;
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target include guard
