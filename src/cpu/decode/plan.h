// cpu.decode: how a problem is cut into tasks, and what an engine supplies.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/problem.h"
#include "cpu/machine/arena.h"
#include "cpu/machine/reading.h"
#include "cpu/machine/target.h"

namespace tessera::cpu {

// Keys are cut into splits, whose partial results are merged in order. The cut follows from
// head_dim and type alone, so a row's bits depend on nothing else. A task is a run of splits of a
// few key/value heads: how many only decides who computes what.
struct DecodePlan {
  std::int64_t split_keys = 0;    // keys of one partial result
  std::int64_t splits = 1;        // of the longest sequence
  std::int64_t step_keys = 0;     // keys per step: whole vectors; divides split_keys
  std::int64_t task_splits = 1;   // consecutive splits of a task
  std::int64_t split_tasks = 1;   // tasks that cover the splits of the longest sequence
  std::int64_t task_heads = 1;    // key/value heads of a task
  std::int64_t head_tasks = 1;    // tasks that cover the key/value heads
  std::int64_t rows = 0;          // queries that share a key/value head: group * longest q_length
  std::int64_t padded_v_dim = 0;  // elements of a row of a partial output: whole vectors
  bool bf16_dot = false;          // products of bf16 by vdpbf16ps
  bool passing = false;           // prefetched lines are the first to leave the caches
  bool reread = false;            // products read operands again (read_again)
};

// The plan for `workers` workers, on a target with `lanes` accumulators in a vector. How memory is
// read changes no bit of the results.
DecodePlan decode_plan(const core::Problem& p, Target target, std::int64_t lanes, int workers,
                       const Reading& reading);

// Tasks of all sequences.
std::int64_t task_count(const core::Problem& p, const DecodePlan& plan);

// One partial result for every (sequence, split, key/value head, row), in this order: heads that
// are computed together lie together (2^n bytes apart they would evict each other).
struct DecodePartials {
  void* maximum = nullptr;  // accumulators: the largest score; lowest() where nothing is visible
  void* sum = nullptr;      // accumulators: of exp(score - maximum)
  void* out = nullptr;      // accumulators, padded_v_dim per row: not normalised
};

// Takes their memory.
DecodePartials take_partials(Arena& arena, const core::Problem& p, const DecodePlan& plan);

// The kernel compiled for one instruction set.
struct DecodeOps {
  // Accumulators in a vector.
  std::int64_t (*lanes)(DType dtype);
  // The memory of a worker.
  std::size_t (*worker_bytes)(const core::Problem& p, const DecodePlan& plan);
  // Computes the partial results of a task in a worker's memory.
  void (*run_task)(const core::Problem& p, const DecodePlan& plan, std::int64_t task,
                   const DecodePartials& partials, std::byte* memory);
  // Writes out and LSE of the rows of one key/value head, number `index` of batch * kv_heads, from
  // its partial results.
  void (*merge)(const core::Problem& p, const DecodePlan& plan, std::int64_t index,
                const DecodePartials& partials);
};

}  // namespace tessera::cpu
