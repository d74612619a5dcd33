#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/flash2/vector/exp2.cpp"  // NOLINT(build/include)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "cpu/flash2/vector/exp2.h"
#include "cpu/flash2/vector/vector-inl.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

template <typename A>
void exp2_row(const A* x, std::int64_t count, A* y) {
  const Tag<A> d;
  std::int64_t i = 0;
  for (; i + lanes<A>() <= count; i += lanes<A>()) {
    hn::StoreU(exp2_nonpositive<A>(hn::LoadU(d, x + i)), d, y + i);
  }
  A rest[hn::MaxLanes(Tag<A>())] = {};
  std::copy(x + i, x + count, rest);
  hn::StoreU(exp2_nonpositive<A>(hn::LoadU(d, rest)), d, rest);
  std::copy_n(rest, count - i, y + i);
}

void exp2_fp32(const float* x, std::int64_t count, float* y) { exp2_row(x, count, y); }
void exp2_fp64(const double* x, std::int64_t count, double* y) { exp2_row(x, count, y); }

inline constexpr Exp2Engine kExp2Engine{exp2_fp32, exp2_fp64};

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
#include "cpu/engine_of.h"
namespace tessera::cpu {

const Exp2Engine* exp2_engine(Target target) { return TESSERA_ENGINE_OF(target, kExp2Engine); }

}  // namespace tessera::cpu
#endif  // HWY_ONCE
