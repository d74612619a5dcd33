#include "cpu/flash2.h"

#include <algorithm>
#include <cstring>

#include "core/text.h"
#include "core/tiles.h"
#include "cpu/arena.h"
#include "cpu/bf16/engines.h"
#include "cpu/head.h"
#include "cpu/machine.h"
#include "cpu/parallel.h"
#include "cpu/portable/flash2.h"
#include "cpu/simd/flash2_backward.h"
#include "cpu/simd/flash2_forward.h"

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

// Tasks per worker that make up for their unequal lengths.
constexpr std::int64_t kTasksPerWorker = 4;

// Keys per step: K, V and the scores of a step within half of the second-level cache.
std::int64_t keys_per_step(const core::Problem& p, std::int64_t tile_rows) {
  const auto element = static_cast<std::int64_t>(size_of(accumulator_of(p.dtype)));
  const std::int64_t fitting =
      static_cast<std::int64_t>(caches().l2) / 2 / (element * (p.qk_dim + p.v_dim + tile_rows));
  return std::clamp<std::int64_t>(fitting / 64 * 64, 64, 512);
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
  plan.block_k = keys_per_step(p, plan.tile_rows);
  plan.copy_k = copies(p, p.k, p.qk_dim, plan.tile_rows);
  plan.copy_v = copies(p, p.v, p.v_dim, plan.tile_rows);
  const core::Tiling tiling{p.q_length, plan.tile_rows, p.blocks ? p.blocks.block_q : 0};
  const std::int64_t tiles = std::max<std::int64_t>(tiling.count(), 1);
  const std::int64_t heads = std::max<std::int64_t>(p.batch * p.q_heads, 1);
  const std::int64_t wanted = std::min(tiles, (kTasksPerWorker * workers + heads - 1) / heads);
  plan.chunk_tiles = (tiles + wanted - 1) / wanted;
  plan.chunks = (tiles + plan.chunk_tiles - 1) / plan.chunk_tiles;
  return plan;
}

// The backward of a problem with few heads is split by keys, so that many threads have work. The splits decide
// in which order dQ is summed and must not depend on the number of threads; each costs a partial dQ.
constexpr std::int64_t kBackwardTasks = 32;
constexpr std::int64_t kMaxSplits = 8;
constexpr std::int64_t kMinSplitKeys = 128;

BackwardPlan backward_plan(const core::Problem& p, const BackwardEngine& engine) {
  BackwardPlan plan;
  plan.tile_rows = engine.tile_rows(p.dtype == DType::fp64);
  plan.block_k = 128;
  plan.copy_k = copies(p, p.k, p.qk_dim, plan.tile_rows);
  plan.copy_v = copies(p, p.v, p.v_dim, plan.tile_rows);
  const std::int64_t heads = std::max<std::int64_t>(p.batch * p.kv_heads, 1);
  const std::int64_t wanted = std::min(kMaxSplits, (kBackwardTasks + heads - 1) / heads);
  const std::int64_t splits = std::clamp<std::int64_t>(p.k_length / kMinSplitKeys, 1, wanted);
  plan.split_keys = std::max<std::int64_t>((p.k_length + splits - 1) / splits, 1);
  plan.splits = std::max<std::int64_t>((p.k_length + plan.split_keys - 1) / plan.split_keys, 1);
  return plan;
}

// The partial dQ of all splits, in accumulators; none when there is one split.
std::size_t partial_bytes(const core::Problem& p, const BackwardPlan& plan) {
  if (plan.splits == 1 || !p.has_grad_q) return 0;
  Arena arena;
  arena.take<std::byte>(plan.splits * p.q_tokens * p.q_heads * p.qk_dim *
                        static_cast<std::int64_t>(size_of(accumulator_of(p.dtype))));
  return arena.used();
}

// dQ = scale * (partial 0 + partial 1 + ...), row by row.
template <typename T>
void reduce_grad_q(const core::Problem& p, const BackwardPlan& plan, const std::byte* partial, int workers,
                   Executor& executor) {
  using A = Accumulator<T>;
  const core::Tiling tiling{p.q_length, 64};
  const std::int64_t tiles = tiling.count(), split_stride = p.q_tokens * p.q_heads * p.qk_dim;
  parallel_for(executor, workers, p.batch * p.q_heads * tiles, [&](std::int64_t task, int) {
    const Head head(p, task / tiles / p.q_heads, task / tiles % p.q_heads);
    const core::Tile rows = tiling[task % tiles];
    for (std::int64_t i = rows.begin; i < std::min(rows.end, head.s.q_length); ++i) {
      const std::int64_t token = p.packed ? head.s.q_begin + i : head.s.index * p.q_length + i;
      const A* from = reinterpret_cast<const A*>(partial) + (token * p.q_heads + head.q_head) * p.qk_dim;
      T* to = head.query_row<T>(p.grad_q, i);
      for (std::int64_t c = 0; c < p.qk_dim; ++c) {
        A sum = from[c];
        for (std::int64_t split = 1; split < plan.splits; ++split) sum += from[split * split_stride + c];
        to[c] = Element<T>::store(sum * static_cast<A>(p.scale));
      }
    }
  });
}

}  // namespace

