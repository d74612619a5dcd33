// Overlap is decided exactly: compared with marking every byte.
#include "api/overlap.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace tessera::api {
namespace {

alignas(64) std::byte memory[1 << 16];

template <typename Visit>
void for_each_element(const Tensor& t, const Visit& visit) {
  const auto size = static_cast<std::int64_t>(size_of(t.dtype));
  for (std::int64_t a = 0; a < t.shape[0]; ++a)
    for (std::int64_t b = 0; b < t.shape[1]; ++b)
      for (std::int64_t c = 0; c < t.shape[2]; ++c)
        for (std::int64_t d = 0; d < t.shape[3]; ++d)
          visit(static_cast<std::byte*>(t.data) - memory +
                (a * t.strides[0] + b * t.strides[1] + c * t.strides[2] + d) * size);
}

bool shares_bytes(const Tensor& x, const Tensor& y) {
  std::set<std::int64_t> bytes;
  auto size = [](const Tensor& t) { return static_cast<std::int64_t>(size_of(t.dtype)); };
  for_each_element(x, [&](std::int64_t at) {
    for (std::int64_t i = 0; i < size(x); ++i) bytes.insert(at + i);
  });
  bool shared = false;
  for_each_element(y, [&](std::int64_t at) {
    for (std::int64_t i = 0; i < size(y); ++i) shared = shared || bytes.contains(at + i);
  });
  return shared;
}

TEST(Overlap, AgreesWithMarkingEveryByte) {
  std::mt19937 random(1);
  auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  int shared = 0;
  constexpr int kRounds = 3000;
  for (int round = 0; round < kRounds; ++round) {
    Tensor tensors[2];
    for (Tensor& t : tensors) {
      t.dtype = static_cast<DType>(pick(0, 3));
      t.shape = {pick(1, 3), pick(1, 4), pick(1, 3), pick(1, 5)};
      t.strides = {pick(-40, 60), pick(-20, 40), pick(-8, 12), 1};
      t.data = memory + (1 << 15) + pick(0, 60) * static_cast<std::int64_t>(size_of(t.dtype));
    }
    const bool expected = shares_bytes(tensors[0], tensors[1]);
    shared += expected ? 1 : 0;
    EXPECT_EQ(overlap(tensors[0], tensors[1]), expected) << "round " << round;
  }
  EXPECT_GT(shared, kRounds / 10);
  EXPECT_LT(shared, kRounds * 9 / 10);
}

TEST(Overlap, InterleavedPackedQkvDoesNotOverlap) {
  constexpr std::int64_t kBatch = 2, kLength = 5, kHeads = 3, kDim = 4;
  auto* base = reinterpret_cast<float*>(memory);
  const Extents strides{kLength * 3 * kHeads * kDim, 3 * kHeads * kDim, kDim, 1};
  Tensor parts[3];
  for (int i = 0; i < 3; ++i) {
    parts[i] = tensor(base + i * kHeads * kDim, DType::fp32, {kBatch, kLength, kHeads, kDim}, strides);
  }
  EXPECT_FALSE(overlap(parts[0], parts[1]));
  EXPECT_FALSE(overlap(parts[1], parts[2]));
  parts[1].data = base + kHeads * kDim - 1;
  EXPECT_TRUE(overlap(parts[0], parts[1]));
}

TEST(Overlap, LargeInterleavedTensorsAreDecidedQuickly) {
  constexpr std::int64_t kBatch = 1 << 12, kLength = 1 << 14, kHeads = 64, kDim = 128;
  auto* base = reinterpret_cast<float*>(memory);
  const Extents strides{kLength * 3 * kHeads * kDim, 3 * kHeads * kDim, kDim, 1};
  const Extents shape{kBatch, kLength, kHeads, kDim};
  const Tensor first = tensor(static_cast<void*>(base), DType::fp32, shape, strides);
  const Tensor second = tensor(static_cast<void*>(base + kHeads * kDim), DType::fp32, shape, strides);
  EXPECT_FALSE(overlap(first, second));
  EXPECT_TRUE(overlap(first, first));
}

TEST(Overlap, NothingOverlapsEmptyTensors) {
  const Tensor empty = tensor(static_cast<void*>(memory), DType::fp32, {1, 0, 2, 4});
  const Tensor full = tensor(static_cast<void*>(memory), DType::fp32, {1, 2, 2, 4});
  EXPECT_FALSE(overlap(empty, full));
}

// Workspace is a run of bytes that may begin and end anywhere.
TEST(Overlap, WithMemoryAgreesWithMarkingEveryByte) {
  std::mt19937 random(3);
  auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  for (int round = 0; round < 2000; ++round) {
    Tensor t;
    t.dtype = static_cast<DType>(pick(0, 3));
    t.shape = {pick(1, 3), pick(1, 4), pick(1, 3), pick(1, 5)};
    t.strides = {pick(-40, 60), pick(-20, 40), pick(-8, 12), 1};
    t.data = memory + (1 << 15);
    const std::int64_t begin = (1 << 15) + pick(-500, 800), bytes = pick(0, 40);
    bool expected = false;
    for_each_element(t, [&](std::int64_t at) {
      const auto size = static_cast<std::int64_t>(size_of(t.dtype));
      expected = expected || (at < begin + bytes && begin < at + size);
    });
    expected = expected && bytes > 0;
    EXPECT_EQ(overlap(t, memory + begin, static_cast<std::size_t>(bytes)), expected) << "round " << round;
  }
  const Tensor t = tensor(static_cast<void*>(memory + 64), DType::fp32, {1, 2, 2, 4});
  EXPECT_TRUE(overlap(t, memory, SIZE_MAX));
}

TEST(Overlap, AddressesTwiceAgreesWithMarkingEveryElement) {
  std::mt19937 random(2);
  auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  int interleaved = 0;  // neither repeated nor nested
  for (int round = 0; round < 6000; ++round) {
    Tensor t;
    t.shape = {pick(1, 5), pick(1, 5), pick(1, 5), pick(1, 4)};
    t.strides = {pick(-90, 90), pick(-50, 50), pick(-30, 30), 1};
    t.data = memory + (1 << 15);
    std::set<std::int64_t> seen;
    bool repeated = false;
    for_each_element(t, [&](std::int64_t at) { repeated = !seen.insert(at).second || repeated; });
    EXPECT_EQ(addresses_twice(t), repeated) << "round " << round;
    interleaved += !repeated && std::abs(t.strides[0]) < std::abs(t.strides[1]) * (t.shape[1] - 1) ? 1 : 0;
  }
  EXPECT_GT(interleaved, 100);
}

// Rows that lie between each other, as in a matrix read along both of its sides.
TEST(Overlap, InterleavedDimensionsAddressNothingTwice) {
  auto twice = [](const Extents& shape, const Extents& strides) {
    return addresses_twice(tensor(static_cast<void*>(memory), DType::fp32, shape, strides));
  };
  EXPECT_FALSE(twice({1, 2, 3, 1}, {0, 3, 2, 1}));
  EXPECT_FALSE(twice({1, 3, 3, 1}, {0, 3, 2, 1}));
  EXPECT_TRUE(twice({1, 3, 4, 1}, {0, 3, 2, 1}));  // 2 * 3 == 3 * 2
  EXPECT_TRUE(twice({1, 2, 2, 1}, {0, 3, 3, 1}));
  EXPECT_TRUE(twice({1, 2, 2, 1}, {0, 3, -3, 1}));
  EXPECT_TRUE(twice({2, 1, 1, 4}, {0, 9, 9, 1}));
  EXPECT_FALSE(twice({2, 3, 4, 5}, {60, 20, 5, 1}));
  constexpr std::int64_t kSize = 1 << 20;
  EXPECT_FALSE(twice({1, kSize, kSize, 1}, {0, kSize + 1, kSize, 1}));
  EXPECT_TRUE(twice({1, kSize, kSize + 1, 1}, {0, kSize, kSize - 1, 1}));
}

}  // namespace
}  // namespace tessera::api
