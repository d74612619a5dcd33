// A stretch of keys and values of one head as contiguous accumulators: what a kernel with keys outside holds
// while all queries pass by. Included once per target.
#include <hwy/highway.h>

#include <cstdint>

#include "core/tiles.h"
#include "cpu/head.h"
#include "cpu/simd/vector-inl.h"

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
  bool finite;  // both, everywhere
};

// Copies the keys and values to `k` and `v`.
template <typename T, typename A = core::Accumulator<T>>
KeyBlock<A> load_key_block(const Head& head, const core::Tile& keys, A* k, A* v) {
  const core::Problem& p = head.p;
  const std::int64_t count = keys.end - keys.begin;
  auto k_row = [&](std::int64_t j) HWY_ATTR { return head.key_row<const T>(p.k, keys.begin + j); };
  auto v_row = [&](std::int64_t j) HWY_ATTR { return head.key_row<const T>(p.v, keys.begin + j); };
  for_each_row(
      count,
      [&](std::int64_t j) HWY_ATTR {
        prefetch_row(k_row(j), p.qk_dim);
        prefetch_row(v_row(j), p.v_dim);
      },
      [&](std::int64_t j) HWY_ATTR {
        load_row(k_row(j), p.qk_dim, A{1}, k + j * p.qk_dim);
        load_row(v_row(j), p.v_dim, A{1}, v + j * p.v_dim);
      });
  return {keys, k, p.qk_dim, v, p.v_dim, all_finite(k, count * p.qk_dim) && all_finite(v, count * p.v_dim)};
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target include guard
