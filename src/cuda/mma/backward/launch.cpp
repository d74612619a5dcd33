#include "cuda/mma/backward/launch.h"

#include <algorithm>

#include "core/base/text.h"
#include "core/task_order.h"
#include "core/visibility.h"
#include "cuda/common/step_cursor.h"

namespace tessera::cuda {
namespace {

using flash2::BackwardArguments;
using flash2::BackwardFamily;
using flash2::BackwardKernel;
using flash2::kQueryBlock;
using flash2::QueryBlocks;

// Whether every row begins on a 16-byte boundary and is whole 16-byte chunks.
bool aligned(const core::View& view, std::int64_t columns) {
  constexpr std::int64_t kNumbers = 8;
  return reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 && view.batch_stride % kNumbers == 0 &&
         view.head_stride % kNumbers == 0 && view.row_stride % kNumbers == 0 && columns % kNumbers == 0;
}

Variant variant_for(const core::Problem& p) {
  if (p.dropout && p.dropout_threshold > 0) return Variant::dropout;
  const bool inputs = aligned(p.q, p.qk_dim) && aligned(p.k, p.qk_dim) && aligned(p.v, p.v_dim) &&
                      aligned(p.grad_out, p.v_dim);
  const bool outputs = (!p.has_grad_q || aligned(p.grad_q, p.qk_dim)) &&
                       (!p.has_grad_k || aligned(p.grad_k, p.qk_dim)) &&
                       (!p.has_grad_v || aligned(p.grad_v, p.v_dim));
  const bool plain = p.softcap == 0 && !p.has_bias && p.alibi_slopes == nullptr && !p.dropout;
  return plain && inputs && outputs ? Variant::plain : Variant::featured;
}

// The first of a table that serves. An instance with more options serves fewer.
const BackwardKernel* first_fitting(std::span<const BackwardKernel> table, const DeviceLimits& device,
                                    Variant variant, bool in_turns) {
  for (const BackwardKernel& kernel : table) {
    if (kernel.variant >= variant && (kernel.in_turns || !in_turns) &&
        kernel.shared_memory <= device.shared_memory)
      return &kernel;
  }
  return nullptr;
}

// Whether the bias can come through shared memory: whole 16-byte chunks of the tensors' own type, and room for its tile with
// as many thread blocks per multiprocessor as without.
bool bias_fits(const core::Problem& p, const BackwardKernel& kernel, const DeviceLimits& device) {
  constexpr int kReservedPerBlock = 1024;  // shared memory that the system takes for each thread block
  const int bytes = kernel.shared_memory + kernel.bias_bytes;
  return p.has_bias && kernel.bias_bytes > 0 && p.bias_dtype == p.dtype && aligned(p.bias, p.k_length) &&
         (!p.blocks || p.blocks.block_k % 8 == 0) && bytes <= device.shared_memory &&
         kernel.thread_blocks * (bytes + kReservedPerBlock) <= device.shared_memory_multiprocessor;
}

int shared_memory_of(const BackwardChoice& choice, const BackwardKernel& kernel) {
  return kernel.shared_memory + (choice.bias_staged && &kernel == choice.keys ? kernel.bias_bytes : 0);
}

// The tiles of one of the kernels.
core::Tiling tiling_of(const core::Problem& p, bool of_keys, std::int64_t tile) {
  return of_keys ? core::Tiling{p.k_length, tile, p.blocks ? p.blocks.block_k : 0}
                 : core::Tiling{p.q_length, tile, p.blocks ? p.blocks.block_q : 0};
}

core::Tiling bias_rows(const core::Problem& p, const BackwardKernel& kernel) {
  const bool all_rows = p.bias_rows == 1;
  return {all_rows ? 1 : p.bias_rows, kernel.block_q, p.blocks && !all_rows ? p.blocks.block_q : 0};
}

// Thread blocks of each kernel; what a grid cannot hold is refused.
struct Grids {
  std::int64_t keys = 0, queries = 0, bias = 0, blocks = 0;
};

Grids grids_of(const core::Problem& p, const BackwardChoice& choice) {
  Grids grids;
  grids.blocks = product(p.batch, p.q_heads, (p.q_length + kQueryBlock - 1) / kQueryBlock);
  if (choice.keys != nullptr)
    grids.keys = product(p.batch, p.kv_heads, tiling_of(p, true, choice.keys->block_k).count());
  if (choice.queries != nullptr)
    grids.queries = product(p.batch, p.q_heads, tiling_of(p, false, choice.queries->block_q).count());
  if (choice.bias != nullptr) {
    grids.bias = product(p.bias_batch, p.bias_heads, bias_rows(p, *choice.bias).count(),
                         tiling_of(p, true, choice.bias->block_k).count());
  }
  return grids;
}

// The kernels for one kind of GPU, and the code that they are in.
struct Path {
  BackwardFamily family;
  int capability;
  Code code;

