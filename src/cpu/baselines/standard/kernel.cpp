// cpu.standard, the baseline: attention as a framework computes it without a fused
// kernel. Each pass works on the whole N x N matrix of every head, which is stored
// in memory. OpenBLAS multiplies. A bar separates two passes:
//
//   forward    S = scale Q K^T  |  softcap, bias, ALiBi, mask, softmax in place  |  dropout
//              |  O = P V
//   backward   S = scale Q K^T, dP = dO V^T  |  P = exp(S - LSE), dS  |  d(bias)
//              |  softcap's derivative  |  dQ = scale dS K  |  dK = scale dS^T Q, dV = P^T dO
//
// Traffic: Theta(N d + N^2) per head. A task is a panel of rows of one head and OpenBLAS uses only
// the thread of its task. So every element has one owner, and the result is bitwise
// the same for any number of threads.
#include "cpu/baselines/standard/kernel.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/base/text.h"
#include "core/visibility.h"
#include "cpu/baselines/standard/blas.h"
#include "cpu/baselines/standard/softmax_rows.h"
#include "cpu/engine.h"
#include "cpu/head_view.h"
#include "cpu/machine/arena.h"
#include "cpu/machine/cpu_info.h"
#include "cpu/machine/parallel_for.h"
#include "cpu/rows.h"

namespace tessera::cpu {
namespace {

using core::Accumulator;
using core::Element;
using core::Interval;

constexpr std::int64_t kPanel = 256;

// The matrices of all heads. Some are empty in forward and without softcap.
template <typename A>
struct Matrices {
  A* p = nullptr;               // scores, then probabilities
  A* ds = nullptr;              // dP, then dS (backward)
  A* cap_derivative = nullptr;  // backward with softcap

  Matrices(Arena& arena, const core::Problem& problem) {
    const bool backward = problem.direction == Direction::backward;
    auto take = [&](bool exists) {
      return arena.take<A>(exists ? problem.batch : 0, problem.q_heads, problem.q_length, problem.k_length);
    };
    p = take(true);
    ds = take(backward);
    cap_derivative = take(backward && problem.softcap != 0);
  }
};

// Contiguous copies of the operands of one task.
template <typename A>
struct Scratch {
  A *q, *k, *v, *grad_out, *first, *second;

  Scratch(Arena& arena, const core::Problem& p)
      : q(arena.take<A>(p.q_length * p.qk_dim)),
        k(arena.take<A>(p.k_length * p.qk_dim)),
        v(arena.take<A>(p.k_length * p.v_dim)),
        grad_out(arena.take<A>(p.direction == Direction::forward ? 0 : p.q_length * p.v_dim)),
        first(arena.take<A>(kPanel * std::max(p.qk_dim, p.v_dim))),
        second(arena.take<A>(kPanel * p.v_dim)) {}
};

struct Decision {
  Target target{};
  const SoftmaxRowsOps* rows = nullptr;
  std::size_t worker_bytes = 0;  // behind the matrices
};

template <typename T>
class Standard {
  using A = Accumulator<T>;

 public:
  Standard(const core::Problem& p, const core::Choice& choice, const core::Resources& resources)
      : p_(p),
        workers_(choice.workers),
        resources_(resources),
        worker_bytes_(choice.decision.as<Decision>().worker_bytes),
        rows_(choice.decision.as<Decision>().rows->rows<A>()),
        shared_(resources.workspace),
        m_(shared_, p),
        worker_memory_(resources.workspace + shared_.used()) {}

  static std::size_t matrix_bytes(const core::Problem& p) {
    Arena arena;
    Matrices<A>(arena, p);
    return arena.used();
  }

  static std::size_t worker_bytes(const core::Problem& p) {
    Arena arena;
    Scratch<A>(arena, p);
    return arena.used();
  }

  void forward() {
    scores();
    softmax();
    if (p_.dropout) dropout();
    output();
  }

  void backward() {
    scores();
    probability_gradient();
    score_gradient();
    if (p_.has_grad_bias) grad_bias();
    if (p_.softcap != 0) apply_cap_derivative();
    if (p_.has_grad_q) grad_q();
    if (p_.has_grad_k || p_.has_grad_v) grad_kv();
  }

 private:
  // ---- tasks and memory -------------------------------------------------------------------------

