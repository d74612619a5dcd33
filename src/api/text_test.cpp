// The public headers by themselves: names and texts of values, views with a size
// check, the version.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "tessera/format.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

template <typename Value>
std::string written(const Value& value) {
  std::ostringstream stream;
  stream << value;
  return stream.str();
}

// Every enumerator from the first to `last` has its own name, `<<` writes it, and the number after
// the last has none.
template <typename Enum>
void expect_names(Enum first, Enum last) {
  std::vector<std::string> names;
  for (int i = static_cast<int>(first); i <= static_cast<int>(last); ++i) {
    const auto value = static_cast<Enum>(i);
    const std::string text = name(value);
    EXPECT_NE(text, "unknown") << i;
    EXPECT_EQ(std::count(names.begin(), names.end(), text), 0) << text;
    EXPECT_EQ(written(value), text);
#ifdef __cpp_lib_format
    EXPECT_EQ(std::format("{:>16}", value), std::string(16 - text.size(), ' ') + text);
#endif
    names.push_back(text);
  }
  EXPECT_STREQ(name(static_cast<Enum>(static_cast<int>(last) + 1)), "unknown");
}

TEST(Text, EveryEnumeratorHasAName) {
  expect_names(Algorithm::automatic, Algorithm::minimal);
  expect_names(Align::bottom_right, Align::top_left);
  expect_names(DeviceType::cpu, DeviceType::cuda);
  expect_names(Direction::forward, Direction::backward);
  expect_names(DType::fp64, DType::boolean);
  expect_names(ErrorCode::invalid_argument, ErrorCode::device_failure);
  expect_names(TensorRole::tokens, TensorRole::visible);
  EXPECT_EQ(written(Algorithm::flash3), "flash3");
}

TEST(Text, DevicesAndPlansPrintTheirText) {
  EXPECT_EQ(to_string(Device::cpu()), "cpu");
  EXPECT_EQ(written(Device::cuda(3)), "cuda:3");
  const Plan made = plan({}, Shapes{.q_length = 8, .k_length = 8});
  EXPECT_EQ(written(made), to_string(made));
#ifdef __cpp_lib_format
  EXPECT_EQ(std::format("{}", Device::cuda(3)), "cuda:3");
  EXPECT_EQ(std::format("{}", made), to_string(made));
#else
  GTEST_SKIP() << "std::format is not part of this standard library";
#endif
}

TEST(Version, TheNumberFollowsFromItsParts) {
  static_assert(TESSERA_VERSION / 10000 == TESSERA_VERSION_MAJOR);
  static_assert(TESSERA_VERSION / 100 % 100 == TESSERA_VERSION_MINOR);
  static_assert(TESSERA_VERSION % 100 == TESSERA_VERSION_PATCH);
  const std::string text = std::to_string(TESSERA_VERSION / 10000) + "." +
                           std::to_string(TESSERA_VERSION / 100 % 100) + "." +
                           std::to_string(TESSERA_VERSION % 100);
  EXPECT_EQ(text, version());
}

// The text of the Error that `body` throws.
template <typename Body>
std::string error_of(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "no error";
}

TEST(TensorOfRange, TakesTypeAndConstnessFromTheElements) {
  std::vector<float> floats(24);
  const Tensor writable = tensor(floats, {2, 3, 1, 4});
  EXPECT_EQ(writable.data, floats.data());
  EXPECT_EQ(writable.dtype, DType::fp32);
  EXPECT_FALSE(writable.read_only);
  EXPECT_EQ(writable.strides, (Extents{12, 4, 4, 1}));

  const std::array<double, 6> doubles{};
  const Tensor constant = tensor(doubles, {1, 1, 1, 6}, Device::cuda(1));
  EXPECT_EQ(constant.dtype, DType::fp64);
  EXPECT_TRUE(constant.read_only);
  EXPECT_EQ(constant.device, Device::cuda(1));

  EXPECT_TRUE(tensor(std::span<const float>(floats), {1, 24, 1, 1}).read_only);
  EXPECT_EQ(tensor(std::span<float>(), {1, 0, 2, 8}).shape, (Extents{1, 0, 2, 8}));
}

TEST(TensorOfRange, RefusesAnotherNumberOfElements) {
  std::vector<float> floats(24);
  for (const std::int64_t heads : {1, 4}) {
    EXPECT_EQ(
        error_of([&] { (void)tensor(floats, {2, 3, heads, 2}); }),
        "shape is (2, 3, " + std::to_string(heads) + ", 2); it must have 24 elements, as the memory has");
  }
  EXPECT_EQ(error_of([&] { (void)tensor(floats, {-2, -3, 2, 2}); }),
            "shape is (-2, -3, 2, 2); no size may be negative");
  const std::int64_t huge = std::int64_t{1} << 32;  // the product is 2^64 + 0
  EXPECT_NE(error_of([&] { (void)tensor(std::span<float>(), {huge, huge, 1, 1}); }), "no error");
}

template <typename Range>
concept MakesTensor = requires(Range range) { tensor(static_cast<Range>(range), Extents{}); };
static_assert(MakesTensor<std::vector<float>&> && MakesTensor<std::span<const double>>);
static_assert(!MakesTensor<std::vector<float>>, "a temporary vector would leave a dangling view");
static_assert(!MakesTensor<std::vector<int>&>, "int is no element type");

}  // namespace
}  // namespace tessera
