// Which kernel runs what on which GPU, without one.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cuda/common/host/gpus.h"
#include "reference/cases/case.h"
#include "reference/tolerance/check.h"
#include "tessera/error.h"
#include "tessera/mask.h"
#include "tessera/plan.h"

namespace tessera {
namespace {

std::string refusal(const std::function<void()>& call, ErrorCode code) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return {};
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Why a kernel is not chosen for a problem on a GPU of a capability; empty: it is.
std::string missing(const std::string& kernel, int capability, const Shapes& shapes,
                    const Attention& attention = {}, Direction direction = Direction::forward) {
  const cuda::AssumedGpu gpu(capability);
  try {
    const Plan chosen = plan(attention, shapes, Device::cuda(0), direction);
    if (chosen.kernel == kernel) return {};
    for (const Rejection& rejection : chosen.rejected) {
      if (rejection.kernel == kernel) return rejection.reason;
    }
    return "not listed";
  } catch (const Error& error) {
    return reference::what_it_lacks(kernel, error.what());
  }
}

// Whether a kernel supports a problem: it is chosen, or another one is preferred.
bool supports(const std::string& reason) { return reason.empty() || contains(reason, "supports it; "); }

TEST(CudaSelection, MinimalNeedsItsTilesInSharedMemory) {
  auto reason = [](int capability, std::int64_t dim) {
    return missing("cuda.minimal", capability, {.q_length = 128, .k_length = 128, .qk_dim = dim});
  };
  for (const int capability : cuda::AssumedGpu::known())
    EXPECT_TRUE(supports(reason(capability, 128))) << capability;
  EXPECT_TRUE(supports(reason(80, 256)));
  EXPECT_TRUE(supports(reason(90, 256)));
  EXPECT_TRUE(contains(reason(75, 256), "requires 98688 bytes of shared memory; cuda:0 has 65536"));
  EXPECT_TRUE(supports(reason(86, 256)));
}

TEST(CudaSelection, MinimalSupportsWhatStaysSimple) {
  const Shapes shapes{.q_length = 64, .k_length = 64};
  auto reason = [&](const Attention& attention) { return missing("cuda.minimal", 90, shapes, attention); };
  EXPECT_TRUE(supports(reason({.mask = causal()})));
  EXPECT_TRUE(supports(reason({.mask = window(3, 5)})));
  EXPECT_EQ(reason({.softcap = 5}), "does not support softcap");
  EXPECT_EQ(reason({.dropout = {.probability = 0.1}}), "does not support dropout");
  EXPECT_EQ(missing("cuda.minimal", 90, {.q_length = 64, .k_length = 64, .dtype = DType::bf16}),
            "does not support bf16");
}

TEST(CudaSelection, Fp32HasAKernelForEveryHeadDim) {
  for (const int capability : cuda::AssumedGpu::known()) {
    const std::string kernel = capability < 80 ? "cuda.flash2_sm75" : "cuda.flash2";
    for (const std::int64_t dim : {1, 64, 65, 128, 129, 256}) {
      for (const Direction direction : {Direction::forward, Direction::backward}) {
        const Shapes shapes{.q_length = 300, .k_length = 300, .qk_dim = dim};
        EXPECT_EQ(missing(kernel, capability, shapes, {.softcap = 5}, direction), "")
            << capability << " " << dim;
      }
    }
  }
}

TEST(CudaSelection, SixteenBitTypesHaveAKernelForEveryHeadDim) {
  const float slope = 1;
  const Attention descriptions[] = {{},
                                    {.scale = -1.0, .mask = causal()},
                                    {.softcap = 5, .alibi = {.slopes = &slope}},
                                    {.dropout = {.probability = 0.1}, .origin = {.column = 5}},
                                    {.dropout = {.probability = 0.1}, .origin = {.column = 64}}};
  // Which of them cuda.hopper supports, on its GPU, in rows that its copy engine can address.
  auto for_hopper = [&](const Attention& attention, std::int64_t dim, Direction direction) {
    const auto at = &attention - descriptions;
    if (direction == Direction::forward) return at == 0;
    return at <= 1 ? dim <= 128 : at == 4 && dim <= 64;
  };
  for (const int capability : cuda::AssumedGpu::known()) {
    for (const DType dtype : {DType::fp16, DType::bf16}) {
      if (dtype == DType::bf16 && capability < 80) continue;
      for (const std::int64_t dim : {1, 33, 64, 65, 128, 129, 256}) {
        for (const Direction direction : {Direction::forward, Direction::backward}) {
          for (const Attention& attention : descriptions) {
            const cuda::AssumedGpu gpu(capability);
            const Shapes shapes{.q_length = 300, .k_length = 300, .qk_dim = dim, .dtype = dtype};
            const Plan chosen = plan(attention, shapes, Device::cuda(0), direction);
            const bool hopper = capability == 90 && dim % 8 == 0 && for_hopper(attention, dim, direction);
            EXPECT_EQ(chosen.kernel, hopper            ? "cuda.hopper"
                                     : capability < 80 ? "cuda.flash2_sm75"
                                                       : "cuda.flash2")
                << capability << " " << dim << " " << name(direction) << " " << &attention - descriptions;
          }
        }
      }
    }
  }
}

// Forward tiles follow from the shared memory of a GPU and from how much there is to do.
TEST(CudaSelection, ForwardTilesFitTheGpu) {
  struct Case {
    int capability;
    std::int64_t dim, length;
    Mask mask;
    std::int64_t block_q, block_k;
  };
  const Case cases[] = {
      {90, 64, 4096, {}, 128, 64},  {86, 64, 4096, {}, 128, 64},      {75, 64, 4096, {}, 128, 32},
      {90, 128, 4096, {}, 128, 64}, {80, 128, 4096, {}, 128, 32},     {86, 128, 4096, {}, 128, 64},
      {90, 256, 4096, {}, 128, 64}, {80, 256, 4096, {}, 64, 64},      {86, 256, 4096, {}, 64, 64},
      {90, 256, 512, {}, 128, 64},  {90, 256, 512, causal(), 64, 64}, {90, 256, 4096, window(100, 0), 64, 64},
  };
  for (const Case& c : cases) {
    const cuda::AssumedGpu gpu(c.capability);
    const Shapes shapes{.q_length = c.length, .k_length = c.length, .qk_dim = c.dim, .dtype = DType::fp16};
    const Attention attention{.mask = c.mask, .algorithm = Algorithm::flash2};
    const Plan chosen = plan(attention, shapes, Device::cuda(0), Direction::forward);
    EXPECT_EQ(chosen.block_q, c.block_q) << c.capability << " " << c.dim << " " << c.length;
    EXPECT_EQ(chosen.block_k, c.block_k) << c.capability << " " << c.dim << " " << c.length;
  }
}

TEST(CudaSelection, HopperTilesFollowHeadDimAndLength) {
  struct Case {
    std::int64_t qk_dim, v_dim, length, block_q, block_k;
    std::string instance;
  };
  const Case cases[] = {
      {64, 64, 4096, 256, 64, "64 (q, k) and 64 (v)"},
      {64, 64, 8192, 192, 96, "64 (q, k) and 64 (v)"},
      {40, 16, 512, 256, 64, "64 (q, k) and 64 (v)"},
      {72, 72, 16384, 128, 128, "96 (q, k) and 96 (v)"},
      {96, 96, 512, 128, 128, "96 (q, k) and 96 (v)"},
      {64, 80, 1024, 128, 128, "96 (q, k) and 96 (v)"},
      {104, 96, 512, 128, 128, "128 (q, k) and 128 (v)"},
      {96, 104, 8192, 128, 128, "128 (q, k) and 128 (v)"},
      {128, 128, 512, 128, 128, "128 (q, k) and 128 (v)"},
      {64, 128, 512, 128, 128, "128 (q, k) and 128 (v)"},
      {192, 128, 4096, 128, 96, "192 (q, k) and 128 (v)"},
      {136, 64, 512, 128, 96, "192 (q, k) and 128 (v)"},
      {192, 192, 512, 128, 64, "256 (q, k) and 256 (v)"},
      {256, 256, 16384, 128, 64, "256 (q, k) and 256 (v)"},
      {8, 256, 512, 128, 64, "256 (q, k) and 256 (v)"},
  };
  for (const Case& c : cases) {
    for (const Mask& mask : {Mask{}, causal(), window(100, 3)}) {
      for (const DType dtype : {DType::fp16, DType::bf16}) {
        const cuda::AssumedGpu gpu(90);
        const Shapes shapes{.batch = 2,
                            .q_length = c.length,
                            .k_length = c.length,
                            .q_heads = 8,
                            .kv_heads = 2,
                            .qk_dim = c.qk_dim,
                            .v_dim = c.v_dim,
                            .dtype = dtype};
        const Plan chosen = plan({.mask = mask}, shapes, Device::cuda(0));
        EXPECT_EQ(chosen.kernel, "cuda.hopper") << c.qk_dim;
        // A window of few keys, however many there are; few keys under any mask.
        const bool window = mask.left != -1, narrow = window || (mask.right != -1 && c.length == 512);
        EXPECT_EQ(chosen.block_q, window && c.block_q == 192 ? 256 : c.block_q)
            << c.qk_dim << " " << c.length;
        EXPECT_EQ(
            chosen.block_k,
            (window && c.block_k == 96 && c.qk_dim == 64) || (narrow && c.block_k == 128) ? 64 : c.block_k)
            << c.qk_dim << " " << c.length;
        const std::string instance = narrow && c.block_k == 128 ? "128 (q, k) and 128 (v)" : c.instance;
        EXPECT_NE(chosen.details.find("head_dim up to " + instance + "\n"), std::string::npos)
            << c.qk_dim << ", " << c.v_dim << ": " << chosen.details;
        EXPECT_LE(chosen.shared_memory_bytes, 227U * 1024);
        EXPECT_LE(chosen.workspace_bytes, 64U * 1024) << "a number per tile";
        if (mask.right == -1) {
          EXPECT_EQ(chosen.workspace_bytes, 0U);
        }
      }
    }
  }
}

TEST(CudaSelection, HopperSaysWhatItLeavesToFlash2) {
  const Shapes shapes{.q_length = 512, .k_length = 512, .qk_dim = 64, .dtype = DType::bf16};
  const float slope = 1;
  auto reason = [&](const Attention& attention) { return missing("cuda.hopper", 90, shapes, attention); };
  EXPECT_EQ(reason({}), "");
  EXPECT_EQ(reason({.mask = Mask{.right = 0, .align = Align::top_left}}), "");
  EXPECT_EQ(reason({.scale = -1.0}), "requires a positive scale; this call has -1");
  EXPECT_EQ(reason({.softcap = 5}), "does not support softcap");
  EXPECT_EQ(reason({.alibi = {.slopes = &slope}}), "does not support ALiBi");
  EXPECT_EQ(reason({.dropout = {.probability = 0.1}}), "does not support dropout");
  auto shaped = [](const Shapes& s, int capability = 90) { return missing("cuda.hopper", capability, s); };
  EXPECT_EQ(shaped({.q_length = 512, .k_length = 0, .dtype = DType::bf16}), "requires at least one key");
  EXPECT_EQ(shaped({.q_length = 0, .k_length = 8, .dtype = DType::bf16}), "");
  EXPECT_EQ(
      shaped({.q_length = 512, .k_length = 512, .qk_dim = 33, .dtype = DType::bf16}),
      "q's sequence stride is 33 elements; the copy engine (TMA) needs a positive multiple of 8 below 2^39");
  EXPECT_EQ(shaped({.q_length = 512, .k_length = 512}), "does not support fp32");
  for (const int capability : {80, 100}) {
    EXPECT_TRUE(contains(shaped(shapes, capability), "requires compute capability 9.0; cuda:0 has "));
  }
}

// The plan of a backward on a GPU of compute capability 9.0. `change` edits the call first.
Plan backward_plan(
    const reference::CaseSpec& spec,
    const std::function<void(Attention&, BackwardTensors&)>& change = [](auto&...) {}) {
  const cuda::AssumedGpu gpu(90);
  const reference::Case problem(spec);
  Attention attention = problem.attention;
  BackwardTensors t = problem.backward;
  if (attention.mask.lengths.count != 0)
    attention.mask.lengths.max_q = spec.q_length, attention.mask.lengths.max_k = spec.k_length;
  for (Tensor* tensor : {&t.q, &t.k, &t.v, &t.bias, &t.out, &t.lse, &t.grad_out, &t.grad_lse, &t.grad_q,
                         &t.grad_k, &t.grad_v, &t.grad_bias}) {
    tensor->device = Device::cuda(0);
  }
  change(attention, t);
  return plan(attention, t);
}

TEST(CudaSelection, HopperBackwardSupportsItsPart) {
  using Spec = reference::CaseSpec;
  auto expect_hopper = [](const char* what, const Spec& spec, std::int64_t block_q,
                          const std::string& instance) {
    const Plan chosen = backward_plan(spec);
    EXPECT_EQ(chosen.kernel, "cuda.hopper") << what;
    EXPECT_EQ(chosen.block_q, block_q) << what;
    EXPECT_EQ(chosen.block_k, 128) << what;
    EXPECT_TRUE(contains(chosen.details, "instance: head_dim up to " + instance + "\n"))
        << what << chosen.details;
    EXPECT_LE(chosen.shared_memory_bytes, 227U * 1024) << what;
  };
  for (const DType dtype : {DType::fp16, DType::bf16}) {
    const Spec spec{.dtype = dtype, .q_length = 70, .k_length = 83, .qk_dim = 64, .v_dim = 64};
    auto with = [&](auto&& change) {
      Spec changed = spec;
      change(changed);
      return changed;
    };
    expect_hopper("plain", spec, 128, "64");
    expect_hopper("causal", with([](Spec& s) { s.right = 0; }), 128, "64");
    expect_hopper("window", with([](Spec& s) { s.left = 9, s.right = 2, s.align = Align::top_left; }), 128,
                  "64");
    expect_hopper("GQA, packed", with([](Spec& s) { s.kv_heads = 2, s.packed = true; }), 128, "64");
    expect_hopper("gradient of the LSE", with([](Spec& s) { s.grad_lse = true; }), 128, "64");
    expect_hopper("narrow", with([](Spec& s) { s.qk_dim = 8, s.v_dim = 40; }), 128, "64");
    expect_hopper("dropout", with([](Spec& s) { s.dropout = 0.2; }), 128, "64, with dropout");
    expect_hopper("dropout, from column 96 on",
                  with([](Spec& s) { s.dropout = 0.2, s.origin = {.row = 5, .column = 96}; }), 128,
                  "64, with dropout");
    expect_hopper("a wide v", with([](Spec& s) { s.v_dim = 72; }), 64, "128");
    expect_hopper("wide", with([](Spec& s) { s.qk_dim = 128, s.v_dim = 16; }), 64, "128");
  }
}

TEST(CudaSelection, HopperBackwardSaysWhatItLeavesToFlash2) {
  using Spec = reference::CaseSpec;
  const Spec spec{.dtype = DType::bf16, .q_length = 70, .k_length = 83, .qk_dim = 64, .v_dim = 64};
  // Why cuda.flash2 runs it and cuda.hopper does not.
  auto reason =
      [&](
          const std::function<void(Spec&)>& change,
          const std::function<void(Attention&, BackwardTensors&)>& call = [](auto&...) {}) -> std::string {
    Spec changed = spec;
    change(changed);
    const Plan chosen = backward_plan(changed, call);
    EXPECT_EQ(chosen.kernel, "cuda.flash2");
    for (const Rejection& rejection : chosen.rejected) {
      if (rejection.kernel == "cuda.hopper") return rejection.reason;
    }
    return "";
  };
  auto nothing = [](Spec&) {};

  constexpr const char* kTogether =
      "requires grad_q, grad_k and grad_v together; this call requests only some of them";
  EXPECT_EQ(reason(nothing, [](Attention&, BackwardTensors& t) { t.grad_q = {}; }), kTogether);
  EXPECT_EQ(reason(nothing, [](Attention&, BackwardTensors& t) { t.grad_k = {}; }), kTogether);
  EXPECT_EQ(reason(nothing, [](Attention&, BackwardTensors& t) { t.grad_v = {}; }), kTogether);

  EXPECT_EQ(reason([](Spec& s) { s.qk_dim = 136; }),
            "supports head_dim up to 128 (64 with dropout); this call has 136");
  EXPECT_EQ(reason([](Spec& s) { s.v_dim = 256; }),
            "supports head_dim up to 128 (64 with dropout); this call has 256");
  EXPECT_EQ(reason([](Spec& s) { s.qk_dim = 72, s.dropout = 0.1; }),
            "supports head_dim up to 128 (64 with dropout); this call has 72");
  EXPECT_EQ(reason([](Spec& s) { s.dropout = 0.1, s.origin.column = 16; }),
            "requires, with dropout, an origin.column that is a multiple of 32; this call has 16");

  EXPECT_EQ(reason(nothing, [](Attention& a, BackwardTensors&) { a.deterministic = true; }),
            "does not support deterministic backward");
  EXPECT_EQ(reason([](Spec& s) { s.softcap = 5; }), "does not support softcap");
  EXPECT_EQ(reason([](Spec& s) { s.alibi = true; }), "does not support ALiBi");
  EXPECT_EQ(reason([](Spec& s) { s.bias = reference::BiasKind::row; }),
            "does not support bias, bias gradient");
  EXPECT_EQ(reason([](Spec& s) { s.blocks = reference::BlockKind::local; }),
            "does not support block-sparse mask");

  EXPECT_EQ(reason([](Spec& s) { s.q_length = 0; }), "requires at least one query and one key");
  EXPECT_EQ(reason([](Spec& s) { s.k_length = 0; }), "requires at least one query and one key");

  constexpr const char* kRule = "; the copy engine (TMA) needs a positive multiple of 8 below 2^39";
  EXPECT_EQ(reason([](Spec& s) { s.qk_dim = 33; }),
            std::string("q's sequence stride is 132 elements") + kRule);
  // Rows further apart; the memory of a second batch entry is the room for that.
  auto spread = [](Tensor BackwardTensors::* member) {
    return [=](Attention&, BackwardTensors& t) {
      for (Tensor* tensor : {&t.q, &t.k, &t.v, &t.out, &t.lse, &t.grad_out, &t.grad_q, &t.grad_k, &t.grad_v})
        tensor->shape[0] = 1;
      (t.*member).strides[1] += 4;
    };
  };
  using T = BackwardTensors;
  for (const auto& [member, name] : {std::pair{&T::q, "q"},
                                     {&T::k, "k"},
                                     {&T::v, "v"},
                                     {&T::grad_out, "grad_out"},
                                     {&T::grad_k, "grad_k"},
                                     {&T::grad_v, "grad_v"}}) {
    EXPECT_EQ(reason(nothing, spread(member)),
              std::string(name) + "'s sequence stride is 260 elements" + kRule);
  }
  // These it reads and writes element by element.
  for (const auto& member : {&T::out, &T::grad_q})
    EXPECT_EQ(backward_plan(spec, spread(member)).kernel, "cuda.hopper");
}

TEST(CudaSelection, SizesThatNoGridHas) {
  EXPECT_TRUE(contains(missing("cuda.minimal", 90, {.q_length = std::int64_t{1} << 29, .k_length = 8}),
                       "supports sequences of at most 2^29 - 1 tokens; this call has 536870912"));
  EXPECT_TRUE(
      contains(missing("cuda.minimal", 90, {.batch = 1 << 20, .q_length = 1 << 20, .k_length = 8}),
               "supports at most 2^31 - 1 thread blocks; batch 1048576 x 1 heads x 32768 tiles exceed that"));
}

// Everything that a refusal says about kernels of a name: two may share one, for different types.
std::string refusal(const std::string& kernel, int capability, const Shapes& shapes, Direction direction) {
  const cuda::AssumedGpu gpu(capability);
  try {
    return "taken by " + plan({}, shapes, Device::cuda(0), direction).kernel;
  } catch (const Error& error) {
    std::istringstream lines(error.what());
    std::string text;
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("  " + kernel + ": ")) text += line + '\n';
    }
    return text;
  }
}