  Scratch<A> scratch_of(int worker) const {
    Arena arena(worker_memory_ + worker_bytes_ * static_cast<std::size_t>(worker));
    return Scratch<A>(arena, p_);
  }

  // Calls body(head, panel, scratch) for every panel of queries of every query head.
  template <typename Body>
  void for_each_query_panel(const Body& body) {
    for_each_panel(p_.q_heads, p_.q_length,
                   [&](std::int64_t sequence, std::int64_t h, Interval panel, const Scratch<A>& scratch) {
                     const HeadView head(p_, sequence, h);
                     panel.end = std::min(panel.end, head.s.q_length);
                     if (panel.begin < panel.end) body(head, panel, scratch);
                   });
  }

  template <typename Body>
  void for_each_panel(std::int64_t heads, std::int64_t length, const Body& body) {
    const core::Tiling tiling{length, kPanel};
    const std::int64_t panels = tiling.count();
    parallel_for(*resources_.executor, workers_, p_.batch * heads * panels,
                 [&](std::int64_t index, int worker) {
                   const std::int64_t head = index / panels;
                   body(head / heads, head % heads, tiling[index % panels], scratch_of(worker));
                 });
  }

  // Row i of a head's matrix.
  A* row(A* matrix, const HeadView& head, std::int64_t i) const {
    return matrix + ((head.s.index * p_.q_heads + head.q_head) * p_.q_length + i) * p_.k_length;
  }

  // Calls visit(begin, end) for each range of columns that is visible to row i.
  template <typename Visit>
  void for_each_visible(const HeadView& head, std::int64_t i, const Visit& visit) const {
    core::for_each_tile(core::visible_keys(p_, head.s, head.q_head, {i, i + 1}),
                        std::max<std::int64_t>(p_.k_length, 1),
                        [&](const core::TileRange& tile) { for_each_visible_run(head, i, tile, visit); });
  }

  // The runs of `columns` that the boolean mask shows to row i.
  template <typename Visit>
  void for_each_visible_run(const HeadView& head, std::int64_t i, const Interval& columns,
                            const Visit& visit) const {
    if (!p_.has_visible) return visit(columns.begin, columns.end);
    const auto* visible = p_.visible.row<const std::uint8_t>(head.s.index, head.q_head, i);
    const std::uint8_t* const end = visible + columns.end;
    auto seen = [](std::uint8_t x) { return x != 0; };
    for (const std::uint8_t* at = visible + columns.begin; at != end;) {
      const std::uint8_t* const begin = std::find_if(at, end, seen);
      at = std::find_if_not(begin, end, seen);
      if (begin != at) visit(begin - visible, at - visible);
    }
  }

  // The same, and clears the columns of `values` that are masked out.
  template <typename Visit>
  void keep_visible(const HeadView& head, std::int64_t i, A* values, const Visit& visit) const {
    std::int64_t done = 0;
    for_each_visible(head, i, [&](std::int64_t begin, std::int64_t end) {
      std::fill(values + done, values + begin, A{0});
      visit(begin, end);
      done = end;
    });
    std::fill(values + done, values + head.s.k_length, A{0});
  }

  // ---- products ---------------------------------------------------------------------------------

  const A* queries(const HeadView& head, const core::View& view, const Interval& rows, std::int64_t columns,
                   A* to) {
    load_rows<T>(rows, columns, A{1}, [&](std::int64_t i) { return head.query_row<const T>(view, i); }, to);
    return to;
  }

  const A* keys(const HeadView& head, const core::View& view, std::int64_t columns, A* to) {
    load_rows<T>(
        {0, head.s.k_length}, columns, A{1}, [&](std::int64_t j) { return head.key_row<const T>(view, j); },
        to);
    return to;
  }

  // C = alpha A B + beta C, where A is 0 at masked positions. 0 x NaN is NaN: when B has non-finite
  // values, the terms with zeros of A are left out.
  void masked_product(Transpose a_transposed, std::int64_t rows, std::int64_t columns, std::int64_t depth,
                      A alpha, const A* a, std::int64_t a_row, const A* b, A beta, A* c) {
    if (rows == 0 || columns == 0) return;
    if (depth > 0 && rows_.finite(b, depth * columns)) {
      gemm(a_transposed, Transpose::no, rows, columns, depth, alpha, a, a_row, b, columns, beta, c, columns);
      return;
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      A* target = c + r * columns;
      for (std::int64_t x = 0; x < columns; ++x) target[x] = beta == 0 ? A{0} : beta * target[x];
      for (std::int64_t d = 0; d < depth; ++d) {
        const A factor = alpha * (a_transposed == Transpose::yes ? a[d * a_row + r] : a[r * a_row + d]);
        if (factor == 0) continue;
        for (std::int64_t x = 0; x < columns; ++x) target[x] += factor * b[d * columns + x];
      }
    }
  }

