// cpu.flash1: how a problem is cut, and what an engine supplies.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/problem.h"

namespace tessera::cpu {

// Blocks of keys are outside, tiles of queries inside.
struct Flash1Plan {
  std::int64_t tile_rows = 0;  // queries per tile: the lanes of a few vectors
  std::int64_t block_k =
      0;  // keys and values (backward: and their gradients) that stay while all queries pass by
  std::int64_t step_keys = 0;  // keys per step within a block
};

Flash1Plan flash1_forward_plan(const core::Problem& p, std::int64_t tile_rows, std::int64_t l2_bytes);
Flash1Plan flash1_backward_plan(const core::Problem& p, std::int64_t tile_rows, std::int64_t l2_bytes);

// The kernels compiled for one instruction set. A worker's memory is linear in the number of
// queries. Forward tasks are the query heads of all sequences; a backward task is a key/value head
// with the query heads of its group.
struct Flash1ForwardOps {
  std::int64_t (*tile_rows)(DType dtype);
  std::size_t (*worker_bytes)(const core::Problem& p, const Flash1Plan& plan);
  void (*run_task)(const core::Problem& p, const Flash1Plan& plan, std::int64_t task, std::byte* memory);
};

struct Flash1BackwardOps {
  std::int64_t (*tile_rows)(DType dtype);
  std::size_t (*worker_bytes)(const core::Problem& p, const Flash1Plan& plan);
  void (*run_task)(const core::Problem& p, const Flash1Plan& plan, std::int64_t task, std::byte* memory);
};

}  // namespace tessera::cpu
