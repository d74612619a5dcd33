#include "cuda/sm90/backward/launch.h"

#include <algorithm>
#include <array>

#include "core/base/text.h"
#include "cuda/common/backward_order.h"
#include "cuda/common/host/arena.h"
#include "cuda/common/host/launch.h"
#include "cuda/common/host/limits.h"
#include "cuda/sm90/common/operand.h"

namespace tessera::cuda::sm90::backward {
namespace {

std::span<const Instance> instances_of(const core::Problem& p) {
  return p.dtype == DType::bf16 ? hopper_backward_bf16() : hopper_backward_fp16();
}

bool drops(const core::Problem& p) { return p.dropout && p.dropout_threshold > 0; }

// In the order of the maps in Arguments.
std::array<Operand, 6> operands(const Config& c, const core::Problem& p) {
  return {query_operand("q", p.q, p.qk_dim, p, c.block_q),
          key_operand("k", p.k, p.qk_dim, p, c.block_k()),
          key_operand("v", p.v, p.v_dim, p, c.block_k()),
          query_operand("grad_out", p.grad_out, p.v_dim, p, c.block_q),
          key_operand("grad_k", p.grad_k, p.qk_dim, p, 16),
          key_operand("grad_v", p.grad_v, p.v_dim, p, 16)};
}

// Workspace: counted without memory, cut with it.
struct Workspace {
  float *statistics, *sums;
  std::uint32_t* ticket;
  std::size_t bytes;

  Workspace(const Config& c, const core::Problem& p, std::byte* memory) {
    const std::int64_t blocks = p.q_heads * QueryBlocks::count(p);
    Arena arena(memory);
    statistics = arena.take<float>(blocks, 2 * kQueryBlock);
    sums = arena.take<float>(blocks, kQueryBlock, c.head_dim);
    ticket = arena.take<std::uint32_t>(1);
    bytes = arena.used();
  }
};

}  // namespace

const Instance* choose_instance(std::span<const Instance> instances, const core::Problem& p) {
  for (const Instance& instance : instances) {
    if (std::max(p.qk_dim, p.v_dim) <= instance.config.head_dim && instance.config.dropout == drops(p))
      return &instance;
  }
  return nullptr;
}

Decision decide(const Instance& instance, const core::Problem& p) {
  const Config& c = instance.config;
  const DeviceLimits& device = device_limits(p.device.index);
  Decision d{.instance = &instance,
             .blocks = query_block_order(p),
             .tiles = backward_order(p, true, c.block_k(), device),
             .workspace_bytes = Workspace(c, p, nullptr).bytes};
  d.grid = std::min<std::int64_t>(d.tiles.count(), device.multiprocessors);
  return d;
}

#if TESSERA_HAVE_CUDA

void enqueue(const Decision& d, const core::Problem& p, std::byte* memory, void* stream,
             std::uint32_t* report) {
  const Config& c = d.instance->config;
  const BackwardEnds ends = p.dtype == DType::bf16 ? hopper_ends_bf16() : hopper_ends_fp16();
  const Workspace workspace(c, p, memory);
  const DeviceScope scope(p.device.index);
  BackwardCall call{.problem = p,
                    .order = d.blocks,
                    .blocks = {QueryBlocks::count(p)},
                    .features = ScoreFeatures::of(p),
                    .statistics = workspace.statistics,
                    .grad_q_sums = workspace.sums,
                    .head_dim = c.head_dim,
                    .ticket = workspace.ticket};
  launch(ends.prepare, "hopper backward, prepare", d.blocks.count(), kPrepareThreads, 0, stream, call);
  Arguments a{};
  CUtensorMap* const maps[6] = {&a.q, &a.k, &a.v, &a.grad_out, &a.grad_k, &a.grad_v};
  const std::array<Operand, 6> all = operands(c, p);
  for (std::size_t i = 0; i < all.size(); ++i) *maps[i] = encode(all[i]);
  a.call = call;
  a.call.order = d.tiles;
  a.diagonals = diagonal_rule(p);
  a.report = report;
  launch(d.instance->kernel, "hopper backward", d.grid, c.threads(),
         static_cast<std::size_t>(c.shared_bytes()), stream, a);
  launch(ends.finish, "hopper backward, finish", d.blocks.count(), kFinishThreads, 0, stream, call);
}

#else

void enqueue(const Decision& /*d*/, const core::Problem& /*p*/, std::byte* /*memory*/, void* stream,
             std::uint32_t* /*report*/) {
  launch(KernelCall{}, "hopper backward", 1, 1, 0, stream);
}

#endif

std::optional<core::Choice> choose(const core::Problem& p, int /*workers*/, core::Reason reason) {
  if (gpu_limit(p, reason)) return std::nullopt;
  // The kernels before and after the tiles are cuda.flash2's.
  if (cuda::gpu_limit(p, {.least = kCapability}, Code::from80, reason)) return std::nullopt;
  if (p.q_tokens == 0 || p.k_tokens == 0) {
    return reason.decline("requires at least one query and one key");
  }
  if (!p.has_grad_q || !p.has_grad_k || !p.has_grad_v) {
    return reason.decline(
        "requires grad_q, grad_k and grad_v together; this call requests only some of them");
  }
  const Instance* instance = choose_instance(instances_of(p), p);
  if (instance == nullptr) {
    return reason.decline("supports head_dim up to 128 (64 with dropout); this call has ",
                          std::max(p.qk_dim, p.v_dim));
  }
  if (drops(p) && p.origin.column % core::kDropoutGroup != 0) {
    return reason.decline("requires, with dropout, an origin.column that is a multiple of ",
                          core::kDropoutGroup, "; this call has ", p.origin.column);
  }
  const Config& c = instance->config;
  if (size_limits(p, kQueryBlock, reason) || shared_memory_limit(p, c.shared_bytes(), reason) ||
      copy_limit(operands(c, p), reason)) {
    return std::nullopt;
  }
  const Decision d = decide(*instance, p);
  return core::Choice{.block_q = c.block_q,
                      .block_k = c.block_k(),
                      .shared_memory_bytes = static_cast<std::size_t>(c.shared_bytes()),
                      .workspace_bytes = d.workspace_bytes,
                      .traffic_cache_bytes = static_cast<double>(c.shared_bytes()),
                      .decision = d};
}

std::string details(const core::Problem& /*p*/, const core::Choice& choice) {
  const Config& c = choice.decision.as<Decision>().instance->config;
  return core::concat("instance: head_dim up to ", c.head_dim, c.dropout ? ", with dropout\n" : "\n",
                      c.kGroups, " warp groups of 64 keys and one that loads, ", c.registers, " and ",
                      c.loader_registers, " registers\nstages: ", c.kKeyStages, " of K and V, ",
                      c.kQueryStages, " of Q and dO, ", c.kScoreStages,
                      " of dS\ndK, dV, and dQ by fp32 reductions; tiles of keys by an atomic counter");
}

void run(const core::Problem& p, const core::Choice& choice, const core::Resources& resources) {
  enqueue(choice.decision.as<Decision>(), p, resources.workspace, resources.stream);
}

}  // namespace tessera::cuda::sm90::backward
