#include "lab/measure/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <memory>
#include <new>
#include <utility>

#include "core/base/environment.h"
#include "cuda/common/host/memory.h"
#include "lab/baselines/baseline.h"
#include "lab/measure/compare/agreement.h"
#include "lab/measure/machine/counting_allocator.h"
#include "lab/measure/machine/dram_counter.h"
#include "lab/measure/machine/gpu_timer.h"
#include "lab/measure/row_sample.h"
#include "lab/problem/operation.h"
#include "lab/problem/tensors.h"
#include "lab/problem/theory.h"
#include "lab/terminal/errors.h"
#include "lab/terminal/text.h"
#include "lab/terminal/units.h"
#include "tessera/error.h"

namespace tessera::lab {
namespace {

void fail(Row& row, Status status, const std::string& reason) {
  row.status = status;
  row.reason = one_line(reason);
}

// Turns what a call threw into the status of its row.
void fail(Row& row, const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const UsageError& error) {
    fail(row, Status::invalid, error.what());
  } catch (const Error& error) {
    switch (error.code()) {
      case ErrorCode::invalid_argument: return fail(row, Status::invalid, error.what());
      case ErrorCode::unsupported: return fail(row, Status::unsupported, error.what());
      case ErrorCode::out_of_memory: return fail(row, Status::out_of_memory, error.what());
      case ErrorCode::device_failure: break;
    }
    fail(row, Status::failed, error.what());
  } catch (const std::bad_alloc&) {
    fail(row, Status::out_of_memory, "out of memory on the host");
  } catch (const std::exception& error) {
    fail(row, Status::failed, error.what());
  }
}

void fail_all(std::vector<Row>& rows, const std::exception_ptr& failure) {
  for (Row& row : rows) {
    if (row.status == Status::ok) fail(row, failure);
  }
}

// The rows before anything is known but the question.
std::vector<Row> empty_rows(const Problem& problem, const std::vector<Method>& methods,
                            const MeasureOptions& options) {
  std::vector<Row> rows;
  for (const Method& method : methods) {
    rows.push_back(
        {.problem = problem, .method = method, .warmup = options.repetitions.warmup, .seed = options.seed});
  }
  return rows;
}

// The directions that a problem computes, in their order.
std::vector<Direction> directions_of(const Problem& problem) {
  switch (problem.direction) {
    case Pass::forward: return {Direction::forward};
    case Pass::backward: return {Direction::backward};
    case Pass::both: break;
  }
  return {Direction::forward, Direction::backward};
}

// The library's plan or the baseline's.
Plan plan_of(const Row& row, Direction direction, const Baseline* baseline, const Operation& operation,
             const Tensors& tensors, const Execution& execution) {
  if (baseline != nullptr) return baseline->plan(operation, tensors, direction, execution);
  const Attention attention = operation.attention(row.method.algorithm);
  return direction == Direction::forward ? plan(attention, tensors.forward(), execution)
                                         : plan(attention, tensors.backward(), execution);
}

// The plan of two calls, one after the other. Tiles are those of the second.
Plan one_after_the_other(const Plan& first, Plan second) {
  if (first.kernel != second.kernel) second.kernel = first.kernel + " + " + second.kernel;
  second.workspace_bytes = std::max(first.workspace_bytes, second.workspace_bytes);
  second.flops += first.flops;
  second.minimum_bytes += first.minimum_bytes;
  second.traffic_bytes += first.traffic_bytes;
  second.standard_traffic_bytes += first.standard_traffic_bytes;
  return second;
}

// Sets the plan of a row and, for methods of the library, what the theory says about it.
void plan_row(Row& row, const Baseline* baseline, const Operation& operation, const Tensors& tensors,
              const Execution& execution) {
  double executed = 0;
  for (const Direction direction : directions_of(row.problem)) {
    Plan plan = plan_of(row, direction, baseline, operation, tensors, execution);
    if (baseline == nullptr)
      executed += executed_flops(operation, direction, plan.algorithm, plan.block_q, plan.block_k);
    row.plan = row.plan ? one_after_the_other(*row.plan, std::move(plan)) : std::move(plan);
  }
  if (baseline != nullptr) return;
  row.executed_flops = executed;
  if (row.plan->algorithm == Algorithm::standard || row.problem.direction == Pass::both) return;
  const std::int64_t block_k = row.method.block_k > 0 ? row.method.block_k : row.plan->block_k;
  row.theory = theory_of(operation, widest_direction(row.problem), row.plan->block_q, block_k);
}

// Whether a kernel uses the tile that the method forces. A tile is never longer than the sequence.
bool uses_forced_tile(const Row& row) {
  const std::int64_t forced = row.method.block_k;
  return forced == 0 || row.plan->block_k == forced ||
         row.plan->block_k == std::min(forced, keys(row.problem));
}

// Plans every row. Methods that cannot run, ignore the forced tile or exceed the memory budget are
// not called.
void plan_rows(std::vector<Row>& rows, const Baseline* baseline, const Operation& operation,
               const Tensors& tensors, const Execution& execution, std::size_t budget) {
  for (Row& row : rows) {
    try {
      plan_row(row, baseline, operation, tensors, execution);
      if (!uses_forced_tile(row)) {
        fail(row, Status::unsupported,
             fmt::format("{} has fixed tiles of {} queries x {} keys", row.plan->kernel, row.plan->block_q,
                         row.plan->block_k));
        continue;
      }
      row.tensor_bytes = tensors.bytes();
      const auto needed =
          static_cast<double>(row.tensor_bytes) + static_cast<double>(row.plan->workspace_bytes);
      if (needed > static_cast<double>(budget)) {
        fail(row, Status::out_of_memory,
             fmt::format("needs {}, the budget is {}", bytes_text(needed),
                         bytes_text(static_cast<double>(budget))));
      }
    } catch (...) {
      fail(row, std::current_exception());
    }
  }
}

void add_speedups(std::vector<Row>& rows) {
  const auto standard = std::find_if(rows.begin(), rows.end(), [](const Row& row) {
    return row.method.algorithm == Algorithm::standard && row.status == Status::ok;
  });
  if (standard == rows.end()) return;
  for (Row& row : rows) {
    if (row.status == Status::ok) row.speedup = standard->seconds.median / row.seconds.median;
  }
}

std::unique_ptr<MeasuringAllocator> make_allocator(Device device, std::size_t limit) {
  if (device.type == DeviceType::cpu) return std::make_unique<CountingAllocator>(limit);
  return std::make_unique<GpuPool>(device.index, limit);
}

// One call of each method that is not measured: it shows how much memory the call takes and,
// forward, how exact the output is.
bool rehearse(std::vector<Row>& rows, std::vector<TimedCall>& calls, const Operation& operation,
              Tensors& tensors, const MeasureOptions& options, MeasuringAllocator& allocator,
              const Proceed& proceed) {
  std::optional<RowSample> sample;
  std::optional<HostCopy> host;
  std::optional<Agreement> agreement;
  if (options.atol) agreement.emplace(*options.atol);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Row& row = rows[i];
    if (row.status != Status::ok) continue;
    if (!proceed(0)) return false;
    try {
      allocator.reset_peak();
      if (agreement) tensors.poison(row.problem.direction != Pass::backward);
      calls[i].call();
      if (row.problem.device.type == DeviceType::cuda) cuda::synchronize(row.problem.device.index);
      row.peak_extra_bytes = allocator.peak();
      if (row.problem.direction != Pass::backward && options.check_rows > 0) {
        if (!sample) {
          host.emplace(tensors.forward());
          sample.emplace(operation.host_attention(), host->tensors(), options.check_rows, options.seed);
        }
        host->refresh_output();
        row.error = sample->compare(host->tensors());
      }
      if (agreement) row.comparison = agreement->compare(row, tensors);
      if (row.error && !std::isfinite(row.error->largest)) {
        fail(row, Status::failed, "a sampled row of the output has non-finite values");
      }
    } catch (...) {
      fail(row, std::current_exception());
    }
  }
  return true;
}