  // matrix = alpha rows keys^T
  void outer_product(A* matrix, const HeadView& head, const Interval& panel, std::int64_t depth, A alpha,
                     const A* rows, const A* columns) {
    if (head.s.k_length == 0) return;
    gemm(Transpose::no, Transpose::yes, panel.length(), head.s.k_length, depth, alpha, rows, depth, columns,
         depth, A{0}, row(matrix, head, panel.begin), p_.k_length);
  }

  // ---- forward ----------------------------------------------------------------------------------

  void scores() {
    for_each_query_panel([&](const HeadView& head, const Interval& panel, const Scratch<A>& scratch) {
      outer_product(m_.p, head, panel, p_.qk_dim, static_cast<A>(p_.scale),
                    queries(head, p_.q, panel, p_.qk_dim, scratch.q), keys(head, p_.k, p_.qk_dim, scratch.k));
    });
  }

  // Turns scaled scores into probabilities, 0 where they are masked out. The maximum starts at a
  // finite value, so that a row with only scores of -inf gets the sum 0.
  void softmax() {
    for_each_query_panel([&](const HeadView& head, const Interval& panel, const Scratch<A>&) {
      for (std::int64_t i = panel.begin; i < panel.end; ++i) {
        A* s = row(m_.p, head, i);
        core::RowStatistics<A> statistics{std::numeric_limits<A>::lowest(), 0};
        keep_visible(head, i, s, [&](std::int64_t begin, std::int64_t end) {
          statistics.maximum = rows_.finish(head, i, {begin, end}, s + begin, nullptr, statistics.maximum);
        });
        for_each_visible(head, i, [&](std::int64_t begin, std::int64_t end) {
          statistics.sum += rows_.exponentiate(s + begin, end - begin, statistics.maximum);
        });
        for_each_visible(head, i, [&](std::int64_t begin, std::int64_t end) {
          rows_.scale(s + begin, end - begin, statistics.normaliser());
        });
        if (p_.has_lse) *head.query_row<A>(p_.lse, i) = statistics.lse();
      }
    });
  }

  void dropout() {
    for_each_query_panel([&](const HeadView& head, const Interval& panel, const Scratch<A>&) {
      for (std::int64_t i = panel.begin; i < panel.end; ++i) {
        rows_.dropout(head, i, {0, head.s.k_length}, row(m_.p, head, i));
      }
    });
  }

  void output() {
    for_each_query_panel([&](const HeadView& head, const Interval& panel, const Scratch<A>& scratch) {
      masked_product(Transpose::no, panel.length(), p_.v_dim, head.s.k_length, A{1},
                     row(m_.p, head, panel.begin), p_.k_length, keys(head, p_.v, p_.v_dim, scratch.v), A{0},
                     scratch.first);
      store_rows<T>(panel, p_.v_dim, A{1}, scratch.first,
                    [&](std::int64_t i) { return head.query_row<T>(p_.out, i); });
    });
  }

  // ---- backward ---------------------------------------------------------------------------------

  void probability_gradient() {
    for_each_query_panel([&](const HeadView& head, const Interval& panel, const Scratch<A>& scratch) {
      outer_product(m_.ds, head, panel, p_.v_dim, A{1},
                    queries(head, p_.grad_out, panel, p_.v_dim, scratch.grad_out),
                    keys(head, p_.v, p_.v_dim, scratch.v));
    });
  }

  void score_gradient() {
    for_each_query_panel([&](const HeadView& head, const Interval& panel, const Scratch<A>&) {
      for (std::int64_t i = panel.begin; i < panel.end; ++i) score_gradient_row(head, i);
    });
  }