// Every kernel refuses them, in both directions: a count that wraps round would launch a part of
// the thread blocks. The second count of tiles of 128 rows is 2^32 + 32.
TEST(CudaSelection, SizesThatNoGridHasAreRefusedByEveryKernel) {
  const std::vector<KernelInfo> all = [] {
    const cuda::AssumedGpu gpu(90);
    return kernels();
  }();
  int checked = 0;
  for (const KernelInfo& kernel : all) {
    if (kernel.device != DeviceType::cuda) continue;
    bool supported = false;  // a small one
    for (const DType dtype : {DType::fp32, DType::fp16}) {
      for (const int capability : {75, 80, 90}) {
        SCOPED_TRACE(kernel.name + " " + name(kernel.direction) + " in " + name(dtype));
        const Shapes small{.q_length = 256, .k_length = 256, .dtype = dtype};
        const std::string obstacle = missing(kernel.name, capability, small, {}, kernel.direction);
        if (!supports(obstacle)) {
          if (contains(obstacle, "cuBLAS")) supported = true;  // without cuBLAS it refuses everything
          continue;
        }
        supported = true;
        for (const auto& [batch, length] : {std::pair{std::int64_t{1} << 22, std::int64_t{1} << 20},
                                            {(std::int64_t{1} << 20) + 8, 524288}}) {
          const Shapes large{.batch = batch, .q_length = length, .k_length = length, .dtype = dtype};
          const std::string reason = refusal(kernel.name, capability, large, kernel.direction);
          EXPECT_TRUE(contains(reason, "2^31 - 1")) << reason;
          ++checked;
        }
      }
    }
    EXPECT_TRUE(supported) << kernel.name << " " << name(kernel.direction);
  }
  EXPECT_GT(checked, 30);
}

