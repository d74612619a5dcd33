// The machine itself, by small kernels: what runs as CUDA says, and what is reported as an error,
// whatever the seed. Compiled as a kernel file.
#include <cuda.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/common/ptx/async.cuh"
#include "cuda/common/ptx/memory.cuh"
#include "cuda/common/ptx/mma.cuh"
#include "cuda/common/ptx/shared_memory.cuh"
#include "cuda/common/ptx/wgmma.cuh"
#include "gpu_model/machine/tensor_map.h"

namespace tessera::cuda {
namespace {

enum class WaitFor { test };

// A kernel is a function object here: what it captures by value are its arguments.
template <typename Kernel>
void launch(unsigned grid, unsigned threads, std::size_t shared, const Kernel& kernel,
            bool beside_predecessors = false) {
  gpu_model::run({.name = "test",
                  .grid = grid,
                  .threads = threads,
                  .shared_bytes = shared,
                  .beside_predecessors = beside_predecessors,
                  .arguments = reinterpret_cast<const std::byte*>(&kernel),
                  .argument_bytes = sizeof kernel,
                  .kernel = nullptr,
                  .call = [](const void*, const void* own) { (*static_cast<const Kernel*>(own))(); }});
}

constexpr unsigned kSeeds = 6;

// The kernel runs without a complaint.
template <typename Kernel>
void expect_clean(unsigned threads, std::size_t shared, const Kernel& kernel, unsigned grid = 1) {
  for (unsigned seed = 0; seed < kSeeds; ++seed) {
    gpu_model::set_seed(seed);
    EXPECT_NO_THROW(launch(grid, threads, shared, kernel)) << "seed " << seed;
  }
}

// The kernel is stopped by a message with these words, whatever the seed.
template <typename Kernel>
void expect_error(const std::string& words, unsigned threads, std::size_t shared, const Kernel& kernel,
                  bool beside_predecessors = false) {
  for (unsigned seed = 0; seed < kSeeds; ++seed) {
    gpu_model::set_seed(seed);
    try {
      launch(1, threads, shared, kernel, beside_predecessors);
      ADD_FAILURE() << "seed " << seed << " found nothing";
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos)
          << "seed " << seed << ": " << error.what();
      EXPECT_NE(std::string(error.what()).find("machine_test.cpp:"), std::string::npos) << error.what();
    }
  }
}

template <typename T>
T* dynamic_shared() {
  TESSERA_DYNAMIC_SHARED(unsigned char, 1024, memory);
  return reinterpret_cast<T*>(memory);
}
int* words() { return dynamic_shared<int>(); }
int thread() { return static_cast<int>(threadIdx.x); }

// Memory that kernels may touch, for a scope.
template <typename T>
class Global {
 public:
  explicit Global(std::size_t count, T value = {}) : data_(count, value) {
    gpu_model::add_global(data_.data(), count * sizeof(T));
  }
  ~Global() { gpu_model::remove_global(data_.data()); }
  Global(const Global&) = delete;
  Global& operator=(const Global&) = delete;
  T* data() { return data_.data(); }
  T& operator[](std::size_t i) { return data_[i]; }

