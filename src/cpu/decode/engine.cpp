// cpu.decode for every vector instruction set: head_dim in the lanes, keys and values where they
// lie.
//
//   S = Q K^T              a block of rows x keys in registers; a tree of shuffles sums its lanes
//   P = exp(S - max)       keys in the lanes, one row after the other
//   O += P V               scalars of P broadcast, columns in the lanes
//
// All queries that share a key/value head are taken together, so K and V come from memory once and
// are converted in registers. The work is a sequence of steps: `step_keys` keys of one head, with
// the heads inside where they lie side by side. While a step computes, the lines of the next one
// are fetched to the second-level cache, evenly and in the order of their addresses: a core has too
// few buffers for misses to wait for each other, and bursts of prefetches stall the loads behind
// them.
//
// Per step:  multiply_qk -> score_row (only if needed) -> hide -> online_softmax -> dropout_row ->
// multiply_pv (with rescale).  The state of a row lives in its partial result.
//
// A row's result does not depend on the rows beside it: every register block adds the same sums in
// the same order.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/decode/engine.cpp"  // NOLINT(build/include)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "core/visibility.h"
#include "cpu/decode/bf16-inl.h"
#include "cpu/decode/plan.h"
#include "cpu/decode/rows-inl.h"
#include "cpu/flash2/vector/row_scores-inl.h"
#include "cpu/head_view.h"
#include "cpu/machine/arena.h"

#if HWY_TARGET != HWY_SCALAR  // cpu.decode requires vectors
HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

// The memory of one worker.
template <typename A>
struct DecodeMemory {
  A* q;      // key/value heads x rows x slots of d_qk: scaled queries
  A* s;      // rows x step_keys: scores, then probabilities
  A* alpha;  // per row: factor for what was accumulated before the step

  DecodeMemory(Arena& arena, const core::Problem& p, const DecodePlan& plan)
      : q(arena.take<A>(p.kv_heads, plan.rows, Slots<A>(p.qk_dim).padded())),
        s(arena.take<A>(plan.rows, plan.step_keys)),
        alpha(arena.take<A>(plan.rows)) {}
};

// The partial results of the rows of one key/value head and one split.
template <typename A>
struct PartialRows {
  A* maximum;
  A* sum;
  A* out;

  PartialRows(const core::Problem& p, const DecodePlan& plan, const DecodePartials& partials,
              std::int64_t sequence, std::int64_t kv_head, std::int64_t split) {
    const std::int64_t row = ((sequence * plan.splits + split) * p.kv_heads + kv_head) * plan.rows;
    maximum = static_cast<A*>(partials.maximum) + row;
    sum = static_cast<A*>(partials.sum) + row;
    out = static_cast<A*>(partials.out) + row * plan.padded_v_dim;
  }
};

// A run of splits of a few key/value heads of one sequence.
template <typename T>
class DecodeTask {
  using A = core::Accumulator<T>;
  static constexpr bool kHasBf16 = kCompiledBf16Dot && std::is_same_v<T, core::BFloat16>;

 public:
  DecodeTask(const core::Problem& p, const DecodePlan& plan, const DecodePartials& partials,
             const DecodeMemory<A>& memory, std::int64_t sequence, std::int64_t first_head)
      : p_(p),
        plan_(plan),
        partials_(partials),
        t_(memory),
        s_(core::sequence(p, sequence)),
        first_head_(first_head),
        heads_(std::min(plan.task_heads, p.kv_heads - first_head)),
        rows_(s_.q_length * p.group()),
        qk_(p.qk_dim),
        v_(p.v_dim),
        visible_(core::visible_range(s_.band, 0, s_.q_length, s_.k_length)),
        masked_(s_.band.bounded() || p.blocks || p.has_visible),
        features_(p.softcap != 0 || p.has_bias || p.alibi_slopes != nullptr),
        whole_rows_(!p.blocks && heads_fill_rows(p.k, p.qk_dim) && heads_fill_rows(p.v, p.v_dim)),
        dot_(kHasBf16 && kCompiledBf16Dot && plan.bf16_dot) {}