TEST(CudaSelection, EveryKernelPlansOnEveryGpuOrSaysWhyNot) {
  for (const int capability : cuda::AssumedGpu::known()) {
    for (const DType dtype : {DType::fp64, DType::fp32, DType::fp16, DType::bf16}) {
      for (const Direction direction : {Direction::forward, Direction::backward}) {
        const cuda::AssumedGpu gpu(capability);
        const Shapes shapes{.q_length = 300, .k_length = 300, .dtype = dtype};
        try {
          const Plan chosen = plan({}, shapes, Device::cuda(0), direction);
          EXPECT_EQ(chosen.device, Device::cuda(0));
          EXPECT_GT(chosen.block_q, 0) << chosen.kernel;
          for (const Rejection& rejection : chosen.rejected) EXPECT_FALSE(rejection.reason.empty());
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::unsupported) << error.what();
        }
      }
    }
  }
}

// What a plan says of how sums are ordered: all but how many heads advance together.
std::string summation(const Plan& plan) {
  std::string text = plan.kernel + " " + std::to_string(plan.block_q) + " x " + std::to_string(plan.block_k) +
                     ", " + std::to_string(plan.shared_memory_bytes) + " bytes: " + plan.details;
  const std::size_t last_line = std::min(text.rfind('\n'), text.size());
  for (const char* order : {"heads together", "head by head", "first"}) {
    if (text.find(order, last_line) != std::string::npos) text.resize(last_line);
  }
  return text;
}

