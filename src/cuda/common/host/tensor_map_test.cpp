#include "cuda/common/host/tensor_map.h"

#include <gtest/gtest.h>

namespace tessera::cuda {
namespace {

constexpr RowExtents kExtents{.columns = 72, .rows = 100, .heads = 6, .batch = 2};

core::View contiguous(std::int64_t columns = 72) {
  return {nullptr, 100 * 6 * columns, columns, 6 * columns};  // batch, head, row
}

// Why there is no tensor map; empty: there is one.
std::string obstacle(const char* name, const core::View& view, const RowExtents& extents,
                     DType dtype = DType::bf16) {
  std::string why;
  const bool there = tensor_map_obstacle(name, view, dtype, extents, core::Reason(why));
  EXPECT_EQ(there, !why.empty());
  return why;
}

TEST(TensorMap, SaysWhereRowsAre) {
  const TensorMapSpec spec = tensor_map_spec(contiguous(), DType::bf16, kExtents, 128);
  const std::uint64_t sizes[] = {72, 100, 6, 2}, strides[] = {6 * 144, 144, 100 * 6 * 144};
  const std::uint32_t box[] = {64, 128, 1, 1};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(spec.sizes[i], sizes[i]);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(spec.strides[i], strides[i]);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(spec.box[i], box[i]);
  EXPECT_EQ(obstacle("q", contiguous(), kExtents), "");
}

// A type of another size: a box has as many bytes, and strides are counted in its elements.
TEST(TensorMap, ElementsHaveTheSizeOfTheirType) {
  const TensorMapSpec spec = tensor_map_spec(contiguous(), DType::fp32, kExtents, 128);
  EXPECT_EQ(spec.dtype, DType::fp32);
  EXPECT_EQ(spec.box[0], 32U);
  EXPECT_EQ(spec.strides[0], 6U * 72 * 4);
  EXPECT_EQ(spec.promotion, 256);
  core::View view = contiguous();
  view.row_stride = 36;  // 144 bytes
  EXPECT_EQ(obstacle("q", view, kExtents, DType::fp32), "");
  EXPECT_EQ(tensor_map_spec(view, DType::fp32, kExtents, 128).promotion, 128);
  view.row_stride = 34;
  EXPECT_EQ(
      obstacle("q", view, kExtents, DType::fp32),
      "q's sequence stride is 34 elements; the copy engine (TMA) needs a positive multiple of 4 below 2^38");
  view.row_stride = std::int64_t{1} << 38;
  EXPECT_NE(obstacle("q", view, kExtents, DType::fp32), "");
}

TEST(TensorMap, SizesOfOneNeedNoStride) {
  const core::View view{nullptr, 0, -5, 7};
  const RowExtents one{.columns = 33, .rows = 1, .heads = 1, .batch = 1};
  EXPECT_EQ(obstacle("q", view, one), "");
  const TensorMapSpec spec = tensor_map_spec(view, DType::fp16, one, 64);
  for (const std::uint64_t stride : spec.strides) EXPECT_EQ(stride, 80U);  // 66 bytes, rounded up
}

// 256 bytes at a time where all rows begin on 32 bytes. Each line breaks that by
// one of the four numbers that say where rows are.
TEST(TensorMap, LessIsFetchedAtATimeWhereRowsBeginWithinSectors) {
  alignas(32) static std::uint16_t numbers[16];
  auto promotion = [](const core::View& view, const RowExtents& extents = kExtents) {
    return tensor_map_spec(view, DType::bf16, extents, 128).promotion;
  };
  // Batch, head and row strides. Rows of 192 bytes need not begin on 256.
  EXPECT_EQ(promotion({numbers, 100 * 6 * 96, 96, 6 * 96}), 256);
  EXPECT_EQ(promotion({numbers + 8, 100 * 6 * 96, 96, 6 * 96}), 128);
  EXPECT_EQ(promotion({numbers, 100 * 6 * 96 + 8, 96, 6 * 96}), 128);
  EXPECT_EQ(promotion({numbers, 100 * 6 * 96, 104, 6 * 96}), 128);
  EXPECT_EQ(promotion({numbers, 100 * 6 * 96, 96, 6 * 96 + 8}), 128);
  // head_dim 72 and 120: every second row, or all rows of every second head.
  for (const std::int64_t columns : {72, 120}) {
    EXPECT_EQ(promotion({numbers, 6 * 100 * columns, 100 * columns, columns}), 128) << columns;
    EXPECT_EQ(promotion({numbers, 6 * 100 * columns, columns, 6 * columns}), 128) << columns;
  }
  const core::View unused{numbers, 8, 8, 8};  // strides of what has size 1 do not matter
  EXPECT_EQ(promotion(unused, {.columns = 72, .rows = 1, .heads = 1, .batch = 1}), 256);
  EXPECT_EQ(promotion({numbers, 8, 8, 96}, {.columns = 72, .rows = 9, .heads = 1, .batch = 1}), 256);
}

TEST(TensorMap, ObstaclesAreNamed) {
  alignas(16) static std::uint16_t numbers[16];
  core::View view = contiguous();
  view.data = numbers + 1;
  EXPECT_EQ(obstacle("k", view, kExtents),
            "k does not begin on a 16-byte boundary, as the copy engine (TMA) needs");
  view = contiguous(33);  // rows of 66 bytes
  EXPECT_EQ(
      obstacle("v", view, kExtents),
      "v's sequence stride is 198 elements; the copy engine (TMA) needs a positive multiple of 8 below 2^39");
  for (const std::int64_t stride :
       {std::int64_t{0}, std::int64_t{-72}, std::int64_t{1} << 39, std::int64_t{1} << 62}) {
    view = contiguous();
    view.head_stride = stride;
    EXPECT_NE(obstacle("out", view, kExtents), "") << stride;
  }
}

}  // namespace
}  // namespace tessera::cuda
