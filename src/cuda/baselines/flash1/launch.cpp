// cuda.flash1 on the host: which instance serves a problem, how many keys stay in shared memory, and the launches. The
// algorithm is in flash1/forward.cuh and flash1/backward.cuh.
#include "cuda/baselines/flash1/launch.h"

#include <algorithm>
#include <limits>

#include "core/base/text.h"
#include "core/visibility.h"
#include "cuda/baselines/flash1/config.h"
#include "cuda/baselines/standard/passes.h"
#include "cuda/common/host/arena.h"
#include "cuda/common/step_cursor.h"

namespace tessera::cuda {
namespace {

using flash1::Engine;
using flash1::Instance;
using flash1::Instances;

enum class Path { newest, sm75 };

constexpr int kMostKeys = 512;  // of a block: beyond, the traffic of O no longer matters

template <Engine E>
const Instances& instances_for(std::int64_t head_dim) {
  if (head_dim <= 64) return flash1::instances<E, 64>();
  return head_dim <= 128 ? flash1::instances<E, 128>() : flash1::instances<E, 256>();
}

int capability_of(const DeviceLimits& limits, Path path) {
  return path == Path::sm75 ? 75 : limits.capability;
}

// The limits of the GPU for the code that a problem's kernels are in.
const DeviceLimits& device_of(const core::Problem& p, Path path) {
  const bool turing = capability_of(device_limits(p.device.index), path) < 80;
  const Code code = p.dtype == DType::fp32 ? Code::any : turing ? Code::sm75 : Code::from80;
  return device_limits(p.device.index, code);
}

// Whether rows of a tensor can be copied 16 bytes at a time.
bool aligned(const core::View& view, std::int64_t columns, DType dtype) {
  const auto size = static_cast<std::int64_t>(size_of(dtype)), chunk = 16 / size;
  return reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 && columns % chunk == 0 &&
         view.row_stride % chunk == 0 && view.head_stride % chunk == 0 && view.batch_stride % chunk == 0;
}

bool plain(const core::Problem& p) {
  const bool options = p.has_bias || p.softcap != 0 || p.alibi_slopes != nullptr || p.dropout;
  const bool in_chunks = aligned(p.q, p.qk_dim, p.dtype) && aligned(p.k, p.qk_dim, p.dtype) &&
                         aligned(p.v, p.v_dim, p.dtype) &&
                         (p.direction == Direction::forward || aligned(p.grad_out, p.v_dim, p.dtype));
  return !options && in_chunks;
}

const Instances& instances_of(const core::Problem& p, const DeviceLimits& limits, Path path) {
  const std::int64_t head_dim = std::max(p.qk_dim, p.v_dim);
  if (p.dtype == DType::fp32) return instances_for<Engine::fp32>(head_dim);
  if (p.dtype == DType::bf16) return instances_for<Engine::sm80_bf16>(head_dim);
  return capability_of(limits, path) >= 80 ? instances_for<Engine::sm80_fp16>(head_dim)
                                           : instances_for<Engine::sm75_fp16>(head_dim);
}

const Instance& instance_of(const core::Problem& p, const DeviceLimits& limits, Path path) {
  const Instances& instances = instances_of(p, limits, path);
  const int variant = static_cast<int>(plain(p) ? flash1::Variant::plain : flash1::Variant::featured);
  return p.direction == Direction::forward ? instances.forward[variant] : instances.backward[variant];
}

// The paper's rule: as many keys as the fast memory holds beside the tile of queries.
int block_keys(const core::Problem& p, const DeviceLimits& limits, const Instance& instance) {
  if (p.direction == Direction::backward) return instance.step_k;
  const int fitting = (limits.shared_memory - instance.fixed_bytes) / instance.bytes_per_key;
  const std::int64_t wanted = std::min<std::int64_t>(std::max<std::int64_t>(p.k_length, 1), kMostKeys);
  const int rounded = static_cast<int>((wanted + instance.step_k - 1) / instance.step_k) * instance.step_k;
  return std::min(rounded, fitting / instance.step_k * instance.step_k);
}

int shared_bytes(const core::Problem& p, const Instance& instance, int block_k) {
  return instance.fixed_bytes + (p.direction == Direction::forward ? block_k * instance.bytes_per_key : 0);
}

// The sums and statistics in global memory.
flash1::Arguments arguments(Arena& arena, const core::Problem& p, const Instance& instance) {
  const std::int64_t rows = p.batch * p.q_heads * p.q_length;
  flash1::Arguments a;
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

bool limits_on(const DeviceLimits& limits, const core::Problem& p, Path path, core::Reason reason) {
  if (!limits.failure.empty()) return reason.give(limits.failure);
  if (p.direction == Direction::backward) {  // delta is cuda.standard's
    const DeviceLimits& any = device_limits(p.device.index, Code::any);
    if (!any.failure.empty()) return reason.give(any.failure);
  }
  const int capability = capability_of(limits, path);
  if (limits.capability < 75 || (p.dtype == DType::bf16 && capability < 80)) {
    return reason.give(name(p.dtype), " needs compute capability ", p.dtype == DType::bf16 ? "8.0" : "7.5",
                       "; this is ", capability / 10, ".", capability % 10);
  }
  if (std::max(p.q_length, p.k_length) >= core::kLongestWalk) return size_limits(p, 1, reason);
  if (product(p.batch, p.q_heads, std::max<std::int64_t>(p.q_length, 1)) > kMostBlocks) {
    return reason.give("batch ", p.batch, " x ", p.q_heads, " heads of ", p.q_length,
                       " rows are more than 2^31 - 1 rows");
  }
  if (p.has_grad_bias &&
      grid_limit(product(p.bias_batch, p.bias_heads, p.bias_rows / 32 + 1, p.k_length + 1), reason))
    return true;
  const Instance& instance = instance_of(p, limits, path);
  if (instance.head_dim == 0) {
    return reason.give(
        "head_dim ", std::max(p.qk_dim, p.v_dim),
        " is beyond 128, the most for backward in the shared memory of compute capability 7.5");
  }
  const int needed = shared_bytes(p, instance, instance.step_k);
  if (needed > limits.shared_memory) {
    return reason.give("needs ", needed, " bytes of shared memory for head_dim ", std::max(p.qk_dim, p.v_dim),
                       "; this GPU has ", limits.shared_memory);
  }
  return false;
}

registry::Configuration configuration(const core::Problem& p, Path path) {
  const DeviceLimits& limits = device_of(p, path);
  const Instance& instance = instance_of(p, limits, path);
  const int block_k = block_keys(p, limits, instance), bytes = shared_bytes(p, instance, block_k);
  Arena arena;
  arguments(arena, p, instance);
  return {.block_q = instance.block_q,
          .block_k = block_k,
          .shared_memory_bytes = static_cast<std::size_t>(bytes),
          .workspace_bytes = arena.used(),
          .workers = 1,
          .fast_memory_bytes = static_cast<double>(bytes)};
}

std::string details(const core::Problem& p, Path path) {
  const int capability = capability_of(device_of(p, path), path);
  const char* products = p.dtype == DType::fp32 ? "FFMA" : capability < 80 ? "mma.m16n8k8" : "mma.m16n8k16";
  const bool forward = p.direction == Direction::forward;
  return core::concat(products, ", 1 thread block per ", forward ? "head" : "key/value head", ", ",
                      forward ? "O" : "dQ", " in fp32 in the workspace", plain(p) ? "" : ", featured");
}

void run(const core::Problem& p, const registry::Configuration& configuration,
         const registry::Resources& resources, Path path) {
  const DeviceScope scope(p.device.index);
  const Instance& instance = instance_of(p, device_of(p, path), path);
  Arena arena(resources.workspace);
  flash1::Arguments a = arguments(arena, p, instance);
  a.block_k = static_cast<int>(configuration.block_k);
  const bool forward = p.direction == Direction::forward;
  if (!forward) standard::row_delta(p, {.delta = a.delta}, resources.stream);
  if (p.has_grad_bias) {
    const Instance& bias = instances_of(p, device_of(p, path), path).bias;
    const core::Tiling blocks{p.k_length, bias.block_q, p.blocks ? p.blocks.block_k : 0};
    const std::int64_t tiles = p.bias_rows == 1 ? 1 : core::Tiling{p.q_length, bias.block_q}.count();
    launch(bias.kernel, "cuda.flash1: bias gradient", p.bias_batch * p.bias_heads * tiles * blocks.count(),
           bias.threads, static_cast<std::size_t>(bias.fixed_bytes), resources.stream, a);
    if (!p.has_grad_q && !p.has_grad_k && !p.has_grad_v) return;
  }
  launch(instance.kernel, forward ? "cuda.flash1: forward" : "cuda.flash1: backward",
         p.batch * (forward ? p.q_heads : p.kv_heads), instance.threads, configuration.shared_memory_bytes,
         resources.stream, a);
}

}  // namespace

bool flash1_limits(const core::Problem& p, core::Reason reason) {
  return limits_on(device_of(p, Path::newest), p, Path::newest, reason);
}
registry::Configuration flash1_configuration(const core::Problem& p, int) {
  return configuration(p, Path::newest);
}
std::string flash1_details(const core::Problem& p, const registry::Configuration&) {
  return details(p, Path::newest);
}
void flash1_run(const core::Problem& p, const registry::Configuration& configuration,
                const registry::Resources& resources) {
  run(p, configuration, resources, Path::newest);
}

bool flash1_sm75_limits(const core::Problem& p, core::Reason reason) {
  return limits_on(device_of(p, Path::sm75), p, Path::sm75, reason);
}
registry::Configuration flash1_sm75_configuration(const core::Problem& p, int) {
  return configuration(p, Path::sm75);
}
std::string flash1_sm75_details(const core::Problem& p, const registry::Configuration&) {
  return details(p, Path::sm75);
}
void flash1_sm75_run(const core::Problem& p, const registry::Configuration& configuration,
                     const registry::Resources& resources) {
  run(p, configuration, resources, Path::sm75);
}

}  // namespace tessera::cuda
