// cpu.packed gives each packed sequence to the kernel that the library would choose for it alone:
// cpu.decode for few queries, cpu.flash2 for the others. A row therefore has the same bits whatever
// is packed beside it.
//
// The short sequences come first. A task is one key/value head of one of them; its worker computes
// it as a separate problem in its own memory. Then cpu.flash2 runs over all sequences and skips the
// short ones.
#include "cpu/packed/kernel.h"

#include <algorithm>

#include "core/base/text.h"
#include "cpu/decode/kernel.h"
#include "cpu/flash2/kernel.h"
#include "cpu/machine/parallel_for.h"

namespace tessera::cpu {
namespace {

// Runs everything in the current thread: a task is a whole problem with one worker.
class InPlace final : public Executor {
 public:
  [[nodiscard]] int concurrency() const override { return 1; }
  void run(int workers, void (*body)(void*, int), void* context) override {
    for (int worker = 0; worker < workers; ++worker) body(context, worker);
  }
};

// Whether a sequence goes to cpu.decode, as it does alone.
bool is_short(const core::Problem& p, std::int64_t sequence) {
  const core::Sequence s = core::sequence(p, sequence);
  return prefers_decode(p.dtype, s.q_length, s.k_length);
}

// The view from another head on or, for a bias and a boolean mask, another sequence.
core::View from(core::View view, DType dtype, std::int64_t sequence, std::int64_t head) {
  if (!view) return view;
  const std::int64_t elements = sequence * view.batch_stride + head * view.head_stride;
  view.data = static_cast<std::byte*>(view.data) + elements * static_cast<std::int64_t>(size_of(dtype));
  return view;
}

// The largest problem that a key/value head of a short sequence can be.
core::Problem largest_part(const core::Problem& p) {
  core::Problem part = p;
  part.batch = 1;
  part.q_length = std::min(p.q_length, kMostDecodeQueries);
  part.q_heads = p.kv_heads == 0 ? 0 : p.group();
  part.kv_heads = std::min<std::int64_t>(p.kv_heads, 1);
  part.visible_batch = 1;
  part.visible_heads = p.visible_heads == 1 ? 1 : part.q_heads;
  part.visible_rows = p.visible_rows == 1 ? 1 : part.q_length;
  return part;
}

// The problem of one key/value head of a sequence, with its query heads.
core::Problem part_of(const core::Problem& p, std::int64_t sequence, std::int64_t kv_head) {
  const std::int64_t head = kv_head * p.group();
  core::Problem part = largest_part(p);
  const core::Sequence s = core::sequence(p, sequence);
  part.q_length = s.q_length;
  part.k_length = s.k_length;
  part.visible_rows = p.visible_rows == 1 ? 1 : s.q_length;
  part.cumulative_q += sequence;
  part.cumulative_k += sequence;
  part.q = from(p.q, p.dtype, 0, head);
  part.k = from(p.k, p.dtype, 0, kv_head);
  part.v = from(p.v, p.dtype, 0, kv_head);
  part.out = from(p.out, p.dtype, 0, head);
  part.lse = from(p.lse, accumulator_of(p.dtype), 0, head);
  part.bias = from(p.bias, p.bias_dtype, sequence, head);
  part.visible = from(p.visible, DType::boolean, sequence, head);
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

struct Decision {
  Target target{};                 // that cpu.decode is compiled for
  Flash2ForwardDecision longer{};  // for the sequences that are not short
  std::size_t part_bytes = 0;      // workspace of a short one's problem
};

}  // namespace

std::optional<core::Choice> choose_packed(const core::Problem& p, int workers, core::Reason reason) {
  if (!p.packed) return reason.decline("requires packed sequences");
  const std::optional<core::Choice> shorter = choose_decode(largest_part(p), 1, reason);
  if (!shorter) return std::nullopt;
  core::Choice choice = *choose_flash2_forward(p, workers, reason);
  const Decision d{.target = active_target(),
                   .longer = choice.decision.as<Flash2ForwardDecision>(),
                   .part_bytes = shorter->workspace_bytes};
  const auto count = static_cast<std::size_t>(choice.workers);
  choice.workspace_bytes = std::max(choice.workspace_bytes, d.part_bytes * count);
  choice.decision = d;
  return choice;
}

std::string packed_details(const core::Problem&, const core::Choice& choice) {
  return core::concat(describe(choice.decision.as<Decision>().longer), "\nsequences of at most ",
                      kFewDecodeQueries, " queries as cpu.decode computes them, of at most ",
                      kMostDecodeQueries, " with many keys, too; the others as cpu.flash2 does");
}

void run_packed(const core::Problem& p, const core::Choice& choice, const core::Resources& resources) {
  const auto d = choice.decision.as<Decision>();
  bool any = false;
  for (std::int64_t s = 0; s < p.batch; ++s) any = any || is_short(p, s);
  if (any) {
    parallel_for(
        *resources.executor, choice.workers, p.batch * p.kv_heads, [&](std::int64_t task, int worker) {
          const std::int64_t sequence = task / p.kv_heads;
          if (!is_short(p, sequence)) return;
          const core::Problem part = part_of(p, sequence, task % p.kv_heads);
          InPlace in_place;
          run_decode(part, choose_decode(part, 1, d.target),
                     {resources.workspace + d.part_bytes * static_cast<std::size_t>(worker), &in_place});
        });
  }
  run_flash2_forward(p, d.longer, resources, is_short);
}

}  // namespace tessera::cpu