  // Leaves the partial results of the splits [first, end).
  void run(std::int64_t first, std::int64_t end) {
    end = std::min(end, (s_.k_length + plan_.split_keys - 1) / plan_.split_keys);
    if (rows_ == 0 || first >= end) return;
    load_queries();
    end_step_ = (std::min(end * plan_.split_keys, s_.k_length) + plan_.step_keys - 1) / plan_.step_keys;
    const std::int64_t split_steps = plan_.split_keys / plan_.step_keys;
    Step step{first * split_steps, 0};
    if (!sees(step)) step = next(step);
    for (std::int64_t split = first; split < end; ++split) {
      computed_ = {0, rows_};
      for (std::int64_t h = 0; h < heads_; ++h) clear(partial(h, split));
      const std::int64_t split_end = std::min((split + 1) * split_steps, end_step_);
      while (step.index < split_end) {
        const Step ahead = next(step);
        compute(step, split, ahead, false);
        step = ahead;
      }
      for (std::int64_t h = 0; h < heads_; ++h) {
        for (std::int64_t r = 0; r < rows_; ++r) {
          if (!finite(partial(h, split), r)) compute_skipping_zeros(h, split, split_end, r);
        }
      }
    }
  }

 private:
  // Keys [index * step_keys, ...) of head number `head` of the task.
  struct Step {
    std::int64_t index;
    std::int64_t head;
  };

  core::Interval keys_of(const Step& step) const {
    const std::int64_t begin = step.index * plan_.step_keys;
    return {begin, std::min(begin + plan_.step_keys, s_.k_length)};
  }

  PartialRows<A> partial(std::int64_t head, std::int64_t split) const {
    return PartialRows<A>(p_, plan_, partials_, s_.index, first_head_ + head, split);
  }

  // Row r of a head is query r % q_length of the group's query head r / q_length.
  std::int64_t q_head(std::int64_t head, std::int64_t row) const {
    return (first_head_ + head) * p_.group() + row / s_.q_length;
  }

  // The first later step that any row sees; past the end when there is none.
  Step next(Step step) const {
    do {
      if (++step.head == heads_) step = {step.index + 1, 0};
    } while (step.index < end_step_ && !sees(step));
    return step;
  }

  bool sees(const Step& step) const {
    if (!masked_) return true;
    const core::Interval keys = keys_of(step);
    if (visible_.kind(keys.begin, keys.end) == core::TileKind::skip) return false;
    if (!p_.blocks && !p_.has_visible) return true;
    const std::int64_t rows = p_.blocks ? p_.blocks.block_q : s_.q_length;
    for (std::int64_t g = 0; g < masks(); ++g) {
      for (std::int64_t i = 0; i < s_.q_length; i += rows - i % rows) {
        const core::Interval queries{i, std::min(i + rows - i % rows, s_.q_length)};
        const std::int64_t q_head = (first_head_ + step.head) * p_.group() + g;
        if (core::any_visible(core::visible_keys(p_, s_, q_head, queries), keys)) return true;
      }
    }
    return false;
  }

  // Query heads of a group that may have masks of their own.
  std::int64_t masks() const { return p_.blocks.heads == 1 && p_.visible_heads == 1 ? 1 : p_.group(); }

  void load_queries() {
    for (std::int64_t h = 0; h < heads_; ++h) {
      for (std::int64_t r = 0; r < rows_; ++r) {
        const T* from = p_.q.row<const T>(s_.tensor_batch, q_head(h, r), s_.q_begin + r % s_.q_length);
        if (dot_) std::memcpy(bf16_query(h, r), from, static_cast<std::size_t>(p_.qk_dim) * sizeof(T));
        else qk_.load(from, static_cast<A>(p_.scale), query(h, r));
      }
    }
  }

  A* query(std::int64_t head, std::int64_t row) const { return t_.q + (head * rows_ + row) * qk_.padded(); }

