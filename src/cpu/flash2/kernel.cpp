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

// The engine of a target, as target_for gives it; null means the portable one.
const ForwardEngine* forward_engine_for(Target target) {
  if (target == Target::amx) return bf16::amx_forward_engine();
  if (target == Target::avx512_bf16) return bf16::dot_forward_engine();
  return forward_engine(target);
}
const BackwardEngine* backward_engine_for(Target target) {
  if (target == Target::amx) return bf16::amx_backward_engine();
  if (target == Target::avx512_bf16) return bf16::dot_backward_engine();
  return backward_engine(target);
}

// Heads that make full rounds of the workers have one task each. The rest are cut so that each
// worker has a few tasks of them, which make up for their unequal lengths.
constexpr std::int64_t kTasksPerWorker = 4;

// Keys per step that TESSERA_BLOCK_K asks for (core/base/environment.h); 0 without it. Throws Error
// (invalid_argument) when it is not a number of keys.
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

// Keys per step that the caches suggest: K, V and the scores of a step within half of the
// second-level cache; where vectors would wait for that, the scores within half of the first.
// Products of bf16 take half the bytes and gain by longer steps.
std::int64_t fitting_keys(const core::Problem& p, Target target, std::int64_t tile_rows) {
  const auto element = static_cast<std::int64_t>(size_of(accumulator_of(p.dtype)));
  const bool bf16 = target == Target::avx512_bf16 || target == Target::amx;
  std::int64_t fitting =
      static_cast<std::int64_t>(caches().l2) / 2 / (element * (p.qk_dim + p.v_dim + tile_rows));
  if (!bf16 && has_two_wide_multipliers()) {
    fitting = std::min(fitting, static_cast<std::int64_t>(caches().l1) / 2 / (element * tile_rows));
  }
  return fitting;
}

// Rows are copied where they are not contiguous accumulators; but contiguity does not pay for
// itself when fewer than a tile of queries reads them.
bool copies(const core::Problem& p, const core::View& view, std::int64_t dim, std::int64_t tile_rows) {
  if (p.dtype != accumulator_of(p.dtype)) return true;
  return view.row_stride != dim && p.q_length * p.group() > tile_rows;
}

ForwardPlan forward_plan(const core::Problem& p, Target target, const ForwardEngine& engine, int workers) {
  ForwardPlan plan;
  plan.tile_rows = engine.tile_rows(p.dtype == DType::fp64);
  plan.asked_keys = asked_keys_per_step();
  plan.fitting_keys = fitting_keys(p, target, plan.tile_rows);
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

// Heads that make full rounds of the workers have one task each. The rest are split so that each
// worker has a few tasks of them; each split costs a partial dQ.
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

// What their tasks share: sizes, without memory.
SplitSlots slots_of(const core::Problem& p, const BackwardPlan& plan, const BackwardEngine& engine) {
  if (split_query_heads(p, plan) == 0) return {};
  SplitSlots slots = engine.slot_sizes(p, plan);
  slots.tiles = query_tiling(p, plan, p.q_length).count();
  for (std::int64_t split = 0; split < plan.splits && p.has_grad_q; ++split) {
    const core::Tile tiles = seeing_tiles(p, plan, split);
    slots.grad_q_tiles += tiles.end - tiles.begin;
  }
  return slots;
}

// Memory for the slots of `heads` query heads.
void take(Arena& arena, std::int64_t heads, SplitSlots& slots) {
  slots.queries = arena.take<std::byte>(heads, slots.tiles, slots.query_bytes);
  slots.grad_q = arena.take<std::byte>(heads, slots.grad_q_tiles, slots.grad_q_bytes);
}

// How many of the workers have something to do.
int useful_workers(std::int64_t tasks, int workers) {
  return static_cast<int>(std::clamp<std::int64_t>(tasks, 1, workers));
}

struct BackwardDecision {
  Target target{};                         // that the engine is for
  const BackwardEngine* engine = nullptr;  // null: the portable one
  BackwardPlan plan{};
  SplitSlots slots{};           // without memory
  std::int64_t slot_heads = 0;  // query heads that have slots
  std::int64_t tasks = 0;
  std::size_t worker_bytes = 0;
};

}  // namespace

std::optional<core::Choice> choose_flash2_forward(const core::Problem& p, int workers, core::Reason) {
  Flash2ForwardDecision d{.target = target_for(active_target(), p.dtype)};
  d.engine = forward_engine_for(d.target);
  if (d.engine == nullptr) {
    core::Choice choice = portable::flash2_forward_choice(p, workers);
    choice.decision = d;
    return choice;
  }
  const std::int64_t heads = p.batch * p.q_heads;
  d.plan = forward_plan(p, d.target, *d.engine, workers);
  d.workers = useful_workers(task_count(d.plan, heads), workers);
  // The plan cuts the work for the workers that take part.
  if (d.workers < workers) d.plan = forward_plan(p, d.target, *d.engine, d.workers);
  d.tasks = task_count(d.plan, heads);
  d.worker_bytes = d.engine->worker_bytes(p, d.plan);
  return core::Choice{.block_q = d.plan.tile_rows,
                      .block_k = d.plan.block_k,
                      .workspace_bytes = core::workspace_bytes(0, d.worker_bytes, d.workers),
                      .workers = d.workers,
                      .traffic_cache_bytes = static_cast<double>(caches().l2),
                      .decision = d};
}

