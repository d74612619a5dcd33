#include "cpu/flash2/kernel.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "core/base/environment.h"
#include "core/base/refuse.h"
#include "core/base/text.h"
#include "core/visibility.h"
#include "cpu/flash2/backward_plan.h"
#include "cpu/flash2/bf16/engines.h"
#include "cpu/flash2/bias_gradient.h"
#include "cpu/flash2/forward_plan.h"
#include "cpu/flash2/portable/engine.h"
#include "cpu/head.h"
#include "cpu/machine/arena.h"
#include "cpu/machine/cpu_info.h"
#include "cpu/machine/parallel_for.h"

namespace tessera::cpu {
namespace {

// The engine for a problem, best first as the machine and its element type allow; null: the portable one.
const ForwardEngine* forward_engine_for(const core::Problem& p) {
  const Target target = target_for(active_target(), p.dtype);
  if (target == Target::amx) return bf16::amx_forward_engine();
  if (target == Target::avx512_bf16) return bf16::dot_forward_engine();
  return forward_engine(target);
}
const BackwardEngine* backward_engine_for(const core::Problem& p) {
  const Target target = target_for(active_target(), p.dtype);
  if (target == Target::amx) return bf16::amx_backward_engine();
  if (target == Target::avx512_bf16) return bf16::dot_backward_engine();
  return backward_engine(target);
}

// Heads that make full rounds of the workers have one task each. The rest are cut so that each worker has a few tasks
// of them, which make up for their unequal lengths.
constexpr std::int64_t kTasksPerWorker = 4;

// Keys per step that TESSERA_BLOCK_K asks for (core/base/environment.h); 0 without it. Throws Error (invalid_argument) when it
// is not a number of keys.
std::int64_t asked_keys_per_step() {
  constexpr std::int64_t kMost = 8192;
  const std::optional<std::string>& asked = core::environment().block_k;
  if (!asked) return 0;
  std::int64_t keys = 0;
  const char* end = asked->data() + asked->size();
  const auto [stopped, error] = std::from_chars(asked->data(), end, keys);
  if (error != std::errc() || stopped != end || keys < 1 || keys > kMost) {
    core::refuse("TESSERA_BLOCK_K is '", *asked, "'; it must be a number of keys, 1 to ", kMost);
  }
  return keys;
}

// Keys per step that the caches suggest: K, V and the scores of a step within half of the second-level cache; where
// vectors would wait for that, the scores within half of the first. Products of bf16 take half the bytes and gain by
// longer steps.
std::int64_t fitting_keys(const core::Problem& p, std::int64_t tile_rows) {
  const auto element = static_cast<std::int64_t>(size_of(accumulator_of(p.dtype)));
  const Target target = target_for(active_target(), p.dtype);
  const bool bf16 = target == Target::avx512_bf16 || target == Target::amx;
  std::int64_t fitting =
      static_cast<std::int64_t>(caches().l2) / 2 / (element * (p.qk_dim + p.v_dim + tile_rows));
  if (!bf16 && has_two_wide_multipliers()) {
    fitting = std::min(fitting, static_cast<std::int64_t>(caches().l1) / 2 / (element * tile_rows));
  }
  return fitting;
}

// Rows are copied where they are not contiguous accumulators; but contiguity does not pay for itself when
// fewer than a tile of queries reads them.
bool copies(const core::Problem& p, const core::View& view, std::int64_t dim, std::int64_t tile_rows) {
  if (p.dtype != accumulator_of(p.dtype)) return true;
  return view.row_stride != dim && p.q_length * p.group() > tile_rows;
}

ForwardPlan forward_plan(const core::Problem& p, const ForwardEngine& engine, int workers) {
  ForwardPlan plan;
  plan.tile_rows = engine.tile_rows(p.dtype == DType::fp64);
  plan.asked_keys = asked_keys_per_step();
  plan.fitting_keys = fitting_keys(p, plan.tile_rows);
  plan.block_k = plan.keys_per_step(p.k_length);
  plan.copy_k = copies(p, p.k, p.qk_dim, plan.tile_rows);
  plan.copy_v = copies(p, p.v, p.v_dim, plan.tile_rows);
  const core::Tiling tiling{p.q_length, plan.tile_rows, p.blocks ? p.blocks.block_q : 0};
  plan.tiles = std::max<std::int64_t>(tiling.count(), 1);
  const std::int64_t heads = p.batch * p.q_heads;
  plan.whole = heads / workers * workers;
  if (const std::int64_t rest = heads - plan.whole; rest > 0) {
    const std::int64_t wanted = std::min(plan.tiles, (kTasksPerWorker * workers + rest - 1) / rest);
    plan.chunk_tiles = (plan.tiles + wanted - 1) / wanted;
    plan.chunks = (plan.tiles + plan.chunk_tiles - 1) / plan.chunk_tiles;
  }
  return plan;
}

// Heads that make full rounds of the workers have one task each. The rest are split so that each worker has a few
// tasks of them; each split costs a partial dQ.
constexpr std::int64_t kSplitTasksPerWorker = 2;

BackwardPlan backward_plan(const core::Problem& p, const BackwardEngine& engine, int workers) {
  BackwardPlan plan;
  plan.tile_rows = engine.tile_rows(p.dtype == DType::fp64);
  const std::int64_t part = plan.tile_rows / kReduceParts;  // whole vectors
  plan.slot_rows =
      p.blocks ? std::min((p.blocks.block_q + part - 1) / part * part, plan.tile_rows) : plan.tile_rows;
  plan.block_k = asked_keys_per_step() != 0 ? asked_keys_per_step() : 128;
  plan.copy_k = copies(p, p.k, p.qk_dim, plan.tile_rows);
  plan.copy_v = copies(p, p.v, p.v_dim, plan.tile_rows);
  plan.causal = p.right != core::kUnbounded && p.left == core::kUnbounded;
  const std::int64_t chunks = key_chunks(p.k_length, plan.causal).count;
  const std::int64_t heads = p.batch * p.kv_heads;
  plan.whole = heads / workers * workers;
  const std::int64_t rest = heads - plan.whole;
  while (plan.splits < chunks && rest * plan.splits < kSplitTasksPerWorker * workers) plan.splits *= 2;
  if (plan.splits == 1 || rest == 0) plan.whole = heads;
  return plan;
}

// Query heads of the heads that are split.
std::int64_t split_query_heads(const core::Problem& p, const BackwardPlan& plan) {
  const std::int64_t rest = p.batch * p.kv_heads - plan.whole;
  return rest == 0 ? 0 : rest * p.group();
}

// What their tasks share, in memory of the arena.
SplitSlots split_slots(Arena& arena, const core::Problem& p, const BackwardPlan& plan,
                       const BackwardEngine& engine) {
  const std::int64_t heads = split_query_heads(p, plan);
  if (heads == 0) return {};
  SplitSlots slots = engine.slot_sizes(p, plan);
  slots.tiles = query_tiling(p, plan, p.q_length).count();
  for (std::int64_t split = 0; split < plan.splits && p.has_grad_q; ++split) {
    const core::Tile tiles = seeing_tiles(p, plan, split);
    slots.grad_q_tiles += tiles.end - tiles.begin;
  }
  slots.queries = arena.take<std::byte>(heads, slots.tiles, slots.query_bytes);
  slots.grad_q = arena.take<std::byte>(heads, slots.grad_q_tiles, slots.grad_q_bytes);
  return slots;
}

}  // namespace

registry::Configuration flash2_forward_configuration(const core::Problem& p, int workers) {
  const ForwardEngine* engine = forward_engine_for(p);
  if (engine == nullptr) return portable::flash2_forward_configuration(p, workers);
  const ForwardPlan plan = forward_plan(p, *engine, workers);
  const int useful =
      static_cast<int>(std::clamp<std::int64_t>(task_count(plan, p.batch * p.q_heads), 1, workers));
  return {.block_q = plan.tile_rows,
          .block_k = plan.block_k,
          .shared_memory_bytes = 0,
          .workspace_bytes = core::workspace_bytes(0, engine->worker_bytes(p, plan), useful),
          .workers = useful,
          .fast_memory_bytes = static_cast<double>(caches().l2)};
}

std::string flash2_forward_details(const core::Problem& p, const registry::Configuration& configuration) {
  const Target target = target_for(active_target(), p.dtype);
  const ForwardEngine* engine = forward_engine_for(p);
  if (engine == nullptr) return "instruction set portable";
  const ForwardPlan plan = forward_plan(p, *engine, configuration.workers);
  return core::concat("instruction set ", name(target), ", ", task_count(plan, p.batch * p.q_heads), " tasks",
                      plan.copy_k || plan.copy_v ? ", K and V copied per worker" : "");
}

void flash2_forward(const core::Problem& p, const registry::Configuration& configuration,
                    const registry::Resources& resources) {
  if (forward_engine_for(p) == nullptr) return portable::flash2_forward(p, configuration, resources);
  flash2_forward_longer_than(p, configuration, resources, 0);
}

void flash2_forward_longer_than(const core::Problem& p, const registry::Configuration& configuration,
                                const registry::Resources& resources, std::int64_t queries) {
  const ForwardEngine* engine = forward_engine_for(p);
  const ForwardPlan plan = forward_plan(p, *engine, configuration.workers);
  const std::size_t bytes = configuration.workspace_bytes / static_cast<std::size_t>(configuration.workers);
  for (int worker = 0; worker < configuration.workers; ++worker) {
    std::memset(resources.workspace + bytes * static_cast<std::size_t>(worker), 0, sizeof(std::int64_t));
  }
  const std::int64_t heads = p.batch * p.q_heads;
  parallel_for(*resources.executor, configuration.workers, task_count(plan, heads),
               [&](std::int64_t task, int worker) {
                 if (core::sequence(p, task_of(plan, heads, task).head / p.q_heads).q_length <= queries)
                   return;
                 engine->run_task(p, plan, task,
                                  resources.workspace + bytes * static_cast<std::size_t>(worker));
               });
}

registry::Configuration flash2_backward_configuration(const core::Problem& p, int workers) {
  const BackwardEngine* engine = backward_engine_for(p);
  if (engine == nullptr) return portable::flash2_backward_configuration(p, workers);
  const std::int64_t tasks = task_count(backward_plan(p, *engine, workers), p.batch * p.kv_heads);
  const int useful = static_cast<int>(std::clamp<std::int64_t>(tasks, 1, workers));
  const BackwardPlan plan = backward_plan(p, *engine, useful);
  Arena shared;
  split_slots(shared, p, plan, *engine);
  std::size_t bytes = core::workspace_bytes(shared.used(), engine->worker_bytes(p, plan), useful);
  bytes = std::max(bytes, bias_gradient_bytes(p, useful));
  return {.block_q = plan.tile_rows,
          .block_k = plan.block_k,
          .shared_memory_bytes = 0,
          .workspace_bytes = bytes,
          .workers = useful,
          .fast_memory_bytes = static_cast<double>(caches().l2)};
}

std::string flash2_backward_details(const core::Problem& p, const registry::Configuration& configuration) {
  const Target target = target_for(active_target(), p.dtype);
  const BackwardEngine* engine = backward_engine_for(p);
  if (engine == nullptr) return "instruction set portable";
  const BackwardPlan plan = backward_plan(p, *engine, configuration.workers);
  return core::concat("instruction set ", name(target), ", ", task_count(plan, p.batch * p.kv_heads),
                      " tasks", plan.copy_k || plan.copy_v ? ", K and V copied per task" : "");
}

void flash2_backward(const core::Problem& p, const registry::Configuration& configuration,
                     const registry::Resources& resources) {
  const BackwardEngine* engine = backward_engine_for(p);
  if (engine == nullptr) return portable::flash2_backward(p, configuration, resources);
  const BackwardPlan plan = backward_plan(p, *engine, configuration.workers);
  Arena shared(resources.workspace);
  const SplitSlots slots = split_slots(shared, p, plan, *engine);
  const std::size_t bytes = engine->worker_bytes(p, plan);
  auto memory = [&](int worker) {
    return resources.workspace + shared.used() + bytes * static_cast<std::size_t>(worker);
  };
  const std::int64_t tiles = split_query_heads(p, plan) * slots.tiles;
  if (p.has_grad_q || p.has_grad_k || p.has_grad_v) {
    if (tiles > 0) {
      parallel_for(*resources.executor, configuration.workers, tiles, [&](std::int64_t tile, int) {
        engine->pack_queries(p, plan, tile / slots.tiles, tile % slots.tiles, slots);
      });
    }
    parallel_for(
        *resources.executor, configuration.workers, task_count(plan, p.batch * p.kv_heads),
        [&](std::int64_t task, int worker) { engine->run_task(p, plan, task, memory(worker), slots); });
  }
  if (p.has_grad_q && tiles > 0) {  // the last rows, which see most keys, first
    parallel_for(*resources.executor, configuration.workers, tiles * kReduceParts,
                 [&](std::int64_t task, int worker) {
                   const std::int64_t tile = tiles - 1 - task / kReduceParts;
                   engine->reduce(p, plan, tile / slots.tiles, tile % slots.tiles, task % kReduceParts,
                                  memory(worker), slots);
                 });
  }
  if (p.has_grad_bias) bias_gradient(p, configuration.workers, resources);
}

}  // namespace tessera::cpu