  T* bf16_query(std::int64_t head, std::int64_t row) const {
    return reinterpret_cast<T*>(t_.q) + (head * rows_ + row) * p_.qk_dim;
  }

  // The rows that are computed now.
  void clear(const PartialRows<A>& rows) const {
    const std::int64_t count = computed_.length();
    std::fill_n(rows.maximum + computed_.begin, count, std::numeric_limits<A>::lowest());
    std::fill_n(rows.sum + computed_.begin, count, A{0});
    std::memset(rows.out + computed_.begin * plan_.padded_v_dim, 0,
                static_cast<std::size_t>(count * plan_.padded_v_dim) * sizeof(A));
  }

  bool finite(const PartialRows<A>& rows, std::int64_t r) const {
    return all_finite(rows.out + r * plan_.padded_v_dim, v_.padded());
  }

  // Computes a row again with a product that skips zeros: a NaN or an infinity among the values may
  // have reached the row as 0 * NaN, although it does not see it. This row alone: the product
  // rounds differently, and a non-finite value in one query head must not change a bit of another.
  void compute_skipping_zeros(std::int64_t head, std::int64_t split, std::int64_t split_end,
                              std::int64_t row) {
    computed_ = {row, row + 1};
    clear(partial(head, split));
    for (std::int64_t i = split * plan_.split_keys / plan_.step_keys; i < split_end; ++i) {
      const Step step{i, head};
      if (sees(step)) compute(step, split, {end_step_, 0}, true);
    }
  }

  void compute(const Step& step, std::int64_t split, const Step& ahead, bool skip_zeros) {
    const core::Interval keys = keys_of(step);
    const PartialRows<A> rows = partial(step.head, split);
    Prefetch during_qk, during_pv;
    if (!skip_zeros) plan_prefetches(step, ahead, during_qk, during_pv);
    all_seen_ = !masked_ || sees_all(step, keys);
    multiply_qk(step, keys, during_qk);
    for (std::int64_t r = computed_.begin; r < computed_.end; ++r) finish_row(step, keys, r, rows);
    multiply_pv(step, keys, rows, during_pv, skip_zeros);
  }

  // What to fetch while a step computes. One head: its V, then K of the next step. Heads side by
  // side: a share of the whole rows that all heads need at the next index, so that addresses ascend
  // without gaps.
  void plan_prefetches(const Step& step, const Step& ahead, Prefetch& during_qk, Prefetch& during_pv) const {
    if (whole_rows_) {
      during_qk = share_of_rows(p_.k, p_.qk_dim, {step.index + 1, step.head});
      during_pv = share_of_rows(p_.v, p_.v_dim, {step.index + 1, step.head});
      share_of_rows(p_.k, p_.qk_dim, {step.index + 2, step.head}).touch_pages();
      share_of_rows(p_.v, p_.v_dim, {step.index + 2, step.head}).touch_pages();
      return;
    }
    during_qk = rows_of_step(p_.v, p_.v_dim, step);
    during_pv = rows_of_step(p_.k, p_.qk_dim, ahead);
    if (heads_ > 1) return;
    rows_of_step(p_.k, p_.qk_dim, {step.index + kPagesAhead, step.head}).touch_pages();
    rows_of_step(p_.v, p_.v_dim, {step.index + kPagesAhead, step.head}).touch_pages();
  }
  static constexpr std::int64_t kPagesAhead = 4;

  Prefetch rows_of_step(const core::View& view, std::int64_t dim, const Step& step) const {
    if (step.index >= end_step_) return {};
    const core::Interval keys = keys_of(step);
    return Prefetch(key_row(view, step.head, keys.begin), dim, view.row_stride, keys.length(), plan_.passing);
  }

  Prefetch share_of_rows(const core::View& view, std::int64_t dim, const Step& step) const {
    if (step.index >= end_step_) return {};
    const core::Interval keys = keys_of(step);
    const std::int64_t count = keys.length();
    const std::int64_t begin = step.head * count / heads_, end = (step.head + 1) * count / heads_;
    return Prefetch(key_row(view, 0, keys.begin + begin), (heads_ - 1) * view.head_stride + dim,
                    view.row_stride, end - begin, plan_.passing);
  }

