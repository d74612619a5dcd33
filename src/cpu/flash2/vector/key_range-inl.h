// A range of keys and values of one head as accumulators, which tiles of queries meet. Included
// once per target.
#include <hwy/highway.h>

#include <cstdint>
#include <type_traits>
#include <utility>

#include "core/band.h"
#include "cpu/flash2/vector/vector-inl.h"
#include "cpu/head_view.h"

// clang-format off
#if defined(TESSERA_CPU_SIMD_KEY_RANGE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_SIMD_KEY_RANGE_INL_H
#undef TESSERA_CPU_SIMD_KEY_RANGE_INL_H
#else
#define TESSERA_CPU_SIMD_KEY_RANGE_INL_H
#endif
// clang-format on

#if HWY_TARGET != HWY_SCALAR  // Target::portable is plain C++
HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

// K and V of keys [keys.begin, keys.end) of a head: key j is at k + (j - keys.begin) * k_row.
template <typename A>
struct KeyRange {
  core::Interval keys;
  const A* k = nullptr;
  std::int64_t k_row = 0;
  const A* v = nullptr;
  std::int64_t v_row = 0;
  bool finite = true;  // both, everywhere; true until checked
};

// K and V where they lie or, each where memory is given, copied to rows without gaps. With `cached`
// the copies are there already.
template <typename T, typename A = core::Accumulator<T>>
KeyRange<A> key_range(const HeadView& head, const core::Interval& keys, A* k, A* v, bool cached = false) {
  auto rows = [&](const core::View& view, std::int64_t dim, A* to) HWY_ATTR {
    auto row = [&](std::int64_t j) HWY_ATTR { return head.key_row<const T>(view, keys.begin + j); };
    if constexpr (std::is_same_v<T, A>) {
      if (to == nullptr) return std::pair<const A*, std::int64_t>(row(0), view.row_stride);
    }
    for_each_row(
        cached ? 0 : keys.length(), [&](std::int64_t j) HWY_ATTR { prefetch_row(row(j), dim); },
        [&](std::int64_t j) HWY_ATTR { load_row(row(j), dim, A{1}, to + j * dim); });
    return std::pair<const A*, std::int64_t>(to, dim);
  };
  const auto [k_data, k_row] = rows(head.p.k, head.p.qk_dim, k);
  const auto [v_data, v_row] = rows(head.p.v, head.p.v_dim, v);
  return {keys, k_data, k_row, v_data, v_row, true};
}

// Whether K and V are finite everywhere.
template <typename A>
bool all_finite(const KeyRange<A>& range, const core::Problem& p) {
  const std::int64_t count = range.keys.length();
  bool finite = true;
  for_each_row(
      count,
      [&](std::int64_t j) HWY_ATTR {
        prefetch_row(range.k + j * range.k_row, p.qk_dim);
        prefetch_row(range.v + j * range.v_row, p.v_dim);
      },
      [&](std::int64_t j) HWY_ATTR {
        finite = finite && all_finite(range.k + j * range.k_row, p.qk_dim) &&
                 all_finite(range.v + j * range.v_row, p.v_dim);
      });
  return finite;
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target include guard
