// Sizes at the edge of what numbers hold: nothing at all, far more than fits into
// memory, blocks and windows beyond any sequence, tensors beyond 2^31 elements; and
// every head_dim, and thousands of tiny problems.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <vector>

#include "reference/tolerance/check.h"
#include "support/build.h"
#include "support/kernels.h"
#include "support/random_spec.h"
#include "support/tensors.h"
#include "tessera/error.h"

namespace tessera::test {
namespace {

using reference::Case;
using reference::CaseSpec;
using reference::Expected;
using reference::ForceKernel;
using reference::Verdict;

constexpr std::int64_t kMaxInt64 = std::numeric_limits<std::int64_t>::max();

// Also those without backward. The problems here are not packed.
std::vector<std::string> forward_kernels() {
  std::vector<std::string> names;
  for (const KernelInfo& kernel : kernels()) {
    if (kernel.device != DeviceType::cpu || kernel.direction != Direction::forward) continue;
    if (takes(kernel.name, {}) && obstacle(kernel.name).empty()) names.push_back(kernel.name);
  }
  return names;
}

bool has_backward(const std::string& kernel) {
  const std::vector<KernelInfo> all = kernels();
  return std::any_of(all.begin(), all.end(), [&](const KernelInfo& info) {
    return info.name == kernel && info.direction == Direction::backward;
  });
}

class SizesTest : public testing::TestWithParam<std::string> {
 protected:
  const std::string& kernel() const { return GetParam(); }
};

// ---- nothing ------------------------------------------------------------------------------------

// Counts calls and never works: what it would be given may take for ever.
class Idle final : public Executor {
 public:
  int calls = 0;
  [[nodiscard]] int concurrency() const override { return 2; }
  void run(int, void (*)(void*, int), void*) override { ++calls; }
};

// A tensor of any shape over a few numbers: all its strides are 0.
Tensor spread(const float* numbers, const Extents& shape) {
  return tensor(static_cast<const void*>(numbers), DType::fp32, shape, {0, 0, 0, 1});
}

// However many heads and batch entries there are: without a result there is no work.
TEST_P(SizesTest, EmptyCallsReturnAtOnce) {
  const ForceKernel forced(kernel());
  constexpr std::int64_t kMany = std::int64_t{1} << 25;
  float numbers[64] = {};
  const Extents none{kMany, 0, kMany, 64}, lse{kMany, kMany, 0, 1};
  for (const std::int64_t keys : {0, 3}) {
    Idle idle;
    const Execution execution{.executor = &idle};
    const Tensor k = spread(numbers, {kMany, keys, kMany, 64});
    const ForwardTensors forward{.q = tensor(numbers, none),
                                 .k = k,
                                 .v = k,
                                 .out = tensor(numbers, none),
                                 .lse = tensor(numbers, lse)};
    EXPECT_EQ(plan({}, forward, execution).workspace_bytes, 0U);
    tessera::forward({}, forward, execution);
    if (has_backward(kernel())) {
      BackwardTensors backward{.q = forward.q,
                               .k = k,
                               .v = k,
                               .out = forward.out,
                               .lse = forward.lse,
                               .grad_out = forward.out,
                               .grad_q = forward.out};
      if (keys == 0) backward.grad_k = backward.grad_v = forward.out;
      EXPECT_EQ(plan({}, backward, execution).workspace_bytes, 0U);
      tessera::backward({}, backward, execution);
    }
    EXPECT_EQ(idle.calls, 0);
  }
}

// Nothing is added up, but there is a result.
TEST_P(SizesTest, BiasGradientOfNoQueriesIsZero) {
  if (!has_backward(kernel())) GTEST_SKIP() << "has no backward";
  const ForceKernel forced(kernel());
  constexpr std::int64_t kMany = std::int64_t{1} << 25;
  float numbers[64] = {}, bias[5] = {}, grad_bias[5] = {1, 2, 3, 4, 5};
  const Extents none{kMany, 0, kMany, 64}, row{1, 1, 1, 5};
  const Tensor k = spread(numbers, {kMany, 5, kMany, 64}), empty = tensor(numbers, none);
  tessera::backward({}, {.q = empty,
                         .k = k,
                         .v = k,
                         .bias = tensor(bias, row),
                         .out = empty,
                         .lse = tensor(numbers, {kMany, kMany, 0, 1}),
                         .grad_out = empty,
                         .grad_q = empty,
                         .grad_bias = tensor(grad_bias, row)});
  for (const float x : grad_bias) EXPECT_EQ(x, 0);
}

// ---- more than there is -------------------------------------------------------------------------

// A plan names the bytes that the call would take, or refuses: never a number that
// has wrapped around.
TEST(Sizes, WorkspaceBeyondAllNumbersIsRefused) {
  auto workspace = [](const char* kernel, const Shapes& shapes, Direction direction) {
    const ForceKernel forced(kernel);
    return static_cast<double>(plan({}, shapes, Device::cpu(), direction, {.threads = 64}).workspace_bytes);
  };
  auto refused = [&](const char* kernel, const Shapes& shapes, Direction direction) {
    try {
      ADD_FAILURE() << kernel << " plans " << workspace(kernel, shapes, direction) << " bytes";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::out_of_memory) << error.what();
      EXPECT_NE(std::string(error.what()).find("2^63 - 1 bytes of workspace"), std::string::npos)
          << error.what();
    }
  };
  if (obstacle("cpu.standard").empty()) {
    const Shapes matrix{
        .q_length = 1 << 20, .k_length = 1 << 20, .q_heads = 1 << 18, .qk_dim = 1, .dtype = DType::fp64};
    EXPECT_GE(workspace("cpu.standard", matrix, Direction::forward), 0x1p61);
    Shapes wraps = matrix;  // 2^63 bytes and 3 * 2^63
    wraps.q_heads *= 4;
    refused("cpu.standard", wraps, Direction::forward);
    refused("cpu.standard", wraps, Direction::backward);
    refused("cpu.standard",
            {.q_length = 1126575450, .k_length = 2046771931, .qk_dim = 1, .dtype = DType::fp64},
            Direction::forward);
  }
  if (obstacle("cpu.decode").empty()) {
    Shapes partials{.batch = 1 << 26, .q_length = 16, .k_length = 1 << 25, .q_heads = 1 << 6, .kv_heads = 1};
    EXPECT_GE(workspace("cpu.decode", partials, Direction::forward), 0x1p52);
    partials.q_heads = 1 << 16;
    refused("cpu.decode", partials, Direction::forward);
  }
}

// ---- masks beyond any sequence ------------------------------------------------------------------

// One block that holds every position is no mask at all, however long it is.
TEST_P(SizesTest, BlocksLongerThanAnySequence) {
  for (const bool packed : {false, true}) {
    const CaseSpec spec{.batch = packed ? 3 : 1,
                        .q_length = 150,
                        .k_length = 300,
                        .q_heads = 2,
                        .kv_heads = 1,
                        .packed = packed};
    Case masked(spec);
    const Expected expected = expect(masked);  // as without a block mask
    const std::int64_t q_length = packed ? kMaxInt64 : spec.q_length,
                       k_length = packed ? kMaxInt64 : spec.k_length;
    for (const std::int64_t block :
         {std::int64_t{1} << 40, std::int64_t{1} << 62, kMaxInt64 - 1, kMaxInt64}) {
      for (const int sides : {1, 2, 3}) {
        BlockLayout layout{.q_length = q_length, .k_length = k_length, .block_q = block, .block_k = block};
        if (packed && sides != 3) continue;  // such a mask has too many blocks of the other side
        if (sides == 1) layout.block_k = 128;
        if (sides == 2) layout.block_q = 128;
        if ((q_length - 1) / layout.block_q > 4 || (k_length - 1) / layout.block_k > 4) continue;
        SCOPED_TRACE("block_q " + std::to_string(layout.block_q) + " block_k " +
                     std::to_string(layout.block_k) + (packed ? " packed" : ""));
        const auto blocks = static_cast<std::size_t>(((q_length - 1) / layout.block_q + 1) *
                                                     ((k_length - 1) / layout.block_k + 1));
        masked.attention.mask.blocks = BlockMask::from_blocks(layout, std::vector<std::uint8_t>(blocks, 1));
        masked.poison();
        run(masked, kernel());
        const Verdict verdict = judge(masked, expected);
        EXPECT_TRUE(verdict.ok) << verdict.message;
      }
    }
  }
}

// The widest bound hides nothing, wherever the diagonal is; a bound as wide as the
// diagonal is far hides what it says.
TEST_P(SizesTest, WindowsAroundFarDiagonals) {
  constexpr std::int64_t kFar = std::int64_t{1} << 48, kLast = (std::int64_t{1} << 32) - 20;
  int masked = 0;
  for (const std::int64_t diagonal : {kFar, kFar - 10, -kFar, -kFar + 10}) {
    for (const std::int64_t bound : {kMaxInt64, kFar + 3 * kLast, kFar, kFar - 5}) {
      for (const Origin& origin : {Origin{}, Origin{.row = kLast}, Origin{.column = kLast}}) {
        const CaseSpec spec{.batch = 1,
                            .q_length = 20,
                            .k_length = 20,
                            .q_heads = 2,
                            .kv_heads = 1,
                            .qk_dim = 8,
                            .v_dim = 8,
                            .left = diagonal > 0 ? bound : -1,
                            .right = diagonal < 0 ? bound : -1,
                            .diagonal = diagonal,
                            .origin = origin};
        const Verdict verdict = verify(spec, kernel());
        EXPECT_TRUE(verdict.ok) << describe(spec) << ' ' << verdict.message;
        masked += bound < kFar ? 1 : 0;
      }
    }
  }
  EXPECT_GT(masked, 0);
}

// ---- tensors beyond 2^31 elements ---------------------------------------------------------------

// Address space without memory behind it: pages appear where they are touched.
class Sparse {
 public:
  explicit Sparse(std::size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) data_ = nullptr;
    if (data_ != nullptr) madvise(data_, bytes, MADV_NOHUGEPAGE);
  }
  ~Sparse() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  Sparse(const Sparse&) = delete;
  Sparse& operator=(const Sparse&) = delete;
  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  std::size_t bytes_;
  void* data_;
};