  // Whether the heads of the task fill the rows of all keys.
  bool heads_fill_rows(const core::View& view, std::int64_t dim) const {
    return heads_ > 1 && view.head_stride >= dim && view.head_stride < 2 * dim &&
           view.row_stride >= heads_ * view.head_stride;
  }

  const T* key_row(const core::View& view, std::int64_t head, std::int64_t key) const {
    return view.row<const T>(s_.tensor_batch, first_head_ + head, s_.k_begin + key);
  }

  template <typename Body>
  HWY_INLINE void for_each_computed_block(const Body& body) const {
    for_each_block_of_rows<A>(computed_.length(),
                              [&](auto count, std::int64_t r) HWY_ATTR { body(count, computed_.begin + r); });
  }

  // s = q k for the rows, a block of them at a time; the first one fetches what comes next.
  void multiply_qk(const Step& step, const core::Interval& keys, Prefetch& ahead) {
    for_each_computed_block([&](auto count, std::int64_t r) HWY_ATTR {
      constexpr int kCount = decltype(count)::value;
      const core::Interval seen = keys_seen_by(r, kCount, keys);
      const Keys<T> k{key_row(p_.k, step.head, seen.begin), p_.k.row_stride, seen.length()};
      A* s = t_.s + r * plan_.step_keys + (seen.begin - keys.begin);
      if constexpr (kHasBf16) {
        if (dot_) {
          return score_rows_bf16<kCount>(k, p_.qk_dim, bf16_query(step.head, r), static_cast<float>(p_.scale),
                                         s, plan_.step_keys, ahead);
        }
      }
      if constexpr (kCanReread<T>) {
        if (plan_.reread) {
          return score_rows<kCount, true>(k, qk_, query(step.head, r), s, plan_.step_keys, ahead);
        }
      }
      score_rows<kCount, false>(k, qk_, query(step.head, r), s, plan_.step_keys, ahead);
    });
  }

  // The part of `keys` outside which the band hides every key from rows [r, r + count). It begins
  // with a whole register block.
  core::Interval keys_seen_by(std::int64_t r, std::int64_t count, const core::Interval& keys) const {
    if (all_seen_) return keys;
    const std::int64_t i = r % s_.q_length;
    const bool one_head = i + count <= s_.q_length;
    const core::VisibleRange seen = core::visible_part(
        s_.band, one_head ? core::Interval{i, i + count} : core::Interval{0, s_.q_length}, keys);
    return {seen.begin - (seen.begin - keys.begin) % kScores<A>, seen.end};
  }

  // Scores of a row become probabilities: features, mask, online softmax, dropout.
  void finish_row(const Step& step, const core::Interval& keys, std::int64_t r, const PartialRows<A>& rows) {
    A* s = t_.s + r * plan_.step_keys;
    const std::int64_t count = keys.length();
    const std::int64_t i = r % s_.q_length;
    if (features_) {
      score_row<A>(HeadView(p_, s_.index, q_head(step.head, r)), i, keys, s, nullptr,
                   core::kMinusInfinity<A>);
    }
    if (!all_seen_) {
      const core::VisibleRange seen = core::visible_part(s_.band, {i, i + 1}, keys);
      hide_outside(s, count, seen.begin - keys.begin, seen.end - keys.begin);
      if (p_.blocks || p_.has_visible) hide_masked(step, keys, r, s);
    } else if (count % lanes<A>() != 0) {
      hide_outside(s, count, 0, count);
    }
    t_.alpha[r] = online_softmax(s, count, rows.maximum[r], rows.sum[r]);
    if (p_.dropout) dropout_row(HeadView(p_, s_.index, q_head(step.head, r)), i, keys, s);
  }