std::string flash2_forward_details(const core::Problem&, const core::Choice& choice) {
  return describe(choice.decision.as<Flash2ForwardDecision>());
}

std::string describe(const Flash2ForwardDecision& d) {
  if (d.engine == nullptr) return "instruction set portable";
  return core::concat("instruction set ", name(d.target), ", ", d.tasks, " tasks",
                      d.plan.copy_k || d.plan.copy_v ? ", K and V copied per worker" : "");
}

void run_flash2_forward(const core::Problem& p, const core::Choice& choice,
                        const core::Resources& resources) {
  const auto d = choice.decision.as<Flash2ForwardDecision>();
  if (d.engine == nullptr) return portable::flash2_forward(p, choice, resources);
  run_flash2_forward(p, d, resources, 0);
}

void run_flash2_forward(const core::Problem& p, const Flash2ForwardDecision& d,
                        const core::Resources& resources, std::int64_t shortest) {
  auto memory = [&](int worker) {
    return resources.workspace + d.worker_bytes * static_cast<std::size_t>(worker);
  };
  for (int worker = 0; worker < d.workers; ++worker) std::memset(memory(worker), 0, sizeof(std::int64_t));
  const std::int64_t heads = p.batch * p.q_heads;
  parallel_for(*resources.executor, d.workers, d.tasks, [&](std::int64_t task, int worker) {
    const std::int64_t sequence = task_of(d.plan, heads, task).head / p.q_heads;
    if (core::sequence(p, sequence).q_length <= shortest) return;
    d.engine->run_task(p, d.plan, task, memory(worker));
  });
}

std::optional<core::Choice> choose_flash2_backward(const core::Problem& p, int workers, core::Reason) {
  BackwardDecision d{.target = target_for(active_target(), p.dtype)};
  d.engine = backward_engine_for(d.target);
  if (d.engine == nullptr) {
    core::Choice choice = portable::flash2_backward_choice(p, workers);
    choice.decision = d;
    return choice;
  }
  const std::int64_t heads = p.batch * p.kv_heads;
  d.plan = backward_plan(p, *d.engine, workers);
  const int useful = useful_workers(task_count(d.plan, heads), workers);
  // The plan cuts the work for the workers that take part.
  if (useful < workers) d.plan = backward_plan(p, *d.engine, useful);
  d.slots = slots_of(p, d.plan, *d.engine);
  d.slot_heads = split_query_heads(p, d.plan);
  d.tasks = task_count(d.plan, heads);
  d.worker_bytes = d.engine->worker_bytes(p, d.plan);
  Arena shared;
  SplitSlots slots = d.slots;
  take(shared, d.slot_heads, slots);
  const std::size_t gradients = core::workspace_bytes(shared.used(), d.worker_bytes, useful);
  return core::Choice{.block_q = d.plan.tile_rows,
                      .block_k = d.plan.block_k,
                      .workspace_bytes = std::max(gradients, bias_gradient_bytes(p, d.target, useful)),
                      .workers = useful,
                      .traffic_cache_bytes = static_cast<double>(caches().l2),
                      .decision = d};
}

std::string flash2_backward_details(const core::Problem&, const core::Choice& choice) {
  const auto d = choice.decision.as<BackwardDecision>();
  if (d.engine == nullptr) return "instruction set portable";
  return core::concat("instruction set ", name(d.target), ", ", d.tasks, " tasks",
                      d.plan.copy_k || d.plan.copy_v ? ", K and V copied per task" : "");
}

void run_flash2_backward(const core::Problem& p, const core::Choice& choice,
                         const core::Resources& resources) {
  const auto d = choice.decision.as<BackwardDecision>();
  if (d.engine == nullptr) return portable::flash2_backward(p, choice, resources);
  Arena shared(resources.workspace);
  SplitSlots slots = d.slots;
  take(shared, d.slot_heads, slots);
  auto memory = [&](int worker) {
    return resources.workspace + shared.used() + d.worker_bytes * static_cast<std::size_t>(worker);
  };
  const std::int64_t tiles = d.slot_heads * slots.tiles;
  if (p.has_grad_q || p.has_grad_k || p.has_grad_v) {
    if (tiles > 0) {
      parallel_for(*resources.executor, choice.workers, tiles, [&](std::int64_t tile, int) {
        d.engine->pack_queries(p, d.plan, tile / slots.tiles, tile % slots.tiles, slots);
      });
    }
    parallel_for(*resources.executor, choice.workers, d.tasks, [&](std::int64_t task, int worker) {
      d.engine->run_task(p, d.plan, task, memory(worker), slots);
    });
  }
  if (p.has_grad_q && tiles > 0) {  // the last rows, which see most keys, first
    parallel_for(*resources.executor, choice.workers, tiles * kReduceParts,
                 [&](std::int64_t task, int worker) {
                   const std::int64_t tile = tiles - 1 - task / kReduceParts;
                   d.engine->reduce(p, d.plan, tile / slots.tiles, tile % slots.tiles, task % kReduceParts,
                                    memory(worker), slots);
                 });
  }
  if (p.has_grad_bias) bias_gradient(p, d.target, choice.workers, resources);
}

}  // namespace tessera::cpu