// Comes last, because a profiler may disturb other measurements.
bool count_traffic(const std::vector<TimedCall>& calls, const std::vector<Row*>& rows,
                   const Proceed& proceed) {
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (rows[i]->status != Status::ok) continue;
    if (!proceed(1)) return false;
    DramCount count = count_dram_bytes(rows[i]->problem.device.index, calls[i].call);
    rows[i]->measured_traffic = count.bytes;
    rows[i]->traffic_note = std::move(count.note);
  }
  return true;
}

// The kernel and tile that a method forces, while this lives.
class Forced {
 public:
  explicit Forced(const Method& method) {
    if (!method.kernel.empty()) kernel_.emplace(&core::Environment::kernel, method.kernel);
    if (method.block_k > 0) block_k_.emplace(&core::Environment::block_k, std::to_string(method.block_k));
  }

 private:
  std::optional<core::EnvironmentOverride> kernel_, block_k_;
};

// Everything that the calls of one problem share.
struct Bench {
  const Problem& problem;
  Operation operation;
  Tensors tensors;
  Execution execution;
  std::optional<GpuTimer> gpu{};
  std::unique_ptr<MeasuringAllocator> allocator{};
  std::unique_ptr<Baseline> baseline{};  // uses the allocator's memory, so it goes first

  explicit Bench(const Problem& of)
      : problem(of),
        operation(of),
        tensors(operation.shapes(), widest_direction(of), of.device),
        execution{.threads = static_cast<int>(of.threads)} {}

