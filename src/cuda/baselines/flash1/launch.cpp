// cuda.flash1 on the host: which instance runs a problem, how many keys stay in shared memory, and
// the launches. The algorithm is in forward_kernel.cuh and backward_kernel.cuh.
#include "cuda/baselines/flash1/launch.h"

#include <algorithm>

#include "core/base/text.h"
#include "core/visibility.h"
#include "cuda/baselines/delta.h"
#include "cuda/baselines/flash1/config.h"
#include "cuda/common/host/arena.h"
#include "cuda/common/host/launch.h"
#include "cuda/common/host/limits.h"

namespace tessera::cuda::flash1 {
namespace {

enum class Path { newest, sm75 };

constexpr int kMostKeys = 512;  // of a block: with more, the traffic of O no longer matters

template <Engine E>
const Instances& instances_for(std::int64_t head_dim) {
  return engine_instances<E>()[head_dim <= 64 ? 0 : head_dim <= 128 ? 1 : 2];
}

// The compute capability whose instances run: that of the GPU, or Turing's.
int capability_of(const core::Problem& p, Path path) {
  return path == Path::sm75 ? 75 : device_limits(p.device.index).capability;
}

// The kind of code that a problem's kernels are in.
Code code_of(const core::Problem& p, int capability) {
  return p.dtype == DType::fp32 ? Code::any : capability < 80 ? Code::sm75 : Code::from80;
}

bool plain(const core::Problem& p) {
  const bool options = p.has_bias || p.softcap != 0 || p.alibi_slopes != nullptr || p.dropout;
  const bool in_chunks = aligned(p.q, p.qk_dim, p.dtype) && aligned(p.k, p.qk_dim, p.dtype) &&
                         aligned(p.v, p.v_dim, p.dtype) &&
                         (p.direction == Direction::forward || aligned(p.grad_out, p.v_dim, p.dtype));
  return !options && in_chunks;
}

const Instances& instances_of(const core::Problem& p, int capability) {
  const std::int64_t head_dim = std::max(p.qk_dim, p.v_dim);
  if (p.dtype == DType::fp32) return instances_for<Engine::fp32>(head_dim);
  if (p.dtype == DType::bf16) return instances_for<Engine::sm80_bf16>(head_dim);
  return capability >= 80 ? instances_for<Engine::sm80_fp16>(head_dim)
                          : instances_for<Engine::sm75_fp16>(head_dim);
}

// The paper's rule: as many keys as the fast memory holds beside the tile of queries.
int block_keys(const core::Problem& p, int shared_memory, const Instance& instance) {
  if (p.direction == Direction::backward) return instance.step_k;
  const int fitting = (shared_memory - instance.fixed_bytes) / instance.bytes_per_key;
  const std::int64_t wanted = std::min<std::int64_t>(std::max<std::int64_t>(p.k_length, 1), kMostKeys);
  const int rounded = static_cast<int>((wanted + instance.step_k - 1) / instance.step_k) * instance.step_k;
  return std::min(rounded, fitting / instance.step_k * instance.step_k);
}

int shared_bytes(const core::Problem& p, const Instance& instance, int block_k) {
  return instance.fixed_bytes + (p.direction == Direction::forward ? block_k * instance.bytes_per_key : 0);
}

// The arguments of a kernel, with sums and statistics in the workspace.
Arguments arguments(Arena& arena, const core::Problem& p, const Instance& instance) {
  const std::int64_t rows = p.batch * p.q_heads * p.q_length;
  Arguments a;
  a.problem = p;
  a.sums = arena.take<float>(rows, instance.head_dim);
  if (p.direction == Direction::forward) {
    a.maxima = arena.take<float>(rows, instance.splits);
    a.normalisers = arena.take<float>(rows, instance.splits);
  } else {
    a.delta = arena.take<float>(rows);
  }
  return a;
}

// How one problem is run.
struct Decision {
  const Instance* instance = nullptr;
  const Instance* bias = nullptr;  // for the gradient of the bias; null: not requested
  std::int64_t bias_grid = 0;
  int capability = 0;
  bool plain = true;
};

std::optional<core::Choice> choose_for(const core::Problem& p, Path path, core::Reason reason) {
  const int capability = capability_of(p, path);
  const Code code = code_of(p, capability);
  if (gpu_limit(p, {.least = 75}, code, reason)) return std::nullopt;
  if (p.direction == Direction::backward && gpu_limit(p, {.least = 75}, Code::any, reason)) {
    return std::nullopt;  // delta's code
  }
  if (p.dtype == DType::bf16 && capability < 80) {
    return reason.decline("requires compute capability 8.0 for bf16; cuda:", p.device.index, " has ",
                          Capability{capability});
  }
  const std::int64_t bias_blocks =
      p.has_grad_bias ? product(p.bias_batch, p.bias_heads, p.bias_rows / 32 + 1, p.k_length + 1) : 0;
  if (length_limit(p, reason) || row_limit(p, p.q_length, reason) || grid_limit(bias_blocks, reason)) {
    return std::nullopt;
  }
  const Instances& instances = instances_of(p, capability);
  Decision d{.capability = capability, .plain = plain(p)};
  const auto variant = static_cast<std::size_t>(d.plain ? Variant::plain : Variant::featured);
  d.instance = p.direction == Direction::forward ? &instances.forward[variant] : &instances.backward[variant];
  if (d.instance->head_dim == 0) {
    return reason.decline("supports backward up to head_dim 128 on compute capability 7.5; this call has ",
                          std::max(p.qk_dim, p.v_dim));
  }
  if (shared_memory_limit(p, code, shared_bytes(p, *d.instance, d.instance->step_k), reason)) {
    return std::nullopt;
  }
  if (p.has_grad_bias) {
    d.bias = &instances.bias;
    const core::Tiling blocks{p.k_length, d.bias->block_q, p.blocks ? p.blocks.block_k : 0};
    const std::int64_t tiles = p.bias_rows == 1 ? 1 : core::Tiling{p.q_length, d.bias->block_q}.count();
    d.bias_grid = p.bias_batch * p.bias_heads * tiles * blocks.count();
  }
  const int most_bytes = device_limits(p.device.index, code).shared_memory;
  const int block_k = block_keys(p, most_bytes, *d.instance), bytes = shared_bytes(p, *d.instance, block_k);
  Arena arena;
  arguments(arena, p, *d.instance);
  return core::Choice{.block_q = d.instance->block_q,
                      .block_k = block_k,
                      .shared_memory_bytes = static_cast<std::size_t>(bytes),
                      .workspace_bytes = arena.used(),
                      .traffic_cache_bytes = static_cast<double>(bytes),
                      .decision = d};
}

}  // namespace

std::optional<core::Choice> choose(const core::Problem& p, int /*workers*/, core::Reason reason) {
  return choose_for(p, Path::newest, reason);
}

std::optional<core::Choice> choose_sm75(const core::Problem& p, int /*workers*/, core::Reason reason) {
  return choose_for(p, Path::sm75, reason);
}

std::string details(const core::Problem& p, const core::Choice& choice) {
  const auto d = choice.decision.as<Decision>();
  const char* products = p.dtype == DType::fp32 ? "FFMA" : d.capability < 80 ? "mma.m16n8k8" : "mma.m16n8k16";
  const bool forward = p.direction == Direction::forward;
  return core::concat(products, ", 1 thread block per ", forward ? "head" : "key/value head", ", ",
                      forward ? "O" : "dQ", " in fp32 in the workspace", d.plain ? "" : ", featured");
}

void run(const core::Problem& p, const core::Choice& choice, const core::Resources& resources) {
  const auto d = choice.decision.as<Decision>();
  const DeviceScope scope(p.device.index);
  Arena arena(resources.workspace);
  Arguments a = arguments(arena, p, *d.instance);
  a.block_k = static_cast<int>(choice.block_k);
  const bool forward = p.direction == Direction::forward;
  if (!forward) row_delta(p, a.delta, resources.stream);
  if (d.bias != nullptr) {
    launch(d.bias->kernel, "cuda.flash1: bias gradient", d.bias_grid, d.bias->threads,
           static_cast<std::size_t>(d.bias->fixed_bytes), resources.stream, a);
    if (!p.has_grad_q && !p.has_grad_k && !p.has_grad_v) return;
  }
  launch(d.instance->kernel, forward ? "cuda.flash1: forward" : "cuda.flash1: backward",
         p.batch * (forward ? p.q_heads : p.kv_heads), d.instance->threads, choice.shared_memory_bytes,
         resources.stream, a);
}

}  // namespace tessera::cuda::flash1