struct Sizes {
  std::int64_t q_length, k_length, dim;
};

// On both sides of every length from which on a kernel takes another instance.
constexpr Sizes kSizes[] = {{1, 1000, 64},    {64, 64, 33},     {130, 4096, 128},  {300, 256, 256},
                            {1024, 1024, 64}, {2048, 6144, 64}, {4096, 8192, 128}, {2048, 8192, 256}};

// The kernels that can be forced on the assumed GPU, and the automatic choice.
std::vector<std::string> gpu_kernels() {
  std::vector<std::string> names = {""};
  for (const KernelInfo& kernel : kernels()) {
    if (kernel.device == DeviceType::cuda && kernel.name != names.back()) names.push_back(kernel.name);
  }
  return names;
}

// Calls of one type, mask and direction, of which a row of a sequence must not know which one it is
// in.
struct Neighbours {
  std::string kernel;
  DType dtype;
  Attention attention;
  Direction direction;
  std::string first{};  // how the first call sums
  int supported = 0;

  void add(const Sizes& sizes, std::int64_t batch, std::int64_t heads) {
    const reference::ForceKernel forced(kernel);
    const Shapes shapes{.batch = batch,
                        .q_length = sizes.q_length,
                        .k_length = sizes.k_length,
                        .q_heads = heads,
                        .qk_dim = sizes.dim,
                        .dtype = dtype};
    if (Lengths& lengths = attention.mask.lengths; lengths.count != 0)
      lengths = {.count = batch, .max_q = sizes.q_length, .max_k = sizes.k_length};
    std::string text;
    try {
      const Plan chosen = plan(attention, shapes, Device::cuda(0), direction);
      ++supported;
      // The keys that cuda.flash1 holds at once may be fewer, but not fewer than the longest
      // sequence has.
      if (chosen.kernel.starts_with("cuda.flash1") && chosen.block_k >= attention.mask.lengths.max_k &&
          attention.mask.lengths.max_k > 0)
        return;
      text = summation(chosen);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::unsupported) << error.what();
      text = "refused";  // for its type, or because the kernel has no such direction: for every size
    }
    if (first.empty()) first = text;
    EXPECT_EQ(text, first) << kernel << " batch " << batch << " heads " << heads << " q_length "
                           << sizes.q_length << " k_length " << sizes.k_length;
  }
};

