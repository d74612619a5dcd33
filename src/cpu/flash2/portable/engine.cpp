#include "cpu/flash2/portable/engine.h"

#include <algorithm>

#include "core/base/arena.h"
#include "cpu/machine/cpu_info.h"

namespace tessera::cpu::portable {
namespace {

// The band of the longest possible sequence: it decides only in which order tasks are taken.
core::Sequence longest_sequence(const core::Problem& p) {
  core::Problem longest = p;
  longest.packed = false;
  return core::sequence(longest, 0);
}

}  // namespace

core::Tiling query_tiling(const core::Problem& p, const core::Sequence& s) {
  return {s.q_length, kBlockQ, p.blocks ? p.blocks.block_q : 0};
}

core::Tiling key_tiling(const core::Problem& p, const core::Sequence& s) {
  return {s.k_length, kBlockK, p.blocks ? p.blocks.block_k : 0};
}

core::TaskOrder query_tasks(const core::Problem& p) {
  const core::Sequence longest = longest_sequence(p);
  return {p.batch, p.q_heads, query_tiling(p, longest).count(),
          core::tile_order(longest.band, longest.q_length, longest.k_length)};
}

core::TaskOrder key_tasks(const core::Problem& p) {
  const core::Sequence longest = longest_sequence(p);
  return {p.batch, p.kv_heads, key_tiling(p, longest).count(),
          core::tile_order(longest.band.transposed(), longest.k_length, longest.q_length)};
}

core::Choice flash2_choice(const core::Problem& p, int workers, std::size_t bytes_per_worker,
                           std::size_t shared_bytes) {
  // No more workers than there can be tasks: their tiles would be allocated in vain.
  const std::int64_t tasks = std::max(query_tasks(p).count(), key_tasks(p).count());
  const int useful = static_cast<int>(std::clamp<std::int64_t>(tasks, 1, workers));
  return {.block_q = kBlockQ,
          .block_k = kBlockK,
          .shared_memory_bytes = 0,
          .workspace_bytes = core::workspace_bytes(shared_bytes, bytes_per_worker, useful),
          .workers = useful,
          .traffic_cache_bytes = static_cast<double>(caches().l2)};
}

}  // namespace tessera::cpu::portable