void copy_elements(const Tensor& from, const Tensor& to) {
  for (std::int64_t a = 0; a < from.shape[0]; ++a)
    for (std::int64_t b = 0; b < from.shape[1]; ++b)
      for (std::int64_t c = 0; c < from.shape[2]; ++c)
        for (std::int64_t d = 0; d < from.shape[3]; ++d)
          reference::write(to, a, b, c, d, reference::read(from, a, b, c, d));
}

// Rows so far apart that their offsets pass 2^31 and 2^32 elements, forwards and
// backwards: the bits are those of dense tensors.
TEST_P(SizesTest, OffsetsBeyond2To32Elements) {
  const ForceKernel forced(kernel());
  constexpr std::int64_t kRows = 80, kStep = std::int64_t{1} << 12;  // elements between tensors
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for (const std::int64_t stride : {(std::int64_t{1} << 26) + 64, -(std::int64_t{1} << 26)}) {
      const auto element = static_cast<std::int64_t>(size_of(dtype));
      const Sparse memory(static_cast<std::size_t>((kRows * std::abs(stride) + 16 * kStep) * element));
      if (memory.data() == nullptr)
        GTEST_SKIP() << "mmap of a sparse buffer failed: " << std::strerror(errno);
      std::byte* const first = memory.data() + (stride < 0 ? (kRows - 1) * -stride * element : 0);
      Case dense({.dtype = dtype,
                  .batch = 1,
                  .q_length = kRows,
                  .k_length = kRows,
                  .q_heads = 2,
                  .kv_heads = 1,
                  .qk_dim = 40,
                  .v_dim = 40,
                  .right = 0});
      tessera::forward(dense.attention, dense.forward);
      if (has_backward(kernel())) tessera::backward(dense.attention, dense.backward);
      int count = 0;
      auto far_away = [&](const Tensor& from, bool input) {
        Tensor to = tensor(static_cast<void*>(first + count++ * kStep * element), dtype, from.shape,
                           {12345, stride, 64, 1});
        if (input) copy_elements(from, to);
        return to;
      };
      ForwardTensors forward = dense.forward;
      forward.q = far_away(dense.forward.q, true);
      forward.k = far_away(dense.forward.k, true);
      forward.v = far_away(dense.forward.v, true);
      forward.out = far_away(dense.forward.out, false);
      std::vector<float> lse(static_cast<std::size_t>(2 * kRows));
      forward.lse = tensor(lse.data(), dense.forward.lse.shape);
      tessera::forward(dense.attention, forward);
      EXPECT_EQ(first_difference(dense.forward, forward), "") << name(dtype) << " stride " << stride;
      if (!has_backward(kernel())) continue;
      BackwardTensors backward = dense.backward;
      backward.q = forward.q, backward.k = forward.k, backward.v = forward.v, backward.out = forward.out;
      backward.grad_out = far_away(dense.backward.grad_out, true);
      backward.grad_q = far_away(dense.backward.grad_q, false);
      backward.grad_k = far_away(dense.backward.grad_k, false);
      backward.grad_v = far_away(dense.backward.grad_v, false);
      tessera::backward(dense.attention, backward);
      EXPECT_EQ(first_difference(dense.backward, backward), "") << name(dtype) << " stride " << stride;
    }
  }
}