  // Turns S into P (after dropout) and dP into dS, for one row. P is computed from the caller's LSE
  // and delta from the caller's output, because the scores may be those of a shard of a longer row.
  void score_gradient_row(const HeadView& head, std::int64_t i) {
    A* p = row(m_.p, head, i);
    A* ds = row(m_.ds, head, i);
    const A lse = *head.query_row<const A>(p_.lse, i);
    A* cap = p_.softcap != 0 ? row(m_.cap_derivative, head, i) : nullptr;
    if (lse == core::kMinusInfinity<A>) {  // no visible key, or only scores of -inf
      for (A* values : {p, ds, cap}) {
        if (values != nullptr) std::fill_n(values, head.s.k_length, A{0});
      }
      return;
    }
    const T* out = head.query_row<const T>(p_.out, i);
    const T* grad_out = head.query_row<const T>(p_.grad_out, i);
    A products[8] = {};  // several sums side by side: one would wait for each addition
    for (std::int64_t c = 0; c < p_.v_dim; ++c) {
      products[c % 8] += Element<T>::load(out[c]) * Element<T>::load(grad_out[c]);
    }
    A delta = p_.has_grad_lse ? -*head.query_row<const A>(p_.grad_lse, i) : A{0};
    for (const A product : products) delta += product;
    keep_visible(head, i, ds, [](std::int64_t, std::int64_t) {});
    keep_visible(head, i, p, [&](std::int64_t begin, std::int64_t end) {
      rows_.finish(head, i, {begin, end}, p + begin, cap == nullptr ? nullptr : cap + begin, A{0});
      if (p_.dropout) rows_.dropout(head, i, {begin, end}, ds + begin);
      rows_.differentiate(p + begin, ds + begin, end - begin, lse, delta);
      if (p_.dropout) rows_.dropout(head, i, {begin, end}, p + begin);
    });
  }

  void apply_cap_derivative() {
    for_each_query_panel([&](const HeadView& head, const Interval& panel, const Scratch<A>&) {
      for (std::int64_t i = panel.begin; i < panel.end; ++i) {
        A* ds = row(m_.ds, head, i);
        const A* cap = row(m_.cap_derivative, head, i);
        for_each_visible(head, i, [&](std::int64_t begin, std::int64_t end) {
          rows_.multiply(ds + begin, cap + begin, end - begin);
        });
      }
    });
  }

  // A task owns some columns of one row of the bias and sums over all rows that it
  // was broadcast to.
  void grad_bias() {
    const core::Tiling columns{p_.k_length, kPanel};
    const std::int64_t tasks = p_.bias_batch * p_.bias_heads * p_.bias_rows * columns.count();
    parallel_for(*resources_.executor, workers_, tasks, [&](std::int64_t index, int) {
      const Interval tile = columns[index % columns.count()];
      const std::int64_t owner = index / columns.count();
      const std::int64_t bias_row = owner % p_.bias_rows, rest = owner / p_.bias_rows;
      const std::int64_t bias_head = rest % p_.bias_heads, bias_batch = rest / p_.bias_heads;
      A sum[kPanel] = {};
      const std::int64_t batch = p_.q_length > 0 ? p_.batch : 0;  // heads without queries add nothing
      for (std::int64_t b = bias_batch; b < batch; b += p_.bias_batch) {
        for (std::int64_t h = bias_head; h < p_.q_heads; h += p_.bias_heads) {
          const HeadView head(p_, b, h);
          const std::int64_t end = std::min(tile.end, head.s.k_length);
          for (std::int64_t i = bias_row; i < head.s.q_length; i += p_.bias_rows) {
            const A* ds = row(m_.ds, head, i);
            for (std::int64_t j = tile.begin; j < end; ++j) sum[j - tile.begin] += ds[j];
          }
        }
      }
      core::with_type(p_.bias_dtype, [&]<typename B>() {
        B* target = p_.grad_bias.row<B>(bias_batch, bias_head, bias_row);
        for (std::int64_t j = tile.begin; j < tile.end; ++j) {
          target[j] = Element<B>::store(static_cast<Accumulator<B>>(sum[j - tile.begin]));
        }
      });
    });
  }