  // Whether every row sees all of the keys: a single query under a causal mask always does.
  bool sees_all(const Step& step, const core::Interval& keys) const {
    if (p_.blocks || visible_.kind(keys.begin, keys.end) != core::TileKind::full) return false;
    bool all = true;
    for (std::int64_t g = 0; g < masks() && all && p_.has_visible; ++g) {
      const std::int64_t q_head = (first_head_ + step.head) * p_.group() + g;
      all = core::all_visible(core::visible_groups(p_.visible_summary, s_, q_head, {0, s_.q_length}), keys);
    }
    return all;
  }

  // Scores become -inf where the block mask or the boolean mask hides the key.
  void hide_masked(const Step& step, const core::Interval& keys, std::int64_t r, A* s) const {
    const std::int64_t i = r % s_.q_length;
    std::int64_t at = keys.begin;
    auto hide_until = [&](std::int64_t until) {
      std::fill(s + (at - keys.begin), s + (until - keys.begin), core::kMinusInfinity<A>);
    };
    core::for_each_tile(core::visible_keys(p_, s_, q_head(step.head, r), {i, i + 1}), keys, keys.length(),
                        [&](const core::TileRange& visible) {
                          hide_until(visible.begin);
                          if (visible.mixed) hide_elements(q_head(step.head, r), i, keys.begin, visible, s);
                          at = visible.end;
                        });
    hide_until(keys.end);
  }

  // The same where the boolean mask hides some of `part`, element by element.
  void hide_elements(std::int64_t q_head, std::int64_t i, std::int64_t first, const core::Interval& part,
                     A* s) const {
    const auto* visible = p_.visible.row<const std::uint8_t>(s_.index, q_head, i);
    for (std::int64_t j = part.begin; j < part.end; ++j) {
      if (visible[j] == 0) s[j - first] = core::kMinusInfinity<A>;
    }
  }

  // o = alpha o + p v, a block of rows at a time.
  void multiply_pv(const Step& step, const core::Interval& keys, const PartialRows<A>& rows, Prefetch& ahead,
                   bool skip_zeros) {
    for_each_computed_block([&](auto count, std::int64_t r) HWY_ATTR {
      constexpr int kCount = decltype(count)::value;
      // A product of bf16 rounds differently where it skips zeros: then all rows take all keys.
      const core::Interval seen = dot_ || skip_zeros ? keys : keys_seen_by(r, kCount, keys);
      const Keys<T> v{key_row(p_.v, step.head, seen.begin), p_.v.row_stride, seen.length()};
      const A* p = t_.s + r * plan_.step_keys + (seen.begin - keys.begin);
      const ValueBlock<A> block{p, plan_.step_keys, t_.alpha + r, rows.out + r * plan_.padded_v_dim,
                                plan_.padded_v_dim};
      if (skip_zeros) return add_values_skipping_zeros<kCount>(v, v_, block);
      if constexpr (kHasBf16) {
        if (dot_) {
          for (int x = 0; x < kCount; ++x) round_to_bf16(t_.s + (r + x) * plan_.step_keys, plan_.step_keys);
          return add_values_bf16<kCount>(v, p_.v_dim, block, ahead);
        }
      }
      if constexpr (kCanReread<T>) {
        if (plan_.reread) return add_values<kCount, true>(v, v_, block, ahead);
      }
      add_values<kCount, false>(v, v_, block, ahead);
    });
  }

  const core::Problem& p_;
  const DecodePlan& plan_;
  const DecodePartials& partials_;
  const DecodeMemory<A>& t_;
  core::Sequence s_;
  std::int64_t first_head_;
  std::int64_t heads_;
  std::int64_t rows_;
  core::Interval computed_{};  // of the rows: all of them, or one that is computed again
  Slots<A> qk_, v_;
  core::VisibleRange visible_;  // to any row
  bool masked_;
  bool all_seen_ = true;  // every row sees all keys of the step
  bool features_;
  bool whole_rows_;  // prefetch them for all heads
  bool dot_;         // products of bf16 by vdpbf16ps
  std::int64_t end_step_ = 0;
};