TEST_P(SizesTest, BatchOf256) {
  for (const bool packed : {false, true}) {
    const CaseSpec spec{.batch = 256,
                        .q_length = 5,
                        .k_length = 7,
                        .q_heads = 2,
                        .kv_heads = 1,
                        .qk_dim = 8,
                        .v_dim = 8,
                        .right = 0,
                        .packed = packed,
                        .alibi = true,
                        .alibi_per_batch = true};
    const Verdict verdict = verify(spec, kernel());
    EXPECT_TRUE(verdict.ok) << describe(spec) << ' ' << verdict.message;
  }
}

// ---- every head_dim, and many tiny problems -----------------------------------------------------

TEST_P(SizesTest, EveryHeadDim) {
  const int step = scaled(1, 15, "every head_dim: steps of", 51);
  for (std::int64_t dim = 1; dim <= 256; dim += step) {
    for (const DType dtype : kDTypes) {
      const CaseSpec spec{.dtype = dtype,
                          .batch = 1,
                          .q_length = 5,
                          .k_length = 9,
                          .q_heads = 2,
                          .kv_heads = 1,
                          .qk_dim = dim,
                          .v_dim = dim * 37 % 257,
                          .right = 0,
                          .seed = static_cast<std::uint64_t>(dim)};
      const Verdict verdict = verify(spec, kernel());
      ASSERT_TRUE(verdict.ok) << describe(spec) << ' ' << verdict.message;
    }
  }
}

// Shapes are where loops over tiles and rests of vectors go wrong, and fp64 leaves errors nowhere
// to hide.
TEST_P(SizesTest, TinyRandomProblemsInFp64) {
  const int count = scaled(10'000, 60, "tiny random problems:", 20);
  for (int seed = 1; seed <= count; ++seed) {
    CaseSpec spec = random_spec(static_cast<std::uint64_t>(seed) + 1'000'000, DType::fp64);
    auto tiny = [](std::int64_t length, std::int64_t most) { return length == 0 ? 0 : length % most + 1; };
    spec.q_length = tiny(spec.q_length, 19);
    spec.k_length = tiny(spec.k_length, 23);
    spec.qk_dim = tiny(spec.qk_dim, 26);
    spec.v_dim = tiny(spec.v_dim, 21);
    if (spec.q_length == 0 || spec.k_length == 0) spec.blocks = reference::BlockKind::none;
    const Verdict verdict = verify(spec, kernel());
    ASSERT_TRUE(verdict.ok) << describe(spec) << ' ' << verdict.message;
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, SizesTest, testing::ValuesIn(forward_kernels()), kernel_test_name);

}  // namespace
}  // namespace tessera::test