// A row does not depend on what else is in the call: neither batch nor heads choose a kernel, an
// instance or tiles.
int check_plain_calls(const Neighbours& description) {
  int supported = 0;
  for (const Sizes& sizes : kSizes) {
    Neighbours calls = description;
    for (const auto& [batch, heads] : {std::pair{1, 1}, {64, 1}, {1, 64}, {64, 64}})
      calls.add(sizes, batch, heads);
    supported += calls.supported;
  }
  return supported;
}

// In a packed call neither does the longest sequence. The exception is cuBLAS (attention.h).
int check_packed_calls(const Neighbours& description) {
  int supported = 0;
  for (const std::int64_t dim : {33, 64, 128, 256}) {
    Neighbours calls = description;
    calls.attention.mask.lengths.count = 1;
    for (const Sizes& sizes : kSizes) {
      if (contains(calls.kernel, "standard")) calls.first.clear();
      for (const std::int64_t count : {1, 64}) calls.add({sizes.q_length, sizes.k_length, dim}, count, count);
    }
    supported += calls.supported;
  }
  return supported;
}

TEST(CudaSelection, NeitherBatchNorHeadsDecide) {
  std::map<std::string, int> plain, packed;
  for (const int capability : cuda::AssumedGpu::known()) {
    const cuda::AssumedGpu gpu(capability);
    for (const std::string& kernel : gpu_kernels()) {
      SCOPED_TRACE(capability);
      for (const Mask& mask : {Mask{}, Mask{.right = 0}, Mask{.left = 100, .right = 0}}) {
        for (const DType dtype : {DType::fp32, capability < 80 ? DType::fp16 : DType::bf16}) {
          for (const bool deterministic : {false, true}) {
            for (const Direction direction : {Direction::forward, Direction::backward}) {
              if (deterministic && direction == Direction::forward) continue;
              const Neighbours calls{
                  kernel, dtype, {.mask = mask, .deterministic = deterministic}, direction};
              plain[kernel] += check_plain_calls(calls);
              packed[kernel] += check_packed_calls(calls);
            }
          }
        }
      }
    }
  }
  EXPECT_GT(plain.size(), 6U);
  for (const auto& [kernel, supported] : plain) {
    if (contains(kernel, "standard")) continue;  // a build may have no cuBLAS
    EXPECT_GT(supported, 0) << kernel;
    EXPECT_GT(packed[kernel], 0) << kernel;
  }
}