  const DeviceLimits& device(const core::Problem& p) const { return device_limits(p.device.index, code); }
};

Path newest(const core::Problem& p) {
  return {p.dtype == DType::bf16 ? flash2::backward_family_bf16() : flash2::backward_family_fp16(), 80,
          Code::from80};
}

Path sm75() { return {flash2::backward_family_sm75(), 75, Code::sm75}; }

// Where the workspace is cut: statistics, then the sums of dQ, then whose turn it is and the ticket.
struct Workspace {
  std::size_t statistics = 0, sums = 0, turns = 0;
  std::size_t bytes() const { return statistics + sums + turns; }
};

Workspace workspace_of(const core::Problem& p, const BackwardChoice& choice) {
  const auto blocks = static_cast<std::size_t>(p.q_heads * QueryBlocks::count(p));
  return {blocks * 2 * kQueryBlock * sizeof(float),
          blocks * kQueryBlock * static_cast<std::size_t>(choice.head_dim) * sizeof(float),
          choice.in_turns ? (blocks * (flash2::kTurnsPerBlock) + 1) * sizeof(std::uint32_t) : 0};
}

// Heads side by side: at least two waves of tiles, and as many as keep what a tile revisits in half of L2.
std::int64_t heads_together(std::int64_t heads, std::int64_t tiles, std::int64_t bytes_per_head,
                            const DeviceLimits& device) {
  if (heads == 0 || tiles == 0) return 0;
  const std::int64_t wave = (2 * device.multiprocessors + tiles - 1) / tiles;
  const auto cached =
      static_cast<std::int64_t>(device.l2_bytes / 2) / std::max<std::int64_t>(bytes_per_head, 1);
  const std::int64_t together = std::clamp(std::max(wave, cached), std::int64_t{1}, heads);
  const std::int64_t groups = (heads + together - 1) / together;
  return (heads + groups - 1) / groups;  // of equal size
}

core::Band band_of_longest(const core::Problem& p) {
  return {p.left, p.right, p.packed ? p.k_length - p.q_length : core::sequence(p, 0).band.diagonal};
}

core::BasicTaskOrder<std::uint32_t> order_of(const core::Problem& p, bool of_keys, std::int64_t tile,
                                             const DeviceLimits& device) {
  const core::Band band = band_of_longest(p);
  const std::int64_t tiles = tiling_of(p, of_keys, tile).count(), heads = of_keys ? p.kv_heads : p.q_heads;
  const std::int64_t row_bytes = of_keys ? (p.qk_dim + p.v_dim) * 2 + p.qk_dim * 4 : (p.qk_dim + p.v_dim) * 2;
  const std::int64_t bytes = row_bytes * (of_keys ? p.q_length * p.group() : p.k_length / p.group());
  return {.sequences = static_cast<std::uint32_t>(p.batch),
          .heads = static_cast<std::uint32_t>(heads),
          .tiles = static_cast<std::uint32_t>(tiles),
          .order = of_keys ? core::tile_order(band.transposed(), p.k_length, p.q_length)
                           : core::tile_order(band, p.q_length, p.k_length),
          .together = static_cast<std::uint32_t>(heads_together(p.batch * heads, tiles, bytes, device))};
}

// The order for tiles that take turns. Each waits for those of its head before it, so they ascend, and only a few of a head run
// at the same time: four, or two where they differ in length, for then each is shorter than the one it waits for, and gains
// on it whenever it starts.
core::BasicTaskOrder<std::uint32_t> in_turns(core::BasicTaskOrder<std::uint32_t> order,
                                             const BackwardKernel& kernel, const DeviceLimits& device) {
  const auto resident =
      static_cast<std::uint32_t>(device.multiprocessors * std::max(1, 256 / kernel.threads));
  order.together = std::max(order.together, resident / (order.order == core::TileOrder::plain ? 4 : 2));
  order.order = core::TileOrder::ascending;
  return order;
}

bool limits_of(const Path& path, const core::Problem& p, core::Reason reason) {
  const DeviceLimits& device = path.device(p);
  const DeviceLimits& own = device_limits(p.device.index);
  if (!own.failure.empty()) return reason.give(own.failure);
  if (own.capability < path.capability) {
    return reason.give("needs compute capability ", path.capability / 10, ".", path.capability % 10,
                       ", cuda:", p.device.index, " has ", own.capability / 10, ".", own.capability % 10);
  }
  if (!device.failure.empty()) return reason.give(device.failure);
  if (size_limits(p, kQueryBlock, reason)) return true;
  return !choose_backward(path.family, device, p, reason).complete;
}

registry::Configuration configuration_of(const Path& path, const core::Problem& p) {
  const BackwardChoice choice = choose_backward(path.family, path.device(p), p);
  registry::Configuration configuration{.workspace_bytes = workspace_of(p, choice).bytes()};
  for (const BackwardKernel* kernel : {choice.keys, choice.queries, choice.bias}) {
    if (kernel == nullptr) continue;
    configuration.block_q = kernel->block_q, configuration.block_k = kernel->block_k;
    configuration.shared_memory_bytes = static_cast<std::size_t>(shared_memory_of(choice, *kernel));
    configuration.fast_memory_bytes = shared_memory_of(choice, *kernel);
    break;
  }
  return configuration;
}

std::string details_of(const Path& path, const core::Problem& p) {
  const BackwardChoice choice = choose_backward(path.family, path.device(p), p);
  std::string text;
  auto add = [&](const char* what, const BackwardKernel* kernel) {
    if (kernel == nullptr) return;
    text += core::concat(text.empty() ? "" : "\n", what, ": ", kernel->block_q, " queries x ",
                         kernel->block_k, " keys, ", kernel->threads, " threads, ",
                         shared_memory_of(choice, *kernel), " bytes of shared memory");
  };
  add(choice.head_dim == 0 ? "dK, dV"
      : choice.in_turns    ? "dK, dV, and dQ by fp32 reductions in turns"
                           : "dK, dV, and dQ by fp32 reductions",
      choice.keys);
  add("dQ without reductions", choice.queries);
  add("gradient of the bias", choice.bias);
  return text;
}

void run(const Path& path, const core::Problem& p, const registry::Resources& resources) {
  const DeviceLimits& device = path.device(p);
  const BackwardFamily& family = path.family;
  const BackwardChoice choice = choose_backward(family, device, p);
  const Grids grids = grids_of(p, choice);
  const DeviceScope scope(p.device.index);
  BackwardArguments a{.problem = p,
                      .blocks = {QueryBlocks::count(p)},
                      .features = ScoreFeatures::of(p),
                      .head_dim = choice.head_dim};
  a.statistics = reinterpret_cast<float*>(resources.workspace);
  const Workspace workspace = workspace_of(p, choice);
  if (choice.head_dim != 0)
    a.grad_q_sums = reinterpret_cast<float*>(resources.workspace + workspace.statistics);
  if (choice.in_turns) {
    a.turns = reinterpret_cast<std::uint32_t*>(resources.workspace + workspace.statistics + workspace.sums);
    a.ticket = a.turns + workspace.turns / sizeof(std::uint32_t) - 1;
  }

  a.order = query_block_order(p);
  launch(family.prepare, "flash2 backward, prepare", grids.blocks, flash2::kPrepareThreads, 0,
         resources.stream, a);
  if (choice.keys != nullptr) {
    a.order = key_tile_order(p, choice.keys->block_k, device);
    if (choice.in_turns) a.order = in_turns(a.order, *choice.keys, device);
    a.bias_staged = choice.bias_staged;
    launch(choice.keys->kernel, "flash2 backward, keys", grids.keys, choice.keys->threads,
           static_cast<std::size_t>(shared_memory_of(choice, *choice.keys)), resources.stream, a);
  }
  if (choice.head_dim != 0) {
    a.order = query_block_order(p);
    launch(family.finish, "flash2 backward, finish", grids.blocks, flash2::kFinishThreads, 0,
           resources.stream, a);
  }
  if (choice.queries != nullptr) {
    a.order = order_of(p, false, choice.queries->block_q, device);
    launch(choice.queries->kernel, "flash2 backward, queries", grids.queries, choice.queries->threads,
           static_cast<std::size_t>(choice.queries->shared_memory), resources.stream, a);
  }
  if (choice.bias != nullptr) {
    launch(choice.bias->kernel, "flash2 backward, bias", grids.bias, choice.bias->threads,
           static_cast<std::size_t>(choice.bias->shared_memory), resources.stream, a);
  }
}

}  // namespace

core::BasicTaskOrder<std::uint32_t> query_block_order(const core::Problem& p) {
  return {.sequences = static_cast<std::uint32_t>(p.batch),
          .heads = static_cast<std::uint32_t>(p.q_heads),
          .tiles = static_cast<std::uint32_t>((p.q_length + kQueryBlock - 1) / kQueryBlock)};
}

core::BasicTaskOrder<std::uint32_t> key_tile_order(const core::Problem& p, std::int64_t tile,
                                                   const DeviceLimits& device) {
  return order_of(p, true, tile, device);
}

BackwardChoice choose_backward(const BackwardFamily& family, const DeviceLimits& device,
                               const core::Problem& p, core::Reason reason) {
  BackwardChoice choice;
  const Variant variant = variant_for(p);
  const std::int64_t head_dim = std::max(p.qk_dim, p.v_dim);
  const flash2::BackwardTable& kernels = family.tables[head_dim <= 64 ? 0 : head_dim <= 128 ? 1 : 2];
  auto choose = [&](std::span<const BackwardKernel> table, Variant least, bool in_turns = false) {
    const BackwardKernel* kernel = first_fitting(table, device, std::max(variant, least), in_turns);
    if (kernel == nullptr) {
      if (choice.complete) {
        reason.give("no instance for head_dim ", head_dim, " fits into ", device.shared_memory,
                    " bytes of shared memory");
      }
      choice.complete = false;
    }
    return kernel;
  };
  // dQ comes with dK and dV, in deterministic mode by turns. With a block mask nobody knows how many tiles come before; dQ
  // alone needs no sums.
  const bool keys = p.has_grad_k || p.has_grad_v,
             together = keys && p.has_grad_q && !(p.deterministic && p.blocks);
  if (keys) choice.keys = choose(kernels.keys, Variant::plain, together && p.deterministic);
  if (choice.keys != nullptr) choice.bias_staged = bias_fits(p, *choice.keys, device);
  if (together && choice.keys != nullptr) {
    choice.head_dim = choice.keys->head_dim;
    choice.in_turns = p.deterministic && p.q_length > 0;  // without queries nobody sets the counters: see run
  }
  if (p.has_grad_q && !together) choice.queries = choose(kernels.queries, Variant::plain);
  if (p.has_grad_bias) choice.bias = choose(family.bias, Variant::featured);
  if (choice.complete) {
    const Grids grids = grids_of(p, choice);
    choice.complete = !grid_limit(std::max({grids.keys, grids.queries, grids.bias, grids.blocks}), reason);
  }
  return choice;
}

bool flash2_backward_limits(const core::Problem& p, core::Reason reason) {
  return limits_of(newest(p), p, reason);
}

registry::Configuration flash2_backward_configuration(const core::Problem& p, int /*workers*/) {
  return configuration_of(newest(p), p);
}

std::string flash2_backward_details(const core::Problem& p,
                                    const registry::Configuration& /*configuration*/) {
  return details_of(newest(p), p);
}

void flash2_backward(const core::Problem& p, const registry::Configuration& /*configuration*/,
                     const registry::Resources& resources) {
  run(newest(p), p, resources);
}

bool flash2_sm75_backward_limits(const core::Problem& p, core::Reason reason) {
  return limits_of(sm75(), p, reason);
}

registry::Configuration flash2_sm75_backward_configuration(const core::Problem& p, int /*workers*/) {
  return configuration_of(sm75(), p);
}

std::string flash2_sm75_backward_details(const core::Problem& p,
                                         const registry::Configuration& /*configuration*/) {
  return details_of(sm75(), p);
}

void flash2_sm75_backward(const core::Problem& p, const registry::Configuration& /*configuration*/,
                          const registry::Resources& resources) {
  run(sm75(), p, resources);
}

}  // namespace tessera::cuda
