#include "cuda/sm90/forward/launch.h"

#include <algorithm>
#include <atomic>

#include "core/base/environment.h"
#include "core/base/text.h"
#include "cuda/common/features.h"
#include "cuda/common/host/arena.h"
#include "cuda/common/host/tensor_map.h"
#include "cuda/sm90/forward/table.h"

namespace tessera::cuda {
namespace {

using sm90::forward::Config;
using sm90::forward::Instance;
using sm90::forward::Schedule;

constexpr int kHopper = 90;  // its code runs on no other capability

std::span<const Instance> instances_of(const core::Problem& p) {
  return p.dtype == DType::bf16 ? hopper_forward_bf16() : hopper_forward_fp16();
}

struct Operand {
  const char* name;
  const core::View& view;
  RowExtents extents;
};

// As the copy engine sees them.
std::array<Operand, 4> operands(const core::Problem& p) {
  const std::int64_t batch = p.packed ? 1 : p.batch;
  const std::int64_t q_rows = p.packed ? p.q_tokens : p.q_length, k_rows = p.packed ? p.k_tokens : p.k_length;
  return {Operand{"q", p.q, {p.qk_dim, q_rows, p.q_heads, batch}},
          Operand{"k", p.k, {p.qk_dim, k_rows, p.kv_heads, batch}},
          Operand{"v", p.v, {p.v_dim, k_rows, p.kv_heads, batch}},
          Operand{"out", p.out, {p.v_dim, q_rows, p.q_heads, batch}}};
}

#if TESSERA_HAVE_CUDA

// Numbers that no other data is likely to be: loader.cuh looks for them in memory that nobody has cleared.
unsigned long long launch_number() {
  static std::atomic<unsigned long long> launches{0};
  return (++launches * 0x9E3779B97F4A7C15ULL) | 1;
}

#endif

Schedule schedule_of(const Config& c, const core::Problem& p) {
  return hopper_schedule(c, p, device_limits(p.device.index).multiprocessors);
}

}  // namespace

const Instance& choose_hopper(std::span<const Instance> instances, const core::Problem& p) {
  // What a row may see of the keys. Sequences of a packed batch must not decide about each other.
  const bool window = p.left != core::kUnbounded && p.right != core::kUnbounded;
  const std::int64_t keys = window ? std::min(p.k_length, p.left + p.right + 1) : p.k_length;
  const bool many_keys = !p.packed && keys >= sm90::forward::kManyKeys;
  const bool masked = p.left != core::kUnbounded || p.right != core::kUnbounded;
  const bool few_keys = !p.packed && masked && keys <= sm90::forward::kFewKeys;
  for (const Instance& instance : instances) {
    const Config& c = instance.config;
    if (p.qk_dim > c.qk_dim || p.v_dim > c.v_dim) continue;
    if (c.qk_dim == 64 && (c.warp_groups == 3) != many_keys) continue;
    if ((c.qk_dim == 96 || c.qk_dim == 128) && (c.block_k == 64) != few_keys) continue;
    return instance;
  }
  return instances.back();
}

Schedule hopper_schedule(const Config& c, const core::Problem& p, int multiprocessors) {
  if (p.packed)
    return Schedule::packed(sm90::forward::most_packed_tiles(p.batch, p.q_heads, p.q_tokens, c.block_q()));
  const std::int64_t tiles = (p.q_length + c.block_q() - 1) / c.block_q();
  const core::TileOrder order = core::tile_order(core::sequence(p, 0).band, p.q_length, p.k_length);
  return Schedule(p.batch, p.q_heads, tiles, order, multiprocessors);
}

std::size_t hopper_workspace(const Schedule& schedule) {
  if (schedule.equal_tiles() || schedule.count() == 0) return 0;
  Arena arena;
  arena.take<sm90::forward::TileCounter>(1);
  arena.take<int>(schedule.count());
  return arena.used();
}

#if TESSERA_HAVE_CUDA

void launch_hopper(const Instance& instance, const core::Problem& p, std::byte* workspace, void* stream,
                   std::uint32_t* report) {
  const Config& c = instance.config;
  const DeviceLimits& device = device_limits(p.device.index);
  sm90::forward::Arguments a{};
  a.schedule = schedule_of(c, p);
  if (a.schedule.count() == 0) return;
  const DeviceScope scope(p.device.index);
  const int box_rows[4] = {c.q_part_rows(), c.block_k, c.block_k, 16};
  CUtensorMap* const maps[4] = {&a.q, &a.k, &a.v, &a.out};
  const std::array<Operand, 4> all = operands(p);
  for (std::size_t i = 0; i < all.size(); ++i) {
    *maps[i] =
        encode_tensor_map(tensor_map_spec(all[i].view, all[i].extents, box_rows[i]), p.dtype == DType::bf16);
  }
  a.p = p;
  a.diagonals = core::diagonal_rule(p);
  a.group = core::Divider(static_cast<std::uint32_t>(p.group()));
  a.scale_log2 = ScoreFeatures::of(p).scale_log2;
  a.speculate = !core::environment().lazy_maximum;
  a.report = report;
  if (!a.schedule.equal_tiles()) {
    Arena arena(workspace);
    a.counter = arena.take<sm90::forward::TileCounter>(1);
    a.links = arena.take<int>(a.schedule.count());
    a.launch = launch_number();
  }
  const std::int64_t grid = std::min<std::int64_t>(a.schedule.count(), device.multiprocessors);
  launch(instance.kernel, "hopper forward", grid, c.threads(), static_cast<std::size_t>(c.shared_bytes()),
         stream, a, Begin::beside_predecessors);
}

#else

void launch_hopper(const Instance& /*instance*/, const core::Problem& /*p*/, std::byte* /*workspace*/,
                   void* stream, std::uint32_t* /*report*/) {
  launch(nullptr, "hopper forward", 1, 1, 0, stream, nullptr);
}

#endif

bool hopper_forward_limits(const core::Problem& p, core::Reason reason) {
  const DeviceLimits& device = device_limits(p.device.index, Code::sm90);
  const DeviceLimits& own = device_limits(p.device.index);
  if (!own.failure.empty()) return reason.give(own.failure);
  if (own.capability != kHopper) {
    return reason.give("is compiled for compute capability 9.0 alone, cuda:", p.device.index, " has ",
                       own.capability / 10, ".", own.capability % 10);
  }
  if (!device.failure.empty()) return reason.give(device.failure);
  if (!(p.scale > 0)) return reason.give("needs a positive scale; it is ", p.scale);
  if (p.k_tokens == 0) return reason.give("needs a key");
  const Config& c = choose_hopper(instances_of(p), p).config;
  if (size_limits(p, c.block_q(), reason)) return true;
  if (c.shared_bytes() > device.shared_memory) {
    return reason.give("takes ", c.shared_bytes(), " bytes of shared memory, the GPU has ",
                       device.shared_memory);
  }
  for (const Operand& operand : operands(p)) {
    if (tensor_map_obstacle(operand.name, operand.view, operand.extents, reason)) return true;
  }
  return false;
}

registry::Configuration hopper_forward_configuration(const core::Problem& p, int /*workers*/) {
  const Config& c = choose_hopper(instances_of(p), p).config;
  return {.block_q = c.block_q(),
          .block_k = c.block_k,
          .shared_memory_bytes = static_cast<std::size_t>(c.shared_bytes()),
          .workspace_bytes = hopper_workspace(schedule_of(c, p)),
          .fast_memory_bytes = static_cast<double>(c.shared_bytes())};
}

std::string hopper_forward_details(const core::Problem& p, const registry::Configuration& /*configuration*/) {
  constexpr const char* kSoftmax[] = {"speculative maximum, P in registers of its own",
                                      "speculative maximum, P in place of the scores", "lazy maximum"};
  const Config& c = choose_hopper(instances_of(p), p).config;
  const Schedule schedule = schedule_of(c, p);
  const bool lazy = core::environment().lazy_maximum.has_value();
  std::string order = "equal tiles, head by head";
  if (p.packed) {
    order =
        core::concat("tiles by an atomic counter, long ",
                     c.packed_order() == sm90::forward::PackedOrder::tiles ? "ones" : "sequences", " first");
  } else if (!schedule.equal_tiles()) {
    order = core::concat("tiles by an atomic counter, head by head, the last ", schedule.last_heads(),
                         " together");
  }
  return core::concat("instance: head_dim up to ", c.qk_dim, " (q, k) and ", c.v_dim, " (v)\n", c.warp_groups,
                      " warp groups of 64 rows and one that loads, ", c.registers, " and ",
                      c.loader_registers, " registers\nstages: ", c.q_stages, " of Q, ", c.k_stages,
                      " of K, ", c.v_stages, " of V; ", c.store_columns, " columns of O at a time\n",
                      kSoftmax[lazy ? 2 : static_cast<int>(c.softmax)],
                      c.alternate ? ", warp groups in turn\n" : "\n", order);
}

void hopper_forward(const core::Problem& p, const registry::Configuration& /*configuration*/,
                    const registry::Resources& resources) {
  launch_hopper(choose_hopper(instances_of(p), p), p, resources.workspace, resources.stream);
}

}  // namespace tessera::cuda
