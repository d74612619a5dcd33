#include "cpu/decode/plan.h"

#include <algorithm>
#include <cstdlib>

#include "core/base/float16.h"

namespace tessera::cpu {
namespace {

// Queries that share a key/value head.
std::int64_t rows_per_head(const core::Problem& p) { return p.kv_heads == 0 ? 0 : p.q_length * p.group(); }

// Bytes of K and V of one head in a split: long enough that merging is free, short enough that a
// few thousand keys occupy many threads.
constexpr std::int64_t kSplitBytes = 512 << 10;
constexpr std::int64_t kMinSplitKeys = 256;
constexpr std::int64_t kMaxSplitKeys = 4096;

// Bytes of K and V of one head in a step; meanwhile the next step is fetched to the second-level
// cache. Measured: half as much wastes time between the products, twice as much loses a tenth of
// the bandwidth.
constexpr std::int64_t kStepBytes = 32 << 10;
constexpr std::int64_t kMinStepKeys = 32;
constexpr std::int64_t kMaxStepKeys = 128;

// Elements of a vector of bf16: products of bf16 take whole vectors.
constexpr std::int64_t kBf16Lanes = 32;

// Tasks per worker: they make up for workers of unequal speed.
constexpr std::int64_t kTasksPerWorker = 8;

std::int64_t key_bytes(const core::Problem& p) {
  return (p.qk_dim + p.v_dim) * static_cast<std::int64_t>(size_of(p.dtype));
}

// The largest power of two from `least` to `most` whose K and V fit into `bytes`: steps then divide
// splits.
std::int64_t keys_within(const core::Problem& p, std::int64_t bytes, std::int64_t least, std::int64_t most) {
  std::int64_t keys = least;
  while (keys < most && 2 * keys * key_bytes(p) <= bytes) keys *= 2;
  return keys;
}

// Whether heads lie side by side within the row of a key, as in (batch, sequence, heads, head_dim).
// A task then takes them together, so that it reads memory in order.
bool heads_side_by_side(const core::View& view) {
  return std::abs(view.head_stride) < std::abs(view.row_stride);
}

}  // namespace

DecodePlan decode_plan(const core::Problem& p, Target target, std::int64_t lanes, int workers,
                       const Reading& reading) {
  DecodePlan plan;
  plan.rows = rows_per_head(p);
  // SVE's vectors may be longer than the 16 accumulators that suffice elsewhere.
  const std::int64_t padding = std::max<std::int64_t>(lanes, 16);
  plan.padded_v_dim = (p.v_dim + padding - 1) / padding * padding;
  const bool whole_vectors = p.qk_dim % kBf16Lanes == 0 && p.v_dim % kBf16Lanes == 0;
  plan.bf16_dot = whole_vectors && (target == Target::avx512_bf16 || target == Target::amx);
  plan.step_keys = keys_within(p, kStepBytes, std::max(lanes, kMinStepKeys), kMaxStepKeys);
  plan.split_keys = keys_within(p, kSplitBytes, kMinSplitKeys, kMaxSplitKeys);
  plan.splits = std::max<std::int64_t>((p.k_length + plan.split_keys - 1) / plan.split_keys, 1);
  plan.task_heads = heads_side_by_side(p.k) && heads_side_by_side(p.v) ? p.kv_heads : 1;
  // Fewer heads together where there would be fewer tasks than workers.
  while (plan.task_heads > 1 && p.batch * plan.splits * (p.kv_heads / plan.task_heads) < workers) {
    plan.task_heads = (plan.task_heads + 1) / 2;
  }
  plan.passing = reading.passing;
  plan.reread = p.batch * p.kv_heads * p.k_length * key_bytes(p) > reading.cached_bytes;
  plan.head_tasks = (p.kv_heads + plan.task_heads - 1) / plan.task_heads;
  const std::int64_t whole = std::max<std::int64_t>(p.batch * plan.head_tasks, 1);
  const std::int64_t wanted = std::min(plan.splits, (kTasksPerWorker * workers + whole - 1) / whole);
  plan.task_splits = (plan.splits + wanted - 1) / wanted;
  plan.split_tasks = (plan.splits + plan.task_splits - 1) / plan.task_splits;
  return plan;
}

std::int64_t task_count(const core::Problem& p, const DecodePlan& plan) {
  return p.batch * plan.head_tasks * plan.split_tasks;
}

DecodePartials take_partials(Arena& arena, const core::Problem& p, const DecodePlan& plan) {
  auto take = [&](std::int64_t columns) -> void* {
    return core::with_type(p.dtype, [&]<typename T>() -> void* {
      return arena.take<core::Accumulator<T>>(p.batch, p.kv_heads, plan.splits, plan.rows, columns);
    });
  };
  void *const maximum = take(1), *const sum = take(1);
  return {maximum, sum, take(plan.padded_v_dim)};
}

}  // namespace tessera::cpu
