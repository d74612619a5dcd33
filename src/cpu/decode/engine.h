// cpu.decode on vectors: how a problem is cut, and the entry points of each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/problem.h"
#include "cpu/machine/target.h"

namespace tessera::cpu {

// Keys are cut into splits, whose partial results are merged in order; the cut follows from head_dim and type
// alone, so that a row's bits depend on nothing else. A task is a run of splits of a few key/value heads: how
// many only decides who computes what.
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
};

// One partial result for every (sequence, split, key/value head, row), in this order: heads that are computed
// together lie together (2^n bytes apart they would evict each other).
struct DecodePartials {
  void* maximum = nullptr;  // accumulators: the largest score; lowest() where nothing is visible
  void* sum = nullptr;      // accumulators: of exp(score - maximum)
  void* out = nullptr;      // accumulators, padded_v_dim per row: not normalised
};

// The kernel compiled for one instruction set.
struct DecodeEngine {
  // Lanes of a vector of accumulators.
  std::int64_t (*lanes)(bool fp64);
  // Memory that a worker needs.
  std::size_t (*worker_bytes)(const core::Problem& p, const DecodePlan& plan);
  // Computes the partial results of task `task` of batch * head_tasks * split_tasks, in a worker's memory.
  void (*run_task)(const core::Problem& p, const DecodePlan& plan, std::int64_t task,
                   const DecodePartials& partials, std::byte* memory);
  // Makes out and LSE of the rows of one key/value head, number `index` of batch * kv_heads, of its partials.
  void (*merge)(const core::Problem& p, const DecodePlan& plan, std::int64_t index,
                const DecodePartials& partials);
};

// Null for Target::portable.
const DecodeEngine* decode_engine(Target target);

}  // namespace tessera::cpu