registry::Configuration flash2_forward_configuration(const core::Problem& p, int workers) {
  const ForwardEngine* engine = forward_engine_for(p);
  if (engine == nullptr) return portable::flash2_forward_configuration(p, workers);
  const ForwardPlan plan = forward_plan(p, *engine, workers);
  const int useful =
      static_cast<int>(std::clamp<std::int64_t>(p.batch * p.q_heads * plan.chunks, 1, workers));
  return {.block_q = plan.tile_rows,
          .block_k = plan.block_k,
          .shared_memory_bytes = 0,
          .workspace_bytes = engine->worker_bytes(p, plan) * static_cast<std::size_t>(useful),
          .workers = useful,
          .fast_memory_bytes = static_cast<double>(caches().l2)};
}

std::string flash2_forward_details(const core::Problem& p, const registry::Configuration& configuration) {
  const Target target = target_for(active_target(), p.dtype);
  const ForwardEngine* engine = forward_engine_for(p);
  if (engine == nullptr) return "instruction set portable";
  const ForwardPlan plan = forward_plan(p, *engine, configuration.workers);
  return core::concat("instruction set ", name(target), ", ", plan.chunks, " tasks per head",
                      plan.copy_k || plan.copy_v ? ", K and V copied per worker" : "");
}

void flash2_forward(const core::Problem& p, const registry::Configuration& configuration,
                    const registry::Resources& resources) {
  const ForwardEngine* engine = forward_engine_for(p);
  if (engine == nullptr) return portable::flash2_forward(p, configuration, resources);
  const ForwardPlan plan = forward_plan(p, *engine, configuration.workers);
  const std::size_t bytes = configuration.workspace_bytes / static_cast<std::size_t>(configuration.workers);
  for (int worker = 0; worker < configuration.workers; ++worker) {
    std::memset(resources.workspace + bytes * static_cast<std::size_t>(worker), 0, sizeof(std::int64_t));
  }
  parallel_for(*resources.executor, configuration.workers, p.batch * p.q_heads * plan.chunks,
               [&](std::int64_t task, int worker) {
                 engine->run_task(p, plan, task,
                                  resources.workspace + bytes * static_cast<std::size_t>(worker));
               });
}

registry::Configuration flash2_backward_configuration(const core::Problem& p, int workers) {
  const BackwardEngine* engine = backward_engine_for(p);
  if (engine == nullptr) return portable::flash2_backward_configuration(p, workers);
  const BackwardPlan plan = backward_plan(p, *engine);
  const int useful =
      static_cast<int>(std::clamp<std::int64_t>(p.batch * p.kv_heads * plan.splits, 1, workers));
  std::size_t bytes =
      partial_bytes(p, plan) + engine->worker_bytes(p, plan) * static_cast<std::size_t>(useful);
  if (p.has_grad_bias) {
    bytes = std::max(bytes, portable::flash2_backward_configuration(p, useful).workspace_bytes);
  }
  return {.block_q = plan.tile_rows,
          .block_k = plan.block_k,
          .shared_memory_bytes = 0,
          .workspace_bytes = bytes,
          .workers = useful,
          .fast_memory_bytes = static_cast<double>(caches().l2)};
}

std::string flash2_backward_details(const core::Problem& p, const registry::Configuration&) {
  const Target target = target_for(active_target(), p.dtype);
  const BackwardEngine* engine = backward_engine_for(p);
  if (engine == nullptr) return "instruction set portable";
  const BackwardPlan plan = backward_plan(p, *engine);
  return core::concat("instruction set ", name(target), ", ", plan.splits, " tasks per key/value head",
                      plan.copy_k || plan.copy_v ? ", K and V copied per task" : "");
}

void flash2_backward(const core::Problem& p, const registry::Configuration& configuration,
                     const registry::Resources& resources) {
  const BackwardEngine* engine = backward_engine_for(p);
  if (engine == nullptr) return portable::flash2_backward(p, configuration, resources);
  const BackwardPlan plan = backward_plan(p, *engine);
  std::byte* partial = resources.workspace;
  std::byte* memory = partial + partial_bytes(p, plan);
  const std::size_t bytes = engine->worker_bytes(p, plan);
  if (p.has_grad_q || p.has_grad_k || p.has_grad_v) {
    parallel_for(*resources.executor, configuration.workers, p.batch * p.kv_heads * plan.splits,
                 [&](std::int64_t task, int worker) {
                   engine->run_task(p, plan, task, memory + bytes * static_cast<std::size_t>(worker),
                                    partial);
                 });
  }
  if (p.has_grad_q && plan.splits > 1) {
    core::with_type(p.dtype, [&]<typename T>() {
      reduce_grad_q<T>(p, plan, partial, configuration.workers, *resources.executor);
    });
  }
  if (p.has_grad_bias) {  // a pass of its own: every sum of d(bias) has one owner
    core::Problem bias_only = p;
    bias_only.has_grad_q = bias_only.has_grad_k = bias_only.has_grad_v = false;
    portable::flash2_backward(bias_only, configuration, resources);
  }
}

}  // namespace tessera::cpu
