#include "cuda/common/host/tensor_map.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/base/refuse.h"
#include "core/base/text.h"
#include "tessera/error.h"

#if TESSERA_HAVE_CUDA
#include <cuda_runtime_api.h>

#include "cuda/common/host/device.h"
#endif

namespace tessera::cuda {
namespace {

constexpr std::int64_t kAlignment = 16;  // of addresses and strides
constexpr int kStrideBits = 40;          // strides are below 2^kStrideBits bytes
constexpr std::int64_t kBoxBytes = 128;  // of a row: what a swizzle spans
constexpr std::int64_t kSector = 32;     // bytes: what L2 hands out

// Where rows begin within a sector, fetching 256 bytes for each load costs more than it saves. Time
// with 128 bytes over time with 256, H200, 2026-11-16: head_dim 72 0.88 and 0.91 (N = 1024 and
// 8192), 120 0.95 and 0.95. Multiples of 256 are not what counts: at 96, rows of 192 bytes, it is
// 1.00.
int promotion(const core::View& view, std::int64_t bytes, const RowExtents& extents) {
  bool whole_sectors = reinterpret_cast<std::uintptr_t>(view.data) % kSector == 0;
  auto expect = [&](std::int64_t size, std::int64_t stride) {
    whole_sectors = whole_sectors && (size <= 1 || stride % (kSector / bytes) == 0);
  };
  expect(extents.rows, view.row_stride);
  expect(extents.heads, view.head_stride);
  expect(extents.batch, view.batch_stride);
  return whole_sectors ? 256 : 128;
}

std::int64_t bytes_of(DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); }

}  // namespace

TensorMapSpec tensor_map_spec(const core::View& view, DType dtype, const RowExtents& extents, int box_rows) {
  const std::int64_t bytes = bytes_of(dtype);
  const std::int64_t whole_row = (extents.columns * bytes + kAlignment - 1) / kAlignment * kAlignment;
  auto stride = [&](std::int64_t size, std::int64_t elements) {
    return static_cast<std::uint64_t>(size > 1 ? elements * bytes : whole_row);
  };
  auto size = [](std::int64_t x) { return static_cast<std::uint64_t>(std::max<std::int64_t>(x, 1)); };
  return {.dtype = dtype,
          .address = view.data,
          .sizes = {size(extents.columns), size(extents.rows), size(extents.heads), size(extents.batch)},
          .strides = {stride(extents.rows, view.row_stride), stride(extents.heads, view.head_stride),
                      stride(extents.batch, view.batch_stride)},
          .box = {static_cast<std::uint32_t>(kBoxBytes / bytes), static_cast<std::uint32_t>(box_rows), 1, 1},
          .promotion = promotion(view, bytes, extents)};
}

bool tensor_map_obstacle(const char* name, const core::View& view, DType dtype, const RowExtents& extents,
                         core::Reason reason) {
  if (reinterpret_cast<std::uintptr_t>(view.data) % kAlignment != 0) {
    return reason.give(name, " does not begin on a 16-byte boundary, as the copy engine (TMA) needs");
  }
  const std::pair<const char*, std::pair<std::int64_t, std::int64_t>> dimensions[] = {
      {"sequence", {extents.rows, view.row_stride}},
      {"head", {extents.heads, view.head_stride}},
      {"batch", {extents.batch, view.batch_stride}}};
  for (const auto& [dimension, numbers] : dimensions) {
    const auto& [size, elements] = numbers;
    std::int64_t bytes = 0;
    if (size <= 1) continue;
    if (__builtin_mul_overflow(elements, bytes_of(dtype), &bytes) || bytes <= 0 || bytes % kAlignment != 0 ||
        bytes >> kStrideBits != 0) {
      return reason.give(name, "'s ", dimension, " stride is ", elements,
                         " elements; the copy engine (TMA) needs a positive multiple of ",
                         kAlignment / bytes_of(dtype), " below 2^",
                         kStrideBits + 1 - std::bit_width(size_of(dtype)));
    }
  }
  return false;
}

#if TESSERA_HAVE_CUDA

namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// Through the runtime, so that nothing has to be linked with the driver.
Encode encode_function() {
  static const Encode function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    constexpr unsigned kSince = 12000;  // CUDA 12.0
#if CUDART_VERSION >= 12050
    const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, kSince,
                                                                cudaEnableDefault, &result);
#else
    const cudaError_t status =
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result);
    (void)kSince;
#endif
    check(status, "cuTensorMapEncodeTiled");
    if (found == nullptr || result != cudaDriverEntryPointSuccess) {
      core::fail(ErrorCode::device_failure,
                 "the NVIDIA driver has no cuTensorMapEncodeTiled; it is older than 12.0");
    }
    return reinterpret_cast<Encode>(found);
  }();
  return function;
}

CUtensorMapDataType data_type(DType dtype) {
  switch (dtype) {
    case DType::bf16: return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::fp16: return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::fp32: return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case DType::fp64:
    case DType::boolean: break;
  }
  return CU_TENSOR_MAP_DATA_TYPE_FLOAT64;
}

}  // namespace

CUtensorMap encode_tensor_map(const TensorMapSpec& spec) {
  static_assert(sizeof(cuuint64_t) == sizeof(std::uint64_t) && sizeof(cuuint32_t) == sizeof(std::uint32_t));
  CUtensorMap map{};
  cuuint64_t sizes[4], strides[3];
  std::copy(std::begin(spec.sizes), std::end(spec.sizes), sizes);
  std::copy(std::begin(spec.strides), std::end(spec.strides), strides);
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const CUresult result = encode_function()(
      &map, data_type(spec.dtype), 4, spec.address, sizes, strides, spec.box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      spec.promotion == 256 ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    core::fail(ErrorCode::device_failure, "cuTensorMapEncodeTiled: error ", static_cast<int>(result));
  }
  return map;
}

#endif

}  // namespace tessera::cuda
