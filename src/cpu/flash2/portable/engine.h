// What forward and backward of cpu.flash2 share: tile sizes, tasks, and their entries for the registry.
#pragma once

#include "core/kernel.h"
#include "core/problem.h"
#include "core/task_order.h"
#include "core/visibility.h"

namespace tessera::cpu::portable {

// Queries and keys per tile: the scores (32 KiB in fp32) and the operands stay within a second-level cache.
inline constexpr std::int64_t kBlockQ = 64;
inline constexpr std::int64_t kBlockK = 128;

// How the queries (keys) of a sequence are cut into tiles; none crosses a block of the block mask.
core::Tiling query_tiling(const core::Problem& p, const core::Sequence& s);
core::Tiling key_tiling(const core::Problem& p, const core::Sequence& s);

// Tasks over the tiles of queries of every query head, and of keys of every key/value head.
core::TaskOrder query_tasks(const core::Problem& p);
core::TaskOrder key_tasks(const core::Problem& p);

// A choice with `bytes_per_worker` for each worker plus `shared_bytes`.
core::Choice flash2_choice(const core::Problem& p, int workers, std::size_t bytes_per_worker,
                           std::size_t shared_bytes);

core::Choice flash2_forward_choice(const core::Problem& p, int workers);
core::Choice flash2_backward_choice(const core::Problem& p, int workers);

void flash2_forward(const core::Problem& p, const core::Choice& choice, const core::Resources& resources);
void flash2_backward(const core::Problem& p, const core::Choice& choice, const core::Resources& resources);

}  // namespace tessera::cpu::portable
