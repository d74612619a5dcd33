// cpu.packed: packed sequences, each by the kernel that the library chooses for it alone:
// cpu.decode for those of few queries, cpu.flash2 for the others. So a row has the same bits
// whatever is packed beside it.
//
// The short sequences come first: a task is one key/value head of one of them, which runs as a
// problem of its own, in the memory of its worker. Then cpu.flash2 runs as always and passes over
// them.
#include "cpu/packed/kernel.h"

#include <algorithm>

#include "core/base/text.h"
#include "cpu/decode/kernel.h"
#include "cpu/flash2/kernel.h"
#include "cpu/machine/parallel_for.h"

namespace tessera::cpu {
namespace {

// The one worker of a problem that is itself a task.
class InPlace final : public Executor {
 public:
  [[nodiscard]] int concurrency() const override { return 1; }
  void run(int workers, void (*body)(void*, int), void* context) override {
    for (int worker = 0; worker < workers; ++worker) body(context, worker);
  }
};

std::int64_t queries_of(const core::Problem& p, std::int64_t sequence) {
  return p.cumulative_q[sequence + 1] - p.cumulative_q[sequence];
}

// A view of the same memory that begins with another head or, for a bias, another sequence.
core::View from(core::View view, DType dtype, std::int64_t sequence, std::int64_t head) {
  if (!view) return view;
  const std::int64_t elements = sequence * view.batch_stride + head * view.head_stride;
  view.data = static_cast<std::byte*>(view.data) + elements * static_cast<std::int64_t>(size_of(dtype));
  return view;
}

// One key/value head of any of the short sequences, as large as it may be.
core::Problem largest_part(const core::Problem& p) {
  core::Problem part = p;
  part.batch = 1;
  part.q_length = std::min(p.q_length, kMostDecodeQueries);
  part.q_heads = p.kv_heads == 0 ? 0 : p.group();
  part.kv_heads = std::min<std::int64_t>(p.kv_heads, 1);
  return part;
}

// One key/value head of a sequence, with its query heads.
core::Problem part_of(const core::Problem& p, std::int64_t sequence, std::int64_t kv_head) {
  const std::int64_t head = kv_head * p.group();
  core::Problem part = largest_part(p);
  part.q_length = queries_of(p, sequence);
  part.k_length = p.cumulative_k[sequence + 1] - p.cumulative_k[sequence];
  part.cumulative_q += sequence;
  part.cumulative_k += sequence;
  part.q = from(p.q, p.dtype, 0, head);
  part.k = from(p.k, p.dtype, 0, kv_head);
  part.v = from(p.v, p.dtype, 0, kv_head);
  part.out = from(p.out, p.dtype, 0, head);
  part.lse = from(p.lse, accumulator_of(p.dtype), 0, head);
  part.bias = from(p.bias, p.bias_dtype, sequence, head);
  if (p.alibi_slopes != nullptr) part.alibi_slopes += sequence * p.alibi_batch_stride + head;
  if (p.blocks && p.blocks.heads > 1) {
    part.blocks.row_offsets += head * p.blocks.q_blocks;
    part.blocks.column_offsets += head * p.blocks.k_blocks;
    part.blocks.heads = part.q_heads;
  }
  part.origin.batch += sequence;
  part.origin.head += head;
  return part;
}

std::size_t part_bytes(const core::Problem& p) {
  return decode_configuration(largest_part(p), 1).workspace_bytes;
}

}  // namespace

bool packed_limits(const core::Problem& p, core::Reason reason) {
  return (!p.packed && reason.give("requires packed sequences")) || decode_limits(p, reason);
}

registry::Configuration packed_configuration(const core::Problem& p, int workers) {
  registry::Configuration configuration = flash2_forward_configuration(p, workers);
  const auto count = static_cast<std::size_t>(configuration.workers);
  configuration.workspace_bytes = std::max(configuration.workspace_bytes, part_bytes(p) * count);
  return configuration;
}

std::string packed_details(const core::Problem& p, const registry::Configuration& configuration) {
  return core::concat(flash2_forward_details(p, configuration), "\nsequences of at most ", kMostDecodeQueries,
                      " queries as cpu.decode computes them, the others as cpu.flash2 does");
}

void packed_forward(const core::Problem& p, const registry::Configuration& configuration,
                    const registry::Resources& resources) {
  bool any = false;
  for (std::int64_t s = 0; s < p.batch; ++s) any = any || queries_of(p, s) <= kMostDecodeQueries;
  if (any) {
    const std::size_t bytes = part_bytes(p);
    parallel_for(
        *resources.executor, configuration.workers, p.batch * p.kv_heads, [&](std::int64_t task, int worker) {
          const std::int64_t sequence = task / p.kv_heads;
          if (queries_of(p, sequence) > kMostDecodeQueries) return;
          const core::Problem part = part_of(p, sequence, task % p.kv_heads);
          InPlace in_place;
          decode_forward(part, decode_configuration(part, 1),
                         {resources.workspace + bytes * static_cast<std::size_t>(worker), &in_place});
        });
  }
  flash2_forward_longer_than(p, configuration, resources, kMostDecodeQueries);
}

}  // namespace tessera::cpu
