#include "cuda/mma/backward/launch.h"

#include <algorithm>

#include "core/base/arena.h"
#include "core/base/text.h"
#include "core/task_order.h"
#include "core/visibility.h"
#include "cuda/common/backward_order.h"
#include "cuda/common/host/launch.h"
#include "cuda/common/host/limits.h"
#include "cuda/common/step_cursor.h"

namespace tessera::cuda::mma::backward {
namespace {

Variant variant_for(const core::Problem& p) {
  if (p.dropout && p.dropout_threshold > 0) return Variant::dropout;
  auto in_chunks = [&](const core::View& view, std::int64_t columns) {
    return aligned(view, columns, p.dtype);
  };
  const bool inputs = in_chunks(p.q, p.qk_dim) && in_chunks(p.k, p.qk_dim) && in_chunks(p.v, p.v_dim) &&
                      in_chunks(p.grad_out, p.v_dim);
  const bool outputs = (!p.has_grad_q || in_chunks(p.grad_q, p.qk_dim)) &&
                       (!p.has_grad_k || in_chunks(p.grad_k, p.qk_dim)) &&
                       (!p.has_grad_v || in_chunks(p.grad_v, p.v_dim));
  const bool plain = p.softcap == 0 && !p.has_bias && p.alibi_slopes == nullptr && !p.dropout;
  return plain && inputs && outputs ? Variant::plain : Variant::featured;
}

// The first of a table that supports the variant and fits. An instance with more options also runs
// problems with fewer.
const Instance* first_fitting(std::span<const Instance> table, const DeviceLimits& device, Variant variant,
                              bool in_turns) {
  for (const Instance& kernel : table) {
    if (kernel.variant >= variant && (kernel.in_turns || !in_turns) &&
        kernel.shared_memory <= device.shared_memory)
      return &kernel;
  }
  return nullptr;
}

// Whether the bias can come through shared memory: whole 16-byte chunks of the tensors' own type,
// and room for its tile with as many thread blocks per multiprocessor as without.
bool bias_fits(const core::Problem& p, const Instance& kernel, const DeviceLimits& device) {
  const int bytes = kernel.shared_memory + kernel.bias_bytes;
  return p.has_bias && kernel.bias_bytes > 0 && p.bias_dtype == p.dtype &&
         aligned(p.bias, p.k_length, p.dtype) && (!p.blocks || p.blocks.block_k % 8 == 0) &&
         bytes <= device.shared_memory &&
         kernel.thread_blocks * (bytes + kReservedPerBlock) <= device.shared_memory_multiprocessor;
}

int shared_memory_of(const KernelChoice& choice, const Instance& kernel) {
  return kernel.shared_memory + (choice.bias_staged && &kernel == choice.keys ? kernel.bias_bytes : 0);
}

core::Tiling bias_rows(const core::Problem& p, const Instance& kernel) {
  const bool all_rows = p.bias_rows == 1;
  return {all_rows ? 1 : p.bias_rows, kernel.block_q, p.blocks && !all_rows ? p.blocks.block_q : 0};
}

// The thread blocks of each kernel.
struct Grids {
  std::int64_t keys = 0, queries = 0, bias = 0, blocks = 0;

  [[nodiscard]] std::int64_t largest() const { return std::max({keys, queries, bias, blocks}); }
};

Grids grids_of(const core::Problem& p, const KernelChoice& choice) {
  Grids grids;
  grids.blocks = product(p.batch, p.q_heads, (p.q_length + kQueryBlock - 1) / kQueryBlock);
  if (choice.keys != nullptr)
    grids.keys = product(p.batch, p.kv_heads, backward_tiling(p, true, choice.keys->block_k).count());
  if (choice.queries != nullptr)
    grids.queries = product(p.batch, p.q_heads, backward_tiling(p, false, choice.queries->block_q).count());
  if (choice.bias != nullptr) {
    grids.bias = product(p.bias_batch, p.bias_heads, bias_rows(p, *choice.bias).count(),
                         backward_tiling(p, true, choice.bias->block_k).count());
  }
  return grids;
}

// The order in which the thread blocks of each kernel take their tasks.
struct Orders {
  core::BasicTaskOrder<std::uint32_t> blocks{}, keys{}, queries{};
};

// How one problem is run.
struct Decision {
  KernelChoice kernels{};
  Grids grids{};
  Orders orders{};
  BackwardEnds ends{};
};

// Workspace: counted without memory, cut with it.
struct Workspace {
  float* statistics = nullptr;
  float* sums = nullptr;            // of dQ
  std::uint32_t* turns = nullptr;   // whose turn it is
  std::uint32_t* ticket = nullptr;  // the next tile, which follows the turns
  std::size_t bytes = 0;