  // Allocates and fills the tensors; gradients need the output and the LSE, so a backward problem
  // runs forward once.
  void prepare(const MeasureOptions& options) {
    operation.place(problem.device);
    tensors.allocate(options.seed);
    if (problem.device.type == DeviceType::cuda)
      execution.stream = gpu.emplace(problem.device.index).stream();
    allocator = make_allocator(problem.device, options.memory_budget - tensors.bytes());
    execution.allocator = allocator.get();
    if (problem.direction == Pass::backward)
      run(operation.attention(Algorithm::automatic), Direction::forward);
  }

  void run(const Attention& attention, Direction direction) {
    if (baseline) return baseline->run(operation, tensors, direction, execution);
    if (direction == Direction::backward) backward(attention, tensors.backward(), execution);
    else forward(attention, tensors.forward(), execution);
  }

  std::function<void()> call(const Method& method) {
    return [this, attention = operation.attention(method.algorithm), directions = directions_of(problem)] {
      for (const Direction direction : directions) run(attention, direction);
    };
  }
};

// What is seen beside the times of a GPU.
struct GpuRecord {
  std::vector<double> clocks;  // of the SM
  std::vector<double> host;    // seconds that the host spent in the calls
};

// On a GPU its own clock tells the time.
void time_on_gpu(TimedCall& one, GpuTimer& gpu, GpuRecord& record) {
  one.timed = [&gpu, &record, call = one.call] {
    using Clock = std::chrono::steady_clock;
    gpu.forget_clocks();
    const double seconds = gpu.time([&] {
      const Clock::time_point begin = Clock::now();
      call();
      record.host.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    });
    record.clocks.insert(record.clocks.end(), gpu.clocks().begin(), gpu.clocks().end());
    return seconds;
  };
}

// Fills in rows that are planned. Returns whether it was finished.
bool measure_rows(std::vector<Row>& rows, Bench& bench, const MeasureOptions& options,
                  const Proceed& proceed) {
  std::vector<TimedCall> all;
  for (const Row& row : rows) all.push_back({bench.call(row.method)});
  MeasureOptions rehearsal = options;
  if (bench.baseline && !bench.baseline->exact()) rehearsal.check_rows = 0;
  if (!rehearse(rows, all, bench.operation, bench.tensors, rehearsal, *bench.allocator, proceed))
    return false;

  std::vector<GpuRecord> records(rows.size());
  std::vector<TimedCall> calls;
  std::vector<Row*> measured;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (bench.gpu) time_on_gpu(all[i], *bench.gpu, records[i]);
    if (rows[i].status != Status::ok) continue;
    calls.push_back(std::move(all[i]));
    measured.push_back(&rows[i]);
  }
  Repetitions repetitions = options.repetitions;
  repetitions.warmup = std::max(0, repetitions.warmup - 1);  // the rehearsal was the first
  if (!interleave(calls, repetitions, proceed)) return false;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].failure) fail(*measured[i], calls[i].failure);
    else measured[i]->seconds = summarise(calls[i].seconds);
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!records[i].clocks.empty()) rows[i].sm_clock_mhz = summarise(records[i].clocks).median;
    if (!records[i].host.empty()) rows[i].host_seconds = summarise(records[i].host).median;
  }
  return !bench.gpu || !options.count_traffic || count_traffic(calls, measured, proceed);
}

}  // namespace

std::optional<std::vector<Row>> measure(const Problem& problem, const std::vector<Method>& methods,
                                        const MeasureOptions& options, const Proceed& proceed) {
  std::vector<Row> rows = empty_rows(problem, methods, options);
  if (methods.empty()) return rows;
  const Forced forced(methods.front());
  try {
    Bench bench(problem);
    const std::string& baseline = methods.front().baseline;
    if (!baseline.empty()) bench.baseline = make_baseline(baseline, methods.front().stage);
    plan_rows(rows, bench.baseline.get(), bench.operation, bench.tensors, bench.execution,
              options.memory_budget);
    const bool any_left =
        std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.status == Status::ok; });
    if (!any_left) return rows;
    if (problem.direction == Pass::backward && !proceed(0)) return {};
    bench.prepare(options);
    if (!measure_rows(rows, bench, options, proceed)) return {};
  } catch (...) {
    fail_all(rows, std::current_exception());
  }
  add_speedups(rows);
  return rows;
}

double expected_seconds(const Problem& problem, std::size_t methods, const Repetitions& repetitions) {
  constexpr double kFlopsPerSecond = 5e9;
  const double flops = 4.0 * static_cast<double>(problem.batch) * static_cast<double>(problem.heads) *
                       static_cast<double>(problem.seq) * static_cast<double>(keys(problem)) *
                       static_cast<double>(problem.dim) *
                       (problem.direction == Pass::forward    ? 1
                        : problem.direction == Pass::backward ? 2.5
                                                              : 3.5);
  const double call = flops / kFlopsPerSecond;
  const double measured = repetitions.repetitions > 0
                              ? call * repetitions.repetitions
                              : std::max(call * repetitions.fewest, repetitions.min_time);
  return (call * std::max(1, repetitions.warmup) + measured) * static_cast<double>(methods);
}

}  // namespace tessera::lab