// A build for GPUs up to 8.x alone (TESSERA_CUDA_NEWEST=80-real) on one of 9.0: the PTX of the
// kernels for Turing runs there, and a call that no kernel runs is refused with the reason.
TEST(CudaSelection, ABuildWithoutPtxForTheGpuLeavesThePtxForTuring) {
  const cuda::Architectures architectures = {"75-real;80-real;75-virtual", "75-real;75-virtual", "80-real",
                                             "90a-real"};
  const cuda::AssumedGpu gpu(90, architectures);
  constexpr const char* kNoCode = "cuda:0 has compute capability 9.0; this build has code for 80-real";
  auto text_of = [](const Shapes& shapes, const Attention& attention, Direction direction) -> std::string {
    try {
      return plan(attention, shapes, Device::cuda(0), direction).kernel;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::unsupported);
      return error.what();
    }
  };
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    for (const DType dtype : {DType::fp32, DType::fp16}) {
      // softcap: cuda.hopper, whose forward has its code, does not support it.
      const Shapes shapes{.q_length = 300, .k_length = 300, .qk_dim = 64, .dtype = dtype};
      EXPECT_EQ(text_of(shapes, {.softcap = 5}, direction), "cuda.flash2_sm75")
          << name(dtype) << " " << name(direction);
    }
    const Shapes shapes{.q_length = 300, .k_length = 300, .qk_dim = 64, .dtype = DType::bf16};
    const std::string text = text_of(shapes, {.softcap = 5, .algorithm = Algorithm::flash2}, direction);
    EXPECT_TRUE(contains(text, std::string("cuda.flash2: ") + kNoCode)) << text;
  }
  const Shapes shapes{.q_length = 300, .k_length = 300, .qk_dim = 64, .dtype = DType::fp16};
  EXPECT_EQ(text_of(shapes, {}, Direction::forward), "cuda.hopper");
  const Plan backward = plan({}, shapes, Device::cuda(0), Direction::backward);
  EXPECT_EQ(backward.kernel, "cuda.flash2_sm75");
  for (const Rejection& rejection : backward.rejected) {
    if (rejection.kernel == "cuda.hopper") {
      EXPECT_EQ(rejection.reason, kNoCode);
    }
  }
}