  void grad_q() {
    for_each_query_panel([&](const HeadView& head, const Interval& panel, const Scratch<A>& scratch) {
      masked_product(Transpose::no, panel.length(), p_.qk_dim, head.s.k_length, static_cast<A>(p_.scale),
                     row(m_.ds, head, panel.begin), p_.k_length, keys(head, p_.k, p_.qk_dim, scratch.k), A{0},
                     scratch.first);
      store_rows<T>(panel, p_.qk_dim, A{1}, scratch.first,
                    [&](std::int64_t i) { return head.query_row<T>(p_.grad_q, i); });
    });
  }

  void grad_kv() {
    for_each_panel(
        p_.kv_heads, p_.k_length,
        [&](std::int64_t sequence, std::int64_t kv_head, Interval panel, const Scratch<A>& scratch) {
          const std::int64_t first_head = kv_head * p_.group();
          const HeadView owner(p_, sequence, first_head);
          panel.end = std::min(panel.end, owner.s.k_length);
          if (panel.begin >= panel.end) return;
          const std::int64_t count = panel.length();
          const Interval all{0, owner.s.q_length};
          for (std::int64_t h = first_head; h < first_head + p_.group(); ++h) {
            const HeadView head(p_, sequence, h);
            const A beta = h == first_head ? A{0} : A{1};
            masked_product(Transpose::yes, count, p_.qk_dim, owner.s.q_length, static_cast<A>(p_.scale),
                           row(m_.ds, head, 0) + panel.begin, p_.k_length,
                           queries(head, p_.q, all, p_.qk_dim, scratch.q), beta, scratch.first);
            masked_product(Transpose::yes, count, p_.v_dim, owner.s.q_length, A{1},
                           row(m_.p, head, 0) + panel.begin, p_.k_length,
                           queries(head, p_.grad_out, all, p_.v_dim, scratch.grad_out), beta, scratch.second);
          }
          if (p_.has_grad_k) {
            store_rows<T>(panel, p_.qk_dim, A{1}, scratch.first,
                          [&](std::int64_t j) { return owner.key_row<T>(p_.grad_k, j); });
          }
          if (p_.has_grad_v) {
            store_rows<T>(panel, p_.v_dim, A{1}, scratch.second,
                          [&](std::int64_t j) { return owner.key_row<T>(p_.grad_v, j); });
          }
        });
  }

  const core::Problem& p_;
  const int workers_;
  const core::Resources& resources_;
  const std::size_t worker_bytes_;
  const SoftmaxRows<A>& rows_;
  Arena shared_;
  Matrices<A> m_;
  std::byte* worker_memory_;
};

}  // namespace

std::optional<core::Choice> choose_standard(const core::Problem& p, int workers, core::Reason reason) {
  if (!blas_missing().empty()) return reason.decline(blas_missing());
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (const std::int64_t longest = std::max(p.q_length, p.k_length); longest > kMost) {
    return reason.decline("supports sequences of at most ", kMost, ", as OpenBLAS does; this call has ",
                          longest);
  }
  const Target target = active_target();
  const std::int64_t panels = std::max(core::Tiling{p.q_length, kPanel}.count() * p.q_heads,
                                       core::Tiling{p.k_length, kPanel}.count() * p.kv_heads);
  const int useful = static_cast<int>(std::clamp<std::int64_t>(p.batch * panels, 1, workers));
  return core::with_type(p.dtype, [&]<typename T>() {
    const Decision d{target, &engine(target).softmax_rows, Standard<T>::worker_bytes(p)};
    return core::Choice{
        .block_q = std::min(kPanel, p.q_length),
        .block_k = p.k_length,
        .workspace_bytes = core::workspace_bytes(Standard<T>::matrix_bytes(p), d.worker_bytes, useful),
        .workers = useful,
        .traffic_cache_bytes = static_cast<double>(caches().l2),
        .decision = d};
  });
}

std::string standard_details(const core::Problem&, const core::Choice& choice) {
  const Target target = choice.decision.as<Decision>().target;
  return core::concat("instruction set ", name(target_for_type(target, DType::fp32)),
                      " for the softmax, OpenBLAS for the products");
}

void run_standard(const core::Problem& p, const core::Choice& choice, const core::Resources& resources) {
  const SingleThreadedBlas single_threaded;
  core::with_type(p.dtype, [&]<typename T>() {
    Standard<T> standard(p, choice, resources);
    p.direction == Direction::forward ? standard.forward() : standard.backward();
  });
}

}  // namespace tessera::cpu
