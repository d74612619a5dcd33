// DLPack import: what is taken over, and that everything malformed is refused by
// name, value and rule.
#include <dlpack/dlpack.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tessera/tessera.h"

namespace tessera::test {
namespace {

constexpr std::int64_t kInt64Max = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kInt64Min = std::numeric_limits<std::int64_t>::min();

// A DLTensor with its own memory, shape and strides: (2, 3, 4, 8) of float.
struct Foreign {
  alignas(64) std::array<float, 2 * 3 * 4 * 8> memory{};
  std::vector<std::int64_t> shape{2, 3, 4, 8};
  std::vector<std::int64_t> strides{96, 32, 8, 1};
  DLTensor tensor{};

  Foreign() {
    tensor.data = memory.data();
    tensor.device = {kDLCPU, 0};
    tensor.ndim = 4;
    tensor.dtype = {kDLFloat, 32, 1};
    tensor.shape = shape.data();
    tensor.strides = strides.data();
  }
  Foreign(const Foreign&) = delete;
  Foreign& operator=(const Foreign&) = delete;

  void reshape(std::vector<std::int64_t> sizes) {
    shape = std::move(sizes);
    tensor.ndim = static_cast<int>(shape.size());
    tensor.shape = shape.data();
    tensor.strides = nullptr;
  }

