// Conversions and transposes of every instruction set that this CPU has, against the scalar
// definitions.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/flash2/vector/vector_test.cpp"  // NOLINT(build/include)
#include <gtest/gtest.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/base/float16.h"
#include "cpu/flash2/vector/vector-inl.h"
#include "cpu/machine/target.h"

#ifndef TESSERA_CPU_SIMD_VECTOR_TEST
#define TESSERA_CPU_SIMD_VECTOR_TEST
namespace tessera::cpu {

// What is tested, as one instruction set has it.
struct VectorFunctions {
  void (*load_half)(const core::Half* from, std::int64_t count, float* to);
  void (*load_bf16)(const core::BFloat16* from, std::int64_t count, float* to);
  bool (*store_half)(const float* from, std::int64_t count, core::Half* to);
  bool (*store_bf16)(const float* from, std::int64_t count, core::BFloat16* to);
  void (*transpose_float)(const float* from, std::int64_t rows, std::int64_t columns, float* to);
  void (*transpose_double)(const double* from, std::int64_t rows, std::int64_t columns, double* to);
};

}  // namespace tessera::cpu
#endif

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace {

template <typename T>
void load(const T* from, std::int64_t count, float* to) {
  load_row(from, count, 1.0F, to);
}
template <typename T>
bool store(const float* from, std::int64_t count, T* to) {
  return store_row(from, count, 1.0F, to);
}
template <typename A>
void transposed(const A* from, std::int64_t rows, std::int64_t columns, A* to) {
  transpose(from, columns, rows, columns, to, rows);
}

}  // namespace

inline constexpr VectorFunctions kVectorFunctions{load<core::Half>,  load<core::BFloat16>,
                                                  store<core::Half>, store<core::BFloat16>,
                                                  transposed<float>, transposed<double>};

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace tessera::cpu {
namespace {

const VectorFunctions* functions_of(Target target) {
  switch (target) {
#if HWY_TARGETS & HWY_AVX3
    case Target::avx512: return &N_AVX3::kVectorFunctions;
#endif
#if HWY_TARGETS & HWY_AVX2
    case Target::avx2: return &N_AVX2::kVectorFunctions;
#endif
#if HWY_TARGETS & HWY_SSE4
    case Target::sse4: return &N_SSE4::kVectorFunctions;
#endif
#if HWY_TARGETS & HWY_SVE
    case Target::sve: return &N_SVE::kVectorFunctions;
#endif
#if HWY_TARGETS & HWY_NEON
    case Target::neon: return &N_NEON::kVectorFunctions;
#endif
    default: return nullptr;
  }
}

// Targets whose vectors are those of another one are tested there.
std::vector<Target> vector_targets() {
  std::vector<Target> targets = available_targets();
  std::erase_if(targets, [](Target target) { return functions_of(target) == nullptr; });
  return targets;
}

class Vectors : public testing::TestWithParam<Target> {
 protected:
  const VectorFunctions& functions() const { return *functions_of(GetParam()); }
};

template <typename T>
std::vector<T> all_patterns() {
  std::vector<T> all;
  for (std::uint32_t bits = 0; bits <= 0xFFFF; ++bits) all.push_back({static_cast<std::uint16_t>(bits)});
  return all;
}

// Floats around everything where rounding changes: every 16-bit value, halfway to the next, and one
// bit beside.
template <typename T>
std::vector<float> rounding_cases() {
  std::vector<float> all;
  for (const T pattern : all_patterns<T>()) {
    const float x = core::Element<T>::load(pattern);
    const auto bits = std::bit_cast<std::uint32_t>(x);
    for (const std::uint32_t beside : {0x0U, 0x1U, 0xFFFU, 0x1000U, 0x1001U, 0x7FFFU, 0x8000U, 0x8001U}) {
      all.push_back(std::bit_cast<float>(bits + beside));
    }
  }
  return all;
}

template <typename T>
void expect_loads(void (*load)(const T*, std::int64_t, float*)) {
  const std::vector<T> from = all_patterns<T>();
  std::vector<float> to(from.size());
  load(from.data(), static_cast<std::int64_t>(from.size()), to.data());
  for (std::size_t i = 0; i < from.size(); ++i) {
    const float expected = core::Element<T>::load(from[i]);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(to[i])) << "bits " << i;
    } else {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(to[i]), std::bit_cast<std::uint32_t>(expected)) << "bits " << i;
    }
  }
}

template <typename T>
void expect_stores(bool (*store)(const float*, std::int64_t, T*)) {
  const std::vector<float> from = rounding_cases<T>();
  std::vector<T> to(from.size());
  EXPECT_FALSE(store(from.data(), static_cast<std::int64_t>(from.size()), to.data())) << "not all are finite";
  for (std::size_t i = 0; i < from.size(); ++i) {
    const T expected = core::Element<T>::store(from[i]);
    if (std::isnan(from[i])) {
      ASSERT_TRUE(std::isnan(core::Element<T>::load(to[i]))) << from[i];
    } else {
      ASSERT_EQ(to[i].bits, expected.bits) << from[i];
    }
  }
}

template <typename A>
void expect_transposes(void (*transpose)(const A*, std::int64_t, std::int64_t, A*)) {
  std::vector<std::int64_t> sizes{32, 48, 64};  // whole squares, and all sizes below two of them
  for (std::int64_t size = 1; size <= 19; ++size) sizes.push_back(size);
  for (const std::int64_t rows : sizes) {
    for (const std::int64_t columns : sizes) {
      std::vector<A> from(static_cast<std::size_t>(rows * columns)), to(from.size(), A{-1});
      for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<A>(i);
      transpose(from.data(), rows, columns, to.data());
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < columns; ++c) {
          ASSERT_EQ(to[static_cast<std::size_t>(c * rows + r)],
                    from[static_cast<std::size_t>(r * columns + c)])
              << rows << " x " << columns << " at " << r << ", " << c;
        }
      }
    }
  }
}

TEST_P(Vectors, LoadHalf) { expect_loads<core::Half>(functions().load_half); }
TEST_P(Vectors, LoadBFloat16) { expect_loads<core::BFloat16>(functions().load_bf16); }
TEST_P(Vectors, StoreHalf) { expect_stores<core::Half>(functions().store_half); }
TEST_P(Vectors, StoreBFloat16) { expect_stores<core::BFloat16>(functions().store_bf16); }
TEST_P(Vectors, TransposeFloat) { expect_transposes<float>(functions().transpose_float); }
TEST_P(Vectors, TransposeDouble) { expect_transposes<double>(functions().transpose_double); }

// The result of store_row says whether all was finite, wherever the one that is not stands.
TEST_P(Vectors, StoreNoticesWhatIsNotFinite) {
  for (std::int64_t count = 1; count <= 70; ++count) {
    std::vector<float> from(static_cast<std::size_t>(count), 1.0F);
    std::vector<core::BFloat16> to(from.size());
    ASSERT_TRUE(functions().store_bf16(from.data(), count, to.data()));
    for (float& x : from) {
      for (const float bad :
           {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        x = bad;
        ASSERT_FALSE(functions().store_bf16(from.data(), count, to.data()));
      }
      x = 1.0F;
    }
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Vectors);  // where only the portable code runs
INSTANTIATE_TEST_SUITE_P(Every, Vectors, testing::ValuesIn(vector_targets()),
                         [](const testing::TestParamInfo<Target>& target) {
                           return std::string(name(target.param));
                         });

}  // namespace
}  // namespace tessera::cpu
#endif  // HWY_ONCE