 private:
  std::vector<T> data_;
};

// --- what works ----------------------------------------------------------------------------------

TEST(GpuModel, ThreadsShareMemoryAndVote) {
  Global<int> out(64);
  expect_clean(64, 256, [out = out.data()] {
    int* shared = words();
    shared[thread()] = thread();
    __syncthreads();
    const int other = shared[63 - thread()];
    const int sum = __shfl_xor_sync(~0U, other, 1) + other;
    const bool all = __all_sync(~0U, sum >= 0), any = __any_sync(~0U, sum == 1);
    out[thread()] = all ? sum + (any ? 1000 : 0) : -1;
  });
  EXPECT_EQ(out[63], 1001);  // the warp with threads 0 and 1 on the other side
  EXPECT_EQ(out[0], 62 + 63);
}

TEST(GpuModel, BlocksCountWithAtomics) {
  Global<int> counter(1);
  expect_clean(32, 0, [counter = counter.data()] { atomicAdd(counter, 1); }, 5);
  EXPECT_EQ(counter[0], static_cast<int>(kSeeds) * 5 * 32);
}

TEST(GpuModel, ProductsOfAWarp) {
  Global<float> out(16 * 8);
  expect_clean(32, 1024, [out = out.data()] {
    auto* shared = dynamic_shared<std::uint16_t>();
    for (int i = thread(); i < 256; i += 32)
      shared[i] = static_cast<std::uint16_t>(ptx::pack<ptx::Half16::fp16>(i % 16 == i / 16 ? 1 : 0, 0));
    __syncwarp();
    std::uint32_t a[4];
    ptx::load_matrix(a, ptx::shared_address(shared + (thread() % 16) * 16 + thread() / 16 * 8));
    float d[4];
    const auto one = ptx::pack<ptx::Half16::fp16>(static_cast<float>(thread() % 4 * 2),
                                                  static_cast<float>(thread() % 4 * 2 + 1));
    ptx::mma_first<ptx::Mma::k16, ptx::Half16::fp16>(d, a, one,
                                                     one);  // the identity times rows 0 to 7, twice
    for (int i = 0; i < 4; ++i) out[(thread() / 4 + i / 2 * 8) * 8 + thread() % 4 * 2 + i % 2] = d[i];
  });
  for (int row = 0; row < 16; ++row) EXPECT_EQ(out[static_cast<std::size_t>(row * 8 + 3)], row % 8) << row;
}

// --- what does not -------------------------------------------------------------------------------

TEST(GpuModel, UnwrittenSharedMemory) {
  Global<int> out(32);
  expect_error("reads what nobody has written", 32, 256,
               [out = out.data()] { out[thread()] = words()[thread()]; });
}

TEST(GpuModel, AWriteThatNoBarrierOrders) {
  expect_error("shared memory", 64, 256, [] {
    if (thread() == 0) words()[0] = 1;
    if (thread() >= 32) words()[thread()] = words()[0];
  });
}

TEST(GpuModel, AnotherLanesWriteNeedsSyncwarp) {
  expect_error("shared memory", 32, 256, [] {
    words()[thread()] = thread();
    __any_sync(~0U, 1);  // a vote orders no memory
    words()[32 + thread()] = words()[31 - thread()];
  });
}

TEST(GpuModel, OverwritingWhatOthersStillRead) {
  expect_error("shared memory", 64, 256, [] {
    words()[thread()] = 0;
    __syncthreads();
    const int x = words()[63 - thread()];
    __any_sync(~0U, x);
    words()[thread()] = x + 1;
  });
}

TEST(GpuModel, TheSameValueNeedsItsName) {
  expect_clean(64, 256, [] { ptx::store_same(words()[0], 7); });
  expect_error("in no order", 64, 256, [] { words()[0] = 7; });
}

TEST(GpuModel, MemoryOutOfBounds) {
  Global<int> out(32);
  expect_error("of shared memory", 32, 64, [] { words()[thread()] = 1; });
  expect_error("belongs to no tensor", 32, 64, [out = out.data()] { out[thread() + 1] = 1; });
}

TEST(GpuModel, CopiesOfAThreadNeedTheirWait) {
  Global<uint4> in(32);
  auto copy = [in = in.data()](bool commit, bool wait, bool barrier) {
    ptx::copy_async(ptx::shared_address(words() + 4 * thread()), in + thread(), true);
    if (commit) ptx::commit_copies();
    if (wait) ptx::wait_copies<0>();
    if (barrier) __syncwarp();
    words()[128] = words()[4 * (31 - thread())];
  };
  expect_error("a copy is still writing", 32, 1024, [copy] { copy(true, false, true); });
  expect_error("a copy is still writing", 32, 1024, [copy] { copy(false, true, true); });
  expect_error("shared memory", 32, 1024, [copy] { copy(true, true, false); });
  expect_error("ends with cp.async under way", 32, 1024, [in = in.data()] {
    ptx::copy_async(ptx::shared_address(words() + 4 * thread()), in + thread(), true);
  });
}

struct Engine {
  alignas(1024) unsigned char tile[64 * 128];
  std::uint64_t full;
};

// A tensor of 64 rows of 64 halves.
CUtensorMap map_of(void* data) {
  CUtensorMap map{};
  const cuuint64_t sizes[4] = {64, 64, 1, 1}, strides[3] = {128, 8192, 8192};
  const cuuint32_t box[4] = {64, 64, 1, 1}, steps[4] = {1, 1, 1, 1};
  EXPECT_EQ(cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4, data, sizes, strides, box, steps,
                                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                   CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
            CUDA_SUCCESS);
  return map;
}

enum class Leave { nothing, publish, barrier, wait, expect, proxy_fence, wgmma_fence, wgmma_wait };

// One load by the copy engine, one wgmma of it by a warp group, with one thing left out.
void engine_kernel(const CUtensorMap& map, float* out, Leave leave) {
  auto& shared = *dynamic_shared<Engine>();
  if (thread() == 0) {
    ptx::init_barrier(&shared.full, 1);
    if (leave != Leave::publish) ptx::publish_barriers();
  }
  if (leave != Leave::barrier) __syncthreads();
  if (thread() == 0) {
    if (leave == Leave::expect) ptx::arrive(&shared.full);
    else ptx::arrive_and_expect(&shared.full, sizeof shared.tile);
    ptx::load_box(shared.tile, map, &shared.full, 0, 0, 0, 0);
  }
  if (leave != Leave::wait) ptx::wait<false>(&shared.full, 0, nullptr, WaitFor::test);
  if (leave == Leave::proxy_fence) {
    ptx::store_shared(ptx::shared_address(shared.tile) + static_cast<std::uint32_t>(thread() * 4), 0U);
    __syncthreads();
  }
  const std::uint32_t low = ptx::shared_address(shared.tile) >> 4;
  const std::uint64_t tile = std::uint64_t{64 | 1U << 30} << 32 | low;
  float d[32];
  for (int turn = 0; turn < 2; ++turn) {
    for (float& x : d) x = 0;
    if (leave != Leave::wgmma_fence) ptx::wgmma_fence();
    ptx::Wgmma<64, ptx::Half16::fp16>::shared(d, tile, tile);
    ptx::wgmma_commit();
    if (leave != Leave::wgmma_wait) ptx::wgmma_wait<0>();
    float sum = 0;
    for (const float x : d) sum += x;
    out[thread()] = sum;
  }
  if (leave == Leave::wgmma_wait) ptx::wgmma_wait<0>();
}

TEST(GpuModel, TheCopyEngineAndWgmma) {
  Global<_Float16> tensor(64 * 64, static_cast<_Float16>(1));
  Global<float> out(128);
  const CUtensorMap map = map_of(tensor.data());
  auto kernel = [&](Leave leave) { return [map, to = out.data(), leave] { engine_kernel(map, to, leave); }; };
  expect_clean(128, sizeof(Engine), kernel(Leave::nothing));
  EXPECT_EQ(out[77], 32 * 16);
  expect_error("fence.mbarrier_init", 128, sizeof(Engine), kernel(Leave::publish));
  expect_error("mbarrier", 128, sizeof(Engine), kernel(Leave::barrier));
  expect_error("shared memory", 128, sizeof(Engine), kernel(Leave::wait));
  expect_error("fence.proxy.async", 128, sizeof(Engine), kernel(Leave::proxy_fence));
  expect_error("wgmma.fence", 128, sizeof(Engine), kernel(Leave::wgmma_fence));
  expect_error("accumulators of a wgmma in flight", 128, sizeof(Engine), kernel(Leave::wgmma_wait));
}

TEST(GpuModel, BytesThatNobodyExpects) {
  Global<_Float16> tensor(64 * 64);
  Global<float> out(128);
  const CUtensorMap map = map_of(tensor.data());
  gpu_model::set_seed(0);
  EXPECT_THROW(
      launch(1, 128, sizeof(Engine), [map, to = out.data()] { engine_kernel(map, to, Leave::expect); }),
      std::runtime_error);
}

TEST(GpuModel, DeadlocksNameTheBarrier) {
  expect_error("deadlock", 64, 256, [] {
    if (thread() < 32) ptx::meet(1, 64);
  });
  expect_error("waits for an mbarrier", 32, 256, [] {
    auto* barrier = dynamic_shared<std::uint64_t>();
    if (thread() == 0) ptx::init_barrier(barrier, 1);
    __syncwarp();
    ptx::wait<false>(barrier, 0, nullptr, WaitFor::test);
  });
}

TEST(GpuModel, BarriersAreEmptyAtTheEnd) {
  gpu_model::set_seed(0);
  EXPECT_THROW(launch(1, 32, 0, [] { ptx::pass(1, 64); }), std::runtime_error);
}

TEST(GpuModel, LanesMustMeet) {
  expect_error("while other lanes of its warp execute", 32, 256, [] {
    if (thread() % 2 == 0) __syncwarp();
    else __any_sync(~0U, 1);
  });
}

TEST(GpuModel, PredecessorsAreWaitedFor) {
  Global<int> out(32);
  expect_error("griddepcontrol.wait", 32, 0, [out = out.data()] { out[thread()] = 1; }, true);
  gpu_model::set_seed(0);
  EXPECT_NO_THROW(
      launch(1, 32, 0, [out = out.data()] { ptx::await_predecessors(), out[thread()] = 1; }, true));
}

}  // namespace
}  // namespace tessera::cuda