  // Kinds of memory that the enumeration of this version of DLPack does not name.
  void set_device_type(int type) { std::memcpy(&tensor.device.device_type, &type, sizeof(type)); }
};

TEST(DLPack, TakesShapeStridesAndPointer) {
  const Foreign foreign;
  const Tensor tensor = from_dlpack(&foreign.tensor, TensorRole::tokens);
  EXPECT_EQ(tensor.data, foreign.memory.data());
  EXPECT_EQ(tensor.dtype, DType::fp32);
  EXPECT_EQ(tensor.shape, (Extents{2, 3, 4, 8}));
  EXPECT_EQ(tensor.strides, (Extents{96, 32, 8, 1}));
  EXPECT_EQ(tensor.device, Device::cpu());
  EXPECT_FALSE(tensor.read_only);
}

TEST(DLPack, NullStridesAreContiguous) {
  Foreign foreign;
  foreign.tensor.strides = nullptr;
  EXPECT_EQ(from_dlpack(&foreign.tensor, TensorRole::tokens).strides, (Extents{96, 32, 8, 1}));
}

TEST(DLPack, StridesAreTakenAsTheyAre) {
  Foreign foreign;
  foreign.strides = {-5, 0, 1000, 1};
  EXPECT_EQ(from_dlpack(&foreign.tensor, TensorRole::tokens).strides, (Extents{-5, 0, 1000, 1}));
}

TEST(DLPack, TypesOfEveryWidth) {
  Foreign foreign;
  auto dtype_of = [&](std::uint8_t code, std::uint8_t bits) {
    foreign.tensor.dtype = {code, bits, 1};
    return from_dlpack(&foreign.tensor, TensorRole::tokens).dtype;
  };
  EXPECT_EQ(dtype_of(kDLFloat, 64), DType::fp64);
  EXPECT_EQ(dtype_of(kDLFloat, 32), DType::fp32);
  EXPECT_EQ(dtype_of(kDLFloat, 16), DType::fp16);
  EXPECT_EQ(dtype_of(kDLBfloat, 16), DType::bf16);
  for (const auto code : {std::uint8_t{6}, static_cast<std::uint8_t>(kDLUInt)}) {
    foreign.tensor.dtype = {code, 8, 1};
    EXPECT_EQ(from_dlpack(&foreign.tensor, TensorRole::visible).dtype, DType::boolean);
  }
}

TEST(DLPack, Devices) {
  Foreign foreign;
  auto device_of = [&](int type, int index) {
    foreign.set_device_type(type);
    foreign.tensor.device.device_id = index;
    return from_dlpack(&foreign.tensor, TensorRole::tokens).device;
  };
  EXPECT_EQ(device_of(kDLCPU, 0), Device::cpu());
  EXPECT_EQ(device_of(kDLCPU, 255), Device::cpu());  // some libraries leave the index unset
  EXPECT_EQ(device_of(kDLCUDAHost, 1), Device::cpu());
  EXPECT_EQ(device_of(kDLCUDA, 3), Device::cuda(3));
  EXPECT_EQ(device_of(kDLCUDAManaged, 2), Device::cuda(2));
}

TEST(DLPack, ByteOffsetMovesThePointer) {
  Foreign foreign;
  foreign.tensor.byte_offset = 12;
  EXPECT_EQ(from_dlpack(&foreign.tensor, TensorRole::tokens).data, foreign.memory.data() + 3);
}

TEST(DLPack, MissingDimensionsByRole) {
  Foreign foreign;
  foreign.reshape({3, 4, 8});
  Tensor tensor = from_dlpack(&foreign.tensor, TensorRole::tokens);
  EXPECT_EQ(tensor.shape, (Extents{1, 3, 4, 8}));
  EXPECT_EQ(tensor.strides[1], 32);
  EXPECT_EQ(tensor.strides[3], 1);

  tensor = from_dlpack(&foreign.tensor, TensorRole::lse);
  EXPECT_EQ(tensor.shape, (Extents{3, 4, 8, 1}));
  EXPECT_EQ(tensor.strides, (Extents{32, 8, 1, 1}));

  tensor = from_dlpack(&foreign.tensor, TensorRole::bias);
  EXPECT_EQ(tensor.shape, (Extents{1, 3, 4, 8}));

  foreign.reshape({4, 8});
  tensor = from_dlpack(&foreign.tensor, TensorRole::lse);
  EXPECT_EQ(tensor.shape, (Extents{1, 4, 8, 1}));
  EXPECT_EQ(tensor.strides[1], 8);
  EXPECT_EQ(tensor.strides[2], 1);

  foreign.reshape({8});
  EXPECT_EQ(from_dlpack(&foreign.tensor, TensorRole::bias).shape, (Extents{1, 1, 1, 8}));
}

TEST(DLPack, EmptyTensorsMayBeNull) {
  Foreign foreign;
  foreign.reshape({2, 0, 4, 8});
  foreign.tensor.data = nullptr;
  foreign.tensor.byte_offset = 3;  // of nothing: not looked at
  const Tensor tensor = from_dlpack(&foreign.tensor, TensorRole::tokens);
  EXPECT_TRUE(tensor.given());
  EXPECT_EQ(tensor.data, nullptr);
  EXPECT_EQ(tensor.shape, (Extents{2, 0, 4, 8}));
}

TEST(DLPack, StridesThatAreNeverTakenMayBeAnything) {
  Foreign foreign;
  foreign.shape = {1, 3, 4, 8};
  foreign.strides = {kInt64Min, 32, 8, 1};
  EXPECT_NO_THROW((void)from_dlpack(&foreign.tensor, TensorRole::tokens));
  foreign.shape = {2, 0, 4, 8};  // nothing to step to
  foreign.strides = {kInt64Min, 0, kInt64Max, 0};
  EXPECT_NO_THROW((void)from_dlpack(&foreign.tensor, TensorRole::tokens));
}

// The imported tensor computes what the same memory described by hand computes.
TEST(DLPack, ImportedTensorsCompute) {
  Foreign q, k, v;
  for (std::size_t i = 0; i < q.memory.size(); ++i) {
    q.memory[i] = static_cast<float>(i % 5) * 0.3F;
    k.memory[i] = static_cast<float>(i % 7) * 0.2F;
    v.memory[i] = static_cast<float>(i % 3) - 1.0F;
  }
  std::array<float, 192> imported{}, by_hand{};
  const Extents shape{2, 3, 4, 8};
  auto import = [](const Foreign& foreign) { return from_dlpack(&foreign.tensor, TensorRole::tokens); };
  forward({}, {.q = import(q), .k = import(k), .v = import(v), .out = tensor(imported.data(), shape)});
  forward({}, {.q = tensor(q.memory.data(), shape),
               .k = tensor(k.memory.data(), shape),
               .v = tensor(v.memory.data(), shape),
               .out = tensor(by_hand.data(), shape)});
  EXPECT_EQ(imported, by_hand);
  EXPECT_NE(imported[0], 0.0F);
}

struct Refusal {
  const char* name;
  std::function<void(Foreign&)> spoil;
  std::vector<std::string> expected;
  TensorRole role = TensorRole::tokens;
};

std::vector<Refusal> refusals() {
  using Strings = std::vector<std::string>;
  const Strings types{"float (code 2) of 64, 32 or 16 bits or bfloat (code 4) of 16 bits, with 1 lane"};
  auto dtype = [&](const char* name, DLDataType type, const char* value) {
    return Refusal{name, [type](Foreign& f) { f.tensor.dtype = type; },
                   Strings{std::string("dl_tensor.dtype is ") + value + "; it must be", types[0]}};
  };
  auto device = [](const char* name, int type) {
    return Refusal{name, [type](Foreign& f) { f.set_device_type(type); },
                   Strings{"dl_tensor.device.device_type is " + std::to_string(type) +
                           "; it must be 1 (CPU), 2 (CUDA)"}};
  };
  auto shape = [](const char* name, const std::vector<std::int64_t>& sizes, Strings expected,
                  TensorRole role = TensorRole::tokens) {
    return Refusal{name, [sizes](Foreign& f) { f.reshape(sizes); }, std::move(expected), role};
  };
  auto strides = [](const char* name, const std::vector<std::int64_t>& distances, Strings expected) {
    return Refusal{name,
                   [distances](Foreign& f) {
                     f.strides = distances;
                     f.tensor.strides = f.strides.data();
                   },
                   std::move(expected)};
  };
  const std::int64_t big = std::int64_t{1} << 32;
  return {
      dtype("integers", {kDLInt, 32, 1}, "{code 0, bits 32, lanes 1}"),
      dtype("unsigned", {kDLUInt, 16, 1}, "{code 1, bits 16, lanes 1}"),
      dtype("complex", {kDLComplex, 64, 1}, "{code 5, bits 64, lanes 1}"),
      dtype("float8", {kDLFloat, 8, 1}, "{code 2, bits 8, lanes 1}"),
      dtype("float128", {kDLFloat, 128, 1}, "{code 2, bits 128, lanes 1}"),
      dtype("bfloat32", {kDLBfloat, 32, 1}, "{code 4, bits 32, lanes 1}"),
      dtype("float4", {kDLFloat, 32, 4}, "{code 2, bits 32, lanes 4}"),
      dtype("no_lanes", {kDLFloat, 32, 0}, "{code 2, bits 32, lanes 0}"),
      dtype("newer_type", {17, 4, 1}, "{code 17, bits 4, lanes 1}"),
      device("rocm", kDLROCM),
      device("opencl", kDLOpenCL),
      device("metal", kDLMetal),
      device("no_device", 0),
      device("newer_device", 17),
      device("negative_device", -1),
      {"cuda_minus_1",
       [](Foreign& f) { f.tensor.device = {kDLCUDA, -1}; },
       {"dl_tensor.device.device_id is -1; it must be at least 0"}},
      {"managed_minus_2",
       [](Foreign& f) { f.tensor.device = {kDLCUDAManaged, -2}; },
       {"dl_tensor.device.device_id is -2; it must be at least 0"}},
      {"ndim_5", [](Foreign& f) { f.tensor.ndim = 5; }, {"dl_tensor.ndim is 5; it must be 4 (batch"}},
      {"ndim_2", [](Foreign& f) { f.tensor.ndim = 2; }, {"dl_tensor.ndim is 2; it must be 4 (batch", "or 3"}},
      {"ndim_0", [](Foreign& f) { f.tensor.ndim = 0; }, {"dl_tensor.ndim is 0; it must be"}},
      {"ndim_negative", [](Foreign& f) { f.tensor.ndim = -4; }, {"dl_tensor.ndim is -4; it must be"}},
      {"lse_ndim_1",
       [](Foreign& f) { f.tensor.ndim = 1; },
       {"dl_tensor.ndim is 1; it must be", "2 (heads, sequence)"},
       TensorRole::lse},
      {"lse_ndim_5",
       [](Foreign& f) { f.tensor.ndim = 5; },
       {"dl_tensor.ndim is 5; it must be"},
       TensorRole::lse},
      {"bias_ndim_0",
       [](Foreign& f) { f.tensor.ndim = 0; },
       {"dl_tensor.ndim is 0; it must be 1 to 4"},
       TensorRole::bias},
      {"bias_ndim_5",
       [](Foreign& f) { f.tensor.ndim = 5; },
       {"dl_tensor.ndim is 5; it must be 1 to 4"},
       TensorRole::bias},
      {"float_mask",
       [](Foreign&) {},
       {"dl_tensor.dtype is {code 2, bits 32, lanes 1}; it must be bool (code 6) or uint (code 1) of 8 bits"},
       TensorRole::visible},
      {"bool_bias",
       [](Foreign& f) { f.tensor.dtype = {6, 8, 1}; },
       {"dl_tensor.dtype is {code 6, bits 8, lanes 1}; it must be float (code 2)"},
       TensorRole::bias},
      {"no_shape",
       [](Foreign& f) { f.tensor.shape = nullptr; },
       {"dl_tensor.shape is null; it must point to"}},
      {"no_data",
       [](Foreign& f) { f.tensor.data = nullptr; },
       {"dl_tensor.data is null; only a tensor with a size of 0 may be null"}},
      {"misaligned_offset",
       [](Foreign& f) { f.tensor.byte_offset = 2; },
       {"dl_tensor.data + byte_offset is ", "(byte_offset 2); it must be a multiple of the element size, 4"}},
      {"misaligned_data",
       [](Foreign& f) { f.tensor.data = reinterpret_cast<char*>(f.memory.data()) + 1; },
       {"dl_tensor.data + byte_offset is ", "it must be a multiple of the element size, 4"}},
      {"offset_wraps",
       [](Foreign& f) { f.tensor.byte_offset = std::numeric_limits<std::uint64_t>::max() - 3; },
       {"dl_tensor.byte_offset is 18446744073709551612; it must not lead past the end"}},
      {"unknown_role",
       [](Foreign&) {},
       {"role is 9; it must be tokens (0), lse (1), bias (2) or visible (3)"},
       static_cast<TensorRole>(9)},
      shape("negative_size", {2, 3, -4, 8}, {"dl_tensor.shape[2] is -4; it must be at least 0"}),
      shape("least_size", {kInt64Min, 3, 4, 8},
            {"dl_tensor.shape[0] is -9223372036854775808; it must be at least 0"}),
      // 2^32 * 2^32 elements: the product wraps to 0 and would pass for an empty tensor.
      shape("wraps_to_0", {big, big, 1, 1}, {"dl_tensor.shape[1] is 4294967296;", "2^63 - 1 bytes"}),
      shape("wraps_to_0_in_bytes", {std::int64_t{1} << 62, 1, 1, 1},
            {"dl_tensor.shape[0] is 4611686018427387904;", "2^63 - 1 bytes"}),
      shape("wraps_to_small", {std::int64_t{1} << 31, big + 1, 2, 2},
            {"dl_tensor.shape[1] is", "2^63 - 1 bytes"}),
      shape("largest_size", {1, kInt64Max, 1, 1},
            {"dl_tensor.shape[1] is 9223372036854775807;", "2^63 - 1 bytes"}),
      shape("empty_but_huge", {0, big, big, 8}, {"dl_tensor.shape[2] is 4294967296;", "2^63 - 1 bytes"}),
      shape("lse_huge", {big, big}, {"dl_tensor.shape[1] is 4294967296;", "2^63 - 1 bytes"}, TensorRole::lse),
      strides("stride_overflows", {kInt64Max, 32, 8, 1},
              {"dl_tensor.strides[0] is 9223372036854775807;", "2^63 - 1 bytes"}),
      strides("stride_least", {96, kInt64Min, 8, 1},
              {"dl_tensor.strides[1] is -9223372036854775808;", "2^63 - 1 bytes"}),
      strides("strides_overflow_together", {kInt64Max / 4 - 100, kInt64Max / 10, 8, 1},
              {"dl_tensor.strides[1] is 922337203685477580;", "2^63 - 1 bytes"}),
  };
}

TEST(DLPack, MalformedTensorsAreRefused) {
  for (const Refusal& refusal : refusals()) {
    Foreign foreign;
    refusal.spoil(foreign);
    try {
      (void)from_dlpack(&foreign.tensor, refusal.role);
      ADD_FAILURE() << refusal.name << ": accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << refusal.name;
      for (const std::string& part : refusal.expected) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
            << refusal.name << " said: " << error.what() << "\n  without: " << part;
      }
    }
  }
}

TEST(DLPack, NullTensorIsRefused) {
  try {
    (void)from_dlpack(nullptr, TensorRole::tokens);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "dl_tensor is null; it must point to a DLTensor");
  }
}

}  // namespace
}  // namespace tessera::test
