#include "cuda/sm90/forward/launch.h"

#include <algorithm>
#include <array>
#include <atomic>

#include "core/base/environment.h"
#include "core/base/text.h"
#include "cuda/common/features.h"
#include "cuda/common/host/arena.h"
#include "cuda/common/host/launch.h"
#include "cuda/common/host/limits.h"
#include "cuda/sm90/common/operand.h"
#include "cuda/sm90/forward/table.h"

namespace tessera::cuda::sm90::forward {
namespace {

std::span<const Instance> instances_of(const core::Problem& p) {
  return p.dtype == DType::bf16 ? hopper_forward_bf16() : hopper_forward_fp16();
}

// In the order of the maps in Arguments.
std::array<Operand, 4> operands(const Config& c, const core::Problem& p) {
  return {query_operand("q", p.q, p.qk_dim, p, c.q_part_rows()),
          key_operand("k", p.k, p.qk_dim, p, c.block_k), key_operand("v", p.v, p.v_dim, p, c.block_k),
          query_operand("out", p.out, p.v_dim, p, 16)};
}

// Workspace for the tiles that thread blocks take one by one: counted without memory, cut with it.
struct Workspace {
  TileCounter* counter = nullptr;
  int* links = nullptr;
  std::size_t bytes = 0;

  Workspace(const Schedule& schedule, std::byte* memory) {
    if (schedule.equal_tiles() || schedule.count() == 0) return;
    Arena arena(memory);
    counter = arena.take<TileCounter>(1);
    links = arena.take<int>(schedule.count());
    bytes = arena.used();
  }
};

Schedule schedule_of(const Config& c, const core::Problem& p, int multiprocessors) {
  if (p.packed) {
    return Schedule::packed(most_packed_tiles(p.batch, p.q_heads, p.q_tokens, c.block_q()));
  }
  const std::int64_t tiles = (p.q_length + c.block_q() - 1) / c.block_q();
  const core::TileOrder order = core::tile_order(core::sequence(p, 0).band, p.q_length, p.k_length);
  return {p.batch, p.q_heads, tiles, order, multiprocessors};
}

#if TESSERA_HAVE_CUDA

// Numbers that memory is unlikely to hold by chance: loader.cuh looks for them in memory that no
// kernel has cleared.
unsigned long long launch_number() {
  static std::atomic<unsigned long long> launches{0};
  return (++launches * 0x9E3779B97F4A7C15ULL) | 1;
}

#endif

}  // namespace

std::size_t Decision::workspace_bytes() const { return Workspace(schedule, nullptr).bytes; }

const Instance& choose_instance(std::span<const Instance> instances, const core::Problem& p) {
  // How many keys a row may see. The lengths of a packed batch must not decide: a row would depend
  // on other sequences.
  const bool window = p.left != core::kUnbounded && p.right != core::kUnbounded;
  const std::int64_t keys = window ? std::min(p.k_length, p.left + p.right + 1) : p.k_length;
  const bool many_keys = !p.packed && keys >= kManyKeys;
  const bool masked = p.left != core::kUnbounded || p.right != core::kUnbounded;
  const bool few_keys = !p.packed && masked && keys <= kFewKeys;
  for (const Instance& instance : instances) {
    const Config& c = instance.config;
    if (p.qk_dim > c.qk_dim || p.v_dim > c.v_dim) continue;
    if (c.qk_dim == 64 && (c.warp_groups == 3) != many_keys) continue;
    if ((c.qk_dim == 96 || c.qk_dim == 128) && (c.block_k == 64) != few_keys) continue;
    return instance;
  }
  return instances.back();
}

Decision decide(const Instance& instance, const core::Problem& p, int multiprocessors) {
  Decision d{.instance = &instance,
             .schedule = schedule_of(instance.config, p, multiprocessors),
             .speculate = !core::environment().lazy_maximum};
  d.grid = std::min<std::int64_t>(d.schedule.count(), multiprocessors);
  return d;
}

#if TESSERA_HAVE_CUDA

void enqueue(const Decision& d, const core::Problem& p, std::byte* memory, void* stream,
             std::uint32_t* report) {
  if (d.schedule.count() == 0) return;
  const Config& c = d.instance->config;
  const DeviceScope scope(p.device.index);
  Arguments a{};
  CUtensorMap* const maps[4] = {&a.q, &a.k, &a.v, &a.out};
  const std::array<Operand, 4> all = operands(c, p);
  for (std::size_t i = 0; i < all.size(); ++i) *maps[i] = encode(all[i]);
  a.p = p;
  a.schedule = d.schedule;
  a.diagonals = diagonal_rule(p);
  a.group = Divider(static_cast<std::uint32_t>(p.group()));
  a.scale_log2 = ScoreFeatures::of(p).scale_log2;
  a.speculate = d.speculate;
  a.report = report;
  if (!d.schedule.equal_tiles()) {
    const Workspace workspace(d.schedule, memory);
    a.counter = workspace.counter;
    a.links = workspace.links;
    a.launch = launch_number();
  }
  launch(d.instance->kernel, "hopper forward", d.grid, c.threads(),
         static_cast<std::size_t>(c.shared_bytes()), stream, a, Begin::beside_predecessors);
}

#else

void enqueue(const Decision& /*d*/, const core::Problem& /*p*/, std::byte* /*memory*/, void* stream,
             std::uint32_t* /*report*/) {
  launch(KernelCall{}, "hopper forward", 1, 1, 0, stream);
}

#endif

std::optional<core::Choice> choose(const core::Problem& p, int /*workers*/, core::Reason reason) {
  if (gpu_limit(p, reason)) return std::nullopt;
  if (!(p.scale > 0)) return reason.decline("requires a positive scale; this call has ", p.scale);
  if (p.k_tokens == 0) return reason.decline("requires at least one key");
  const Instance& instance = choose_instance(instances_of(p), p);
  const Config& c = instance.config;
  if (size_limits(p, c.block_q(), reason) || shared_memory_limit(p, c.shared_bytes(), reason) ||
      copy_limit(operands(c, p), reason)) {
    return std::nullopt;
  }
  const Decision d = decide(instance, p, device_limits(p.device.index).multiprocessors);
  return core::Choice{.block_q = c.block_q(),
                      .block_k = c.block_k,
                      .shared_memory_bytes = static_cast<std::size_t>(c.shared_bytes()),
                      .workspace_bytes = d.workspace_bytes(),
                      .traffic_cache_bytes = static_cast<double>(c.shared_bytes()),
                      .decision = d};
}

std::string details(const core::Problem& p, const core::Choice& choice) {
  constexpr const char* kSoftmax[] = {"speculative maximum, P in registers of its own",
                                      "speculative maximum, P in place of the scores", "lazy maximum"};
  const auto d = choice.decision.as<Decision>();
  const Config& c = d.instance->config;
  std::string order = "equal tiles, head by head";
  if (p.packed) {
    order = core::concat("tiles by an atomic counter, long ",
                         c.packed_order() == PackedOrder::tiles ? "ones" : "sequences", " first");
  } else if (!d.schedule.equal_tiles()) {
    order = core::concat("tiles by an atomic counter, head by head, the last ", d.schedule.last_heads(),
                         " together");
  }
  return core::concat("instance: head_dim up to ", c.qk_dim, " (q, k) and ", c.v_dim, " (v)\n", c.warp_groups,
                      " warp groups of 64 rows and one that loads, ", c.registers, " and ",
                      c.loader_registers, " registers\nstages: ", c.q_stages, " of Q, ", c.k_stages,
                      " of K, ", c.v_stages, " of V; ", c.store_columns, " columns of O at a time\n",
                      kSoftmax[d.speculate ? static_cast<int>(c.softmax) : 2],
                      c.alternate ? ", warp groups in turn\n" : "\n", order);
}

void run(const core::Problem& p, const core::Choice& choice, const core::Resources& resources) {
  enqueue(choice.decision.as<Decision>(), p, resources.workspace, resources.stream);
}

}  // namespace tessera::cuda::sm90::forward