TEST(CudaSelection, UnknownCapabilitiesAreRefused) {
  EXPECT_TRUE(contains(refusal([] { cuda::AssumedGpu gpu(61); }, ErrorCode::invalid_argument),
                       "capability is 61; it must be one of 75, "));
}

// ---- machines without a GPU ---------------------------------------------------------------------

class WithoutGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() > 0) GTEST_SKIP() << "this machine has a GPU";
  }
};

TEST_F(WithoutGpu, TheReasonIsGiven) {
  const std::string reason = cuda::unusable(0);
  EXPECT_TRUE(contains(reason, "cuda:0 cannot be used: ")) << reason;
  const std::string text = refusal([] { (void)plan({}, Shapes{}, Device::cuda(0)); }, ErrorCode::unsupported);
  EXPECT_TRUE(text.starts_with(reason + "\n  ")) << text;
}

TEST_F(WithoutGpu, MasksCannotBePrepared) {
  const BlockMask mask = BlockMask::local({.q_length = 64, .k_length = 64, .block_q = 16, .block_k = 16}, 1);
  EXPECT_TRUE(
      contains(refusal([&] { mask.prepare(Device::cuda(0)); }, ErrorCode::unsupported), cuda::unusable(0)));
  mask.prepare(Device::cpu());
  BlockMask().prepare(Device::cuda(0));  // nothing to copy
}

TEST(BlockMaskPrepare, RefusesWhatIsNoDevice) {
  const BlockMask mask = BlockMask::local({.q_length = 64, .k_length = 64, .block_q = 16, .block_k = 16}, 1);
  EXPECT_TRUE(contains(refusal([&] { mask.prepare(Device::cuda(-1)); }, ErrorCode::invalid_argument),
                       "device.index is -1"));
  EXPECT_TRUE(
      contains(refusal([&] { mask.prepare({static_cast<DeviceType>(9), 0}); }, ErrorCode::invalid_argument),
               "device.type is 9"));
}

}  // namespace
}  // namespace tessera
