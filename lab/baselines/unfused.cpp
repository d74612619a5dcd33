// Standard attention with nothing fused, as a framework computes it: every step reads the whole
// matrix of every head and writes it. So each step can be timed alone. The library's `standard`
// joins mask and softmax.
//
//   matmul QK^T   S = scale Q Kᵀ        OpenBLAS
//   mask         S = -inf where masked
//   softmax      P = softmax(S)
//   dropout      S = dropout(P)        as the library draws it
//   matmul PV    O = P V               OpenBLAS
//
// fp32 on the CPU, forward.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "api/problem_of.h"
#include "core/visibility.h"
#include "cpu/baselines/standard/blas.h"
#include "cpu/baselines/standard/softmax_rows.h"
#include "cpu/engine.h"
#include "cpu/head_view.h"
#include "cpu/machine/cores.h"
#include "cpu/machine/parallel_for.h"
#include "cpu/machine/target.h"
#include "cpu/machine/thread_pool.h"
#include "lab/baselines/baseline.h"
#include "lab/baselines/buffer.h"
#include "lab/terminal/errors.h"
#include "tessera/error.h"

namespace tessera::lab {
namespace {

constexpr std::int64_t kPanel = 64;  // rows of a task
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::unsupported, "the baseline unfused " + what);
}

// One call: the steps over the matrices of all heads.
class Steps {
 public:
  Steps(const core::Problem& p, int threads, float* scores, float* probabilities)
      : p_(p),
        threads_(threads),
        rows_(cpu::engine(cpu::target_for_type(cpu::active_target(), DType::fp32)).softmax_rows.fp32),
        s_(scores),
        probabilities_(probabilities) {}

  void run(const std::string& stage) {
    if (stage == kStages[0]) scores();
    if (stage == kStages[1]) mask();
    if (stage == kStages[2]) softmax();
    if (stage == kStages[3]) dropout();
    if (stage == kStages[4]) output();
  }

 private:
  // Calls body(head, panel) for every panel of rows of every head.
  template <typename Body>
  void for_each_panel(const Body& body) {
    const core::Tiling tiling{p_.q_length, kPanel};
    const std::int64_t panels = tiling.count();
    cpu::parallel_for(cpu::ThreadPool::instance(), threads_, p_.batch * p_.q_heads * panels,
                      [&](std::int64_t task, int) {
                        const std::int64_t head = task / panels;
                        body(cpu::HeadView(p_, head / p_.q_heads, head % p_.q_heads), tiling[task % panels]);
                      });
  }

  [[nodiscard]] float* row(float* matrix, const cpu::HeadView& head, std::int64_t i) const {
    return matrix + ((head.s.index * p_.q_heads + head.q_head) * p_.q_length + i) * p_.k_length;
  }

  // Distance of two rows of a tensor (batch, length, heads, dim).
  template <typename Row>
  [[nodiscard]] static std::int64_t distance(std::int64_t length, const Row& row_at) {
    return length > 1 ? row_at(1) - row_at(0) : std::int64_t{1} << 20;
  }

  void scores() {
    for_each_panel([&](const cpu::HeadView& head, const core::Interval& panel) {
      auto query = [&](std::int64_t i) { return head.query_row<const float>(p_.q, i); };
      auto key = [&](std::int64_t j) { return head.key_row<const float>(p_.k, j); };
      cpu::gemm(cpu::Transpose::no, cpu::Transpose::yes, panel.length(), p_.k_length, p_.qk_dim,
                static_cast<float>(p_.scale), query(panel.begin), distance(p_.q_length, query), key(0),
                distance(p_.k_length, key), 0.0F, row(s_, head, panel.begin), p_.k_length);
    });
  }

  void mask() {
    for_each_panel([&](const cpu::HeadView& head, const core::Interval& panel) {
      for (std::int64_t i = panel.begin; i < panel.end; ++i) {
        float* values = row(s_, head, i);
        std::int64_t done = 0;
        core::for_each_tile(core::visible_keys(p_, head.s, head.q_head, {i, i + 1}), p_.k_length,
                            [&](const core::TileRange& tile) {
                              std::fill(values + done, values + tile.begin, kMinusInfinity);
                              done = tile.end;
                            });
        std::fill(values + done, values + p_.k_length, kMinusInfinity);
      }
    });
  }

  void softmax() {
    for_each_panel([&](const cpu::HeadView& head, const core::Interval& panel) {
      for (std::int64_t i = panel.begin; i < panel.end; ++i) {
        const float* from = row(s_, head, i);
        float* to = row(probabilities_, head, i);
        std::copy(from, from + p_.k_length, to);
        const float sum = rows_.exponentiate(to, p_.k_length, largest(from));
        rows_.scale(to, p_.k_length, sum > 0 ? 1 / sum : 0);
      }
    });
  }

  // Sixteen maxima side by side, so that the compiler uses vectors.
  [[nodiscard]] float largest(const float* values) const {
    float maxima[16];
    std::fill(std::begin(maxima), std::end(maxima), std::numeric_limits<float>::lowest());
    std::int64_t j = 0;
    for (; j + 16 <= p_.k_length; j += 16) {
      for (int lane = 0; lane < 16; ++lane) maxima[lane] = std::max(maxima[lane], values[j + lane]);
    }
    for (; j < p_.k_length; ++j) maxima[0] = std::max(maxima[0], values[j]);
    return *std::max_element(std::begin(maxima), std::end(maxima));
  }