// out = sum of exp(maximum - largest) o / sum of exp(maximum - largest) sum over the splits, in
// order.
template <typename T>
void merge_rows(const core::Problem& p, const DecodePlan& plan, std::int64_t index,
                const DecodePartials& partials) {
  using A = core::Accumulator<T>;
  const Tag<A> d;
  const std::int64_t sequence = index / p.kv_heads, kv_head = index % p.kv_heads;
  const core::Sequence s = core::sequence(p, sequence);
  const std::int64_t splits = (s.k_length + plan.split_keys - 1) / plan.split_keys;
  const Slots<A> slots(p.v_dim);
  alignas(64) A merged[256 + hn::MaxLanes(Tag<A>())];
  for (std::int64_t r = 0; r < s.q_length * p.group(); ++r) {
    A largest = std::numeric_limits<A>::lowest(), sum = 0;
    A* row = merged;
    if (splits == 1) {
      const PartialRows<A> whole(p, plan, partials, sequence, kv_head, 0);
      largest = whole.maximum[r], sum = whole.sum[r], row = whole.out + r * plan.padded_v_dim;
    } else {
      for (std::int64_t x = 0; x < splits; ++x) {
        largest = std::max(largest, PartialRows<A>(p, plan, partials, sequence, kv_head, x).maximum[r]);
      }
      std::memset(row, 0, static_cast<std::size_t>(slots.padded()) * sizeof(A));
    }
    for (std::int64_t x = 0; splits > 1 && x < splits; ++x) {
      const PartialRows<A> part(p, plan, partials, sequence, kv_head, x);
      const A weight = std::exp(part.maximum[r] - largest);
      sum += weight * part.sum[r];
      const A* from = part.out + r * plan.padded_v_dim;
      for (std::int64_t c = 0; c < slots.padded(); c += lanes<A>()) {
        const Vector<A> old = hn::LoadU(d, row + c);
        hn::StoreU(hn::MulAdd(hn::Set(d, weight), hn::LoadU(d, from + c), old), d, row + c);
      }
    }
    slots.compact(row);
    const std::int64_t q_head = kv_head * p.group() + r / s.q_length, i = s.q_begin + r % s.q_length;
    store_row(row, p.v_dim, sum == 0 ? A{0} : A{1} / sum, p.out.row<T>(s.tensor_batch, q_head, i));
    if (p.has_lse) {
      *p.lse.row<A>(s.tensor_batch, q_head, i) = sum == 0 ? core::kMinusInfinity<A> : largest + std::log(sum);
    }
  }
}

extern const DecodeOps kDecodeOps;
constinit const DecodeOps kDecodeOps{
    .lanes =
        [](DType dtype) {
          return core::with_type(dtype, []<typename T>() HWY_ATTR { return lanes<core::Accumulator<T>>(); });
        },
    .worker_bytes =
        [](const core::Problem& p, const DecodePlan& plan) {
          Arena arena;
          core::with_type(p.dtype,
                          [&]<typename T>() HWY_ATTR { DecodeMemory<core::Accumulator<T>>(arena, p, plan); });
          return arena.used();
        },
    .run_task =
        [](const core::Problem& p, const DecodePlan& plan, std::int64_t task, const DecodePartials& partials,
           std::byte* bytes) {
          core::with_type(p.dtype, [&]<typename T>() HWY_ATTR {
            Arena arena(bytes);
            const DecodeMemory<core::Accumulator<T>> memory(arena, p, plan);
            const std::int64_t first = task % plan.split_tasks * plan.task_splits;
            const std::int64_t heads = task / plan.split_tasks;
            DecodeTask<T>(p, plan, partials, memory, heads / plan.head_tasks,
                          heads % plan.head_tasks * plan.task_heads)
                .run(first, first + plan.task_splits);
          });
        },
    .merge =
        [](const core::Problem& p, const DecodePlan& plan, std::int64_t index,
           const DecodePartials& partials) {
          core::with_type(p.dtype, [&]<typename T>() HWY_ATTR { merge_rows<T>(p, plan, index, partials); });
        }};

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