  Workspace(const core::Problem& p, const KernelChoice& kernels, std::byte* memory) {
    const std::int64_t blocks = p.q_heads * QueryBlocks::count(p);
    core::Arena<sizeof(float)> arena(memory);
    statistics = arena.take<float>(blocks, 2 * kQueryBlock);
    if (kernels.head_dim != 0) sums = arena.take<float>(blocks, kQueryBlock, kernels.head_dim);
    if (kernels.in_turns) {
      turns = arena.take<std::uint32_t>(blocks, kTurnsPerBlock);
      ticket = arena.take<std::uint32_t>(1);
    }
    bytes = arena.used();
  }
};

// The order for tiles that take turns. Each waits for those of its head before it, so they ascend,
// and only a few of a head run at the same time: four, or two where the tiles differ in length.
// Then each is shorter than the one that it waits for and catches up whenever it starts.
core::BasicTaskOrder<std::uint32_t> in_turns(core::BasicTaskOrder<std::uint32_t> order,
                                             const Instance& kernel, const DeviceLimits& device) {
  const auto resident =
      static_cast<std::uint32_t>(device.multiprocessors * std::max(1, 256 / kernel.threads));
  order.together = std::max(order.together, resident / (order.order == core::TileOrder::plain ? 4 : 2));
  order.order = core::TileOrder::ascending;
  return order;
}

Orders orders_of(const core::Problem& p, const KernelChoice& kernels, const DeviceLimits& device) {
  Orders orders{.blocks = query_block_order(p)};
  if (kernels.keys != nullptr) {
    orders.keys = backward_order(p, true, kernels.keys->block_k, device);
    if (kernels.in_turns) orders.keys = in_turns(orders.keys, *kernels.keys, device);
  }
  if (kernels.queries != nullptr) orders.queries = backward_order(p, false, kernels.queries->block_q, device);
  return orders;
}

std::optional<core::Choice> choose(const Family& family, int capability, Code code, const core::Problem& p,
                                   core::Reason reason) {
  if (gpu_limit(p, {.least = capability}, code, reason) || size_limits(p, kQueryBlock, reason)) {
    return std::nullopt;
  }
  const DeviceLimits& device = device_limits(p.device.index, code);
  const std::optional<KernelChoice> kernels = choose_kernels(family, device, p, reason);
  if (!kernels) return std::nullopt;
  core::Choice choice{.workspace_bytes = Workspace(p, *kernels, nullptr).bytes,
                      .decision = Decision{.kernels = *kernels,
                                           .grids = grids_of(p, *kernels),
                                           .orders = orders_of(p, *kernels, device),
                                           .ends = family.ends}};
  // A plan shows the first of the kernels.
  for (const Instance* kernel : {kernels->keys, kernels->queries, kernels->bias}) {
    if (kernel == nullptr) continue;
    const int bytes = shared_memory_of(*kernels, *kernel);
    choice.block_q = kernel->block_q;
    choice.block_k = kernel->block_k;
    choice.shared_memory_bytes = static_cast<std::size_t>(bytes);
    choice.traffic_cache_bytes = bytes;
    break;
  }
  return choice;
}

}  // namespace

std::optional<KernelChoice> choose_kernels(const Family& family, const DeviceLimits& device,
                                           const core::Problem& p, core::Reason reason) {
  KernelChoice choice;
  const Variant variant = variant_for(p);
  const std::int64_t head_dim = std::max(p.qk_dim, p.v_dim);
  const Table& kernels = family.tables[head_dim <= 64 ? 0 : head_dim <= 128 ? 1 : 2];
  bool complete = true;
  auto choose = [&](std::span<const Instance> table, Variant least, bool in_turns = false) {
    const Instance* kernel = first_fitting(table, device, std::max(variant, least), in_turns);
    complete = complete && kernel != nullptr;
    return kernel;
  };
  // dQ comes with dK and dV, in deterministic mode in turns. With a block mask a tile does not know
  // how many others come before it; then dQ has a kernel of its own, which needs no sums.
  const bool keys = p.has_grad_k || p.has_grad_v,
             together = keys && p.has_grad_q && !(p.deterministic && p.blocks);
  if (keys) choice.keys = choose(kernels.keys, Variant::plain, together && p.deterministic);
  if (choice.keys != nullptr) choice.bias_staged = bias_fits(p, *choice.keys, device);
  if (together && choice.keys != nullptr) {
    choice.head_dim = choice.keys->head_dim;
    choice.in_turns = p.deterministic && p.q_length > 0;  // without queries no kernel clears the counters
  }
  if (p.has_grad_q && !together) choice.queries = choose(kernels.queries, Variant::plain);
  if (p.has_grad_bias) choice.bias = choose(family.bias, Variant::featured);
  if (!complete) {
    return reason.decline("has no instance for head_dim ", head_dim, " that fits into ", device.shared_memory,
                          " bytes of shared memory");
  }
  if (grid_limit(grids_of(p, choice).largest(), reason)) return std::nullopt;
  return choice;
}

std::optional<core::Choice> choose_from80(const core::Problem& p, int /*workers*/, core::Reason reason) {
  return choose(p.dtype == DType::bf16 ? family_bf16() : family_fp16(), 80, Code::from80, p, reason);
}

std::optional<core::Choice> choose_sm75(const core::Problem& p, int /*workers*/, core::Reason reason) {
  return choose(family_sm75(), 75, Code::sm75, p, reason);
}

std::string details(const core::Problem& /*p*/, const core::Choice& choice) {
  const KernelChoice kernels = choice.decision.as<Decision>().kernels;
  std::string text;
  auto add = [&](const char* what, const Instance* kernel) {
    if (kernel == nullptr) return;
    text += core::concat(text.empty() ? "" : "\n", what, ": ", kernel->block_q, " queries x ",
                         kernel->block_k, " keys, ", kernel->threads, " threads, ",
                         shared_memory_of(kernels, *kernel), " bytes of shared memory");
  };
  add(kernels.head_dim == 0 ? "dK, dV"
      : kernels.in_turns    ? "dK, dV, and dQ by fp32 reductions in turns"
                            : "dK, dV, and dQ by fp32 reductions",
      kernels.keys);
  add("dQ without reductions", kernels.queries);
  add("gradient of the bias", kernels.bias);
  return text;
}

void run(const core::Problem& p, const core::Choice& choice, const core::Resources& resources) {
  const auto d = choice.decision.as<Decision>();
  const KernelChoice& kernels = d.kernels;
  const Workspace workspace(p, kernels, resources.workspace);
  const DeviceScope scope(p.device.index);
  BackwardCall a{.problem = p,
                 .blocks = {QueryBlocks::count(p)},
                 .features = ScoreFeatures::of(p),
                 .statistics = workspace.statistics,
                 .grad_q_sums = workspace.sums,
                 .head_dim = kernels.head_dim,
                 .turns = workspace.turns,
                 .ticket = workspace.ticket};
  auto enqueue = [&](const Instance& kernel, const char* name, std::int64_t grid) {
    launch(kernel.kernel, name, grid, kernel.threads,
           static_cast<std::size_t>(shared_memory_of(kernels, kernel)), resources.stream, a);
  };
  a.order = d.orders.blocks;
  launch(d.ends.prepare, "flash2 backward, prepare", d.grids.blocks, kPrepareThreads, 0, resources.stream, a);
  if (kernels.keys != nullptr) {
    a.order = d.orders.keys;
    a.bias_staged = kernels.bias_staged;
    enqueue(*kernels.keys, "flash2 backward, keys", d.grids.keys);
  }
  if (kernels.head_dim != 0) {
    a.order = d.orders.blocks;
    launch(d.ends.finish, "flash2 backward, finish", d.grids.blocks, kFinishThreads, 0, resources.stream, a);
  }
  if (kernels.queries != nullptr) {
    a.order = d.orders.queries;
    enqueue(*kernels.queries, "flash2 backward, queries", d.grids.queries);
  }
  if (kernels.bias != nullptr) enqueue(*kernels.bias, "flash2 backward, bias", d.grids.bias);
}

}  // namespace tessera::cuda::mma::backward