  void dropout() {
    for_each_panel([&](const cpu::HeadView& head, const core::Interval& panel) {
      for (std::int64_t i = panel.begin; i < panel.end; ++i) {
        const float* from = row(probabilities_, head, i);
        float* to = row(s_, head, i);
        std::copy(from, from + p_.k_length, to);
        if (p_.dropout) rows_.dropout(head, i, {0, p_.k_length}, to);
      }
    });
  }

  void output() {
    for_each_panel([&](const cpu::HeadView& head, const core::Interval& panel) {
      auto value = [&](std::int64_t j) { return head.key_row<const float>(p_.v, j); };
      auto out = [&](std::int64_t i) { return head.query_row<float>(p_.out, i); };
      cpu::gemm(cpu::Transpose::no, cpu::Transpose::no, panel.length(), p_.v_dim, p_.k_length, 1.0F,
                row(s_, head, panel.begin), p_.k_length, value(0), distance(p_.k_length, value), 0.0F,
                out(panel.begin), distance(p_.q_length, out));
    });
  }

  const core::Problem& p_;
  const int threads_;
  const cpu::SoftmaxRows<float>& rows_;
  float* s_;
  float* probabilities_;
};

class Unfused final : public Baseline {
 public:
  explicit Unfused(std::string stage) : stage_(std::move(stage)) {}

  Plan plan(const Operation& operation, const Tensors& tensors, Direction direction,
            const Execution& execution) const override {
    require_fp32_on_cpu("unfused", operation, tensors);
    if (direction == Direction::backward) refuse("has no backward");
    const Problem& problem = operation.problem();
    if (problem.bias || problem.alibi || problem.softcap > 0) refuse("supports no bias, ALiBi or softcap");
    if (!cpu::blas_missing().empty()) throw Error(ErrorCode::unsupported, cpu::blas_missing());
    Plan plan = tessera::plan(operation.attention(Algorithm::standard), tensors.forward(), execution);
    plan.kernel = "lab.unfused";
    plan.workspace_bytes = 2 * matrix_bytes(operation);
    if (!stage_.empty()) set_stage_cost(plan, operation);
    return plan;
  }

  // The first call computes everything, so that each step finds what the one before leaves.
  void run(const Operation& operation, const Tensors& tensors, Direction,
           const Execution& execution) override {
    const cpu::SingleThreadedBlas single_threaded;
    const core::Problem p =
        api::problem_of(operation.host_attention(), tensors.forward(), api::Data::required);
    const bool first = scores_.data() == nullptr;
    if (first) {
      scores_ = Buffer(execution, matrix_bytes(operation));
      probabilities_ = Buffer(execution, matrix_bytes(operation));
    }
    const int threads = execution.threads > 0 ? execution.threads : cpu::available_cores();
    Steps steps(p, threads, static_cast<float*>(scores_.data()), static_cast<float*>(probabilities_.data()));
    for (const char* stage : kStages) {
      if (first || stage_.empty() || stage_ == stage) steps.run(stage);
    }
  }

  bool exact() const override { return true; }

 private:
  // What one step computes and moves: the products over all pairs, the others a few operations
  // each.
  void set_stage_cost(Plan& plan, const Operation& operation) const {
    const Shapes& s = operation.shapes();
    const auto matrix = static_cast<double>(matrix_bytes(operation));
    const double pairs = matrix / sizeof(float);
    const double rows = static_cast<double>(s.batch * s.q_heads) * sizeof(float);
    const double scores = rows * static_cast<double>((s.q_length + s.k_length) * s.qk_dim);
    const double output = rows * static_cast<double>((s.q_length + s.k_length) * s.v_dim);
    const bool first = stage_ == kStages[0], last = stage_ == kStages[4];
    if (first || last) plan.flops = 2 * pairs * static_cast<double>(first ? s.qk_dim : s.v_dim);
    else plan.flops = pairs * (stage_ == kStages[1] ? 0 : stage_ == kStages[2] ? 5 : 1);
    plan.traffic_bytes = first ? scores + matrix : last ? output + matrix : 2 * matrix;
    plan.minimum_bytes = plan.traffic_bytes;
  }

  static std::size_t matrix_bytes(const Operation& operation) {
    const Shapes& s = operation.shapes();
    return static_cast<std::size_t>(s.batch * s.q_heads * s.q_length * s.k_length) * sizeof(float);
  }

  std::string stage_;
  Buffer scores_, probabilities_;
};

}  // namespace

std::unique_ptr<Baseline> make_unfused(const std::string& stage) {
  const bool known = stage.empty() || std::find(kStages.begin(), kStages.end(), stage) != kStages.end();
  if (!known) throw UsageError(fmt::format("stage '{}': must be one of {}", stage, fmt::join(kStages, ", ")));
  return std::make_unique<Unfused>(stage);
}

}  // namespace tessera::lab
