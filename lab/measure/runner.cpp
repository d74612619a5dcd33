#include "lab/measure/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <memory>
#include <new>
#include <random>
#include <span>
#include <utility>

#include "cuda/common/host/memory.h"
#include "lab/baselines/baseline.h"
#include "lab/measure/machine/counting_allocator.h"
#include "lab/measure/machine/dram_counter.h"
#include "lab/measure/machine/gpu_timer.h"
#include "lab/terminal/units.h"
#include "reference/oracle/elements.h"
#include "reference/oracle/oracle.h"
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
    fail(row, Status::out_of_memory, "the system gave no more memory");
  } catch (const std::exception& error) {
    fail(row, Status::failed, error.what());
  }
}

void fail_all(std::vector<Row>& rows, const std::exception_ptr& failure) {
  for (Row& row : rows) {
    if (row.status == Status::ok) fail(row, failure);
  }
}

std::vector<Row> empty_rows(const Contest& contest, const RunnerOptions& options) {
  std::vector<Row> rows;
  for (const Algorithm algorithm : contest.algorithms) {
    rows.push_back({.point = contest.point,
                    .algorithm = algorithm,
                    .direction = contest.direction,
                    .device = contest.device,
                    .warmup = options.schedule.warmup,
                    .seed = options.seed});
  }
  return rows;
}

// What each algorithm would do; those that cannot, or need more memory than there is, are out.
void plan_rows(std::vector<Row>& rows, const Baseline* baseline, const Workload& workload,
               const Tensors& tensors, const Execution& execution, std::size_t budget) {
  for (Row& row : rows) {
    try {
      const Attention attention = workload.attention(row.algorithm);
      if (baseline != nullptr) row.plan = baseline->plan(workload, tensors, row.direction, execution);
      else if (row.direction == Direction::forward) row.plan = plan(attention, tensors.forward(), execution);
      else row.plan = plan(attention, tensors.backward(), execution);
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
    return row.algorithm == Algorithm::standard && row.status == Status::ok;
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

// One call of each algorithm that is not measured: it shows what memory the call takes and, going forward,
// how exact the output is.
bool rehearse(std::vector<Row>& rows, std::vector<Contender>& contenders, const Workload& workload,
              const Tensors& tensors, const RunnerOptions& options, MeasuringAllocator& allocator,
              const std::function<bool(double)>& proceed) {
  std::optional<RowSample> sample;
  std::optional<HostCopy> host;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Row& row = rows[i];
    if (row.status != Status::ok) continue;
    if (!proceed(0)) return false;
    try {
      allocator.reset_peak();
      contenders[i].call();
      if (row.device.type == DeviceType::cuda) cuda::synchronize(row.device.index);
      row.peak_extra_bytes = allocator.peak();
      if (row.direction == Direction::backward || options.check_rows == 0) continue;
      if (!sample) {
        host.emplace(tensors.forward());
        sample.emplace(workload.host_attention(), host->tensors(), options.check_rows, options.seed);
      }
      host->refresh_output();
      row.error = sample->compare(host->tensors());
      if (!std::isfinite(row.error->largest)) {
        fail(row, Status::failed, "a sampled row of the output is not finite");
      }
    } catch (...) {
      fail(row, std::current_exception());
    }
  }
  return true;
}

// The last thing that is done to a GPU: a profiler may disturb what is measured beside it.
bool count_traffic(const std::vector<Contender>& runners, const std::vector<Row*>& rows,
                   const std::function<bool(double)>& proceed) {
  for (std::size_t i = 0; i < runners.size(); ++i) {
    if (rows[i]->status != Status::ok) continue;
    if (!proceed(1)) return false;
    DramCount count = count_dram_bytes(rows[i]->device.index, runners[i].call);
    rows[i]->measured_traffic = count.bytes;
    rows[i]->traffic_note = std::move(count.note);
  }
  return true;
}

}  // namespace

RowSample::RowSample(const Attention& attention, const ForwardTensors& tensors, int rows,
                     std::uint64_t seed) {
  constexpr double kMostProducts = 1e8;  // a second or so
  const Extents& q = tensors.q.shape;
  const auto per_row =
      static_cast<double>(tensors.k.shape[1]) * static_cast<double>(tensors.k.shape[3] + tensors.v.shape[3]);
  const double affordable = std::clamp(kMostProducts / std::max(per_row, 1.0), 2.0, 1e6);
  const int count = std::min(rows, static_cast<int>(affordable));

  std::mt19937_64 random(seed);
  positions_ = {{0, 0, 0}, {q[0] - 1, q[2] - 1, q[1] - 1}};
  while (static_cast<int>(positions_.size()) < count) {
    auto below = [&](std::int64_t bound) {
      return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(bound));
    };
    positions_.push_back({below(q[0]), below(q[2]), below(q[1])});
  }
  positions_.resize(static_cast<std::size_t>(count));
  std::vector<reference::RowIndex> indices;
  for (const Position& p : positions_) indices.push_back({p.batch, p.head, p.row});
  exact_ = reference::forward_rows(attention, tensors, indices).out;
}

SampledError RowSample::compare(const ForwardTensors& tensors) const {
  const auto dim = static_cast<std::size_t>(tensors.out.shape[3]);
  SampledError result{.rows = static_cast<int>(positions_.size())};
  std::vector<double> actual(dim);
  double squares = 0, exact_squares = 0;
  for (std::size_t r = 0; r < positions_.size(); ++r) {
    const Position& p = positions_[r];
    reference::read_row(tensors.out, p.batch, p.row, p.head, actual);
    for (std::size_t d = 0; d < dim; ++d) {
      const double exact = exact_[r * dim + d];
      const double error = std::abs(actual[d] - exact);
      // A NaN becomes the largest error, and nothing is larger than it.
      if (std::isnan(error) || error > result.largest) result.largest = error;
      squares += error * error;
      exact_squares += exact * exact;
    }
  }
  const auto count = static_cast<double>(std::max<std::size_t>(exact_.size(), 1));
  result.root_mean_square = std::sqrt(squares / count);
  result.reference_magnitude = std::sqrt(exact_squares / count);
  return result;
}

std::optional<std::vector<Row>> run_contest(const Contest& contest, const RunnerOptions& options,
                                            const std::function<bool(double share)>& proceed) {
  std::vector<Row> rows = empty_rows(contest, options);
  auto any_left = [&] {
    return std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.status == Status::ok; });
  };
  try {
    std::unique_ptr<Baseline> planned;
    if (!contest.baseline.empty()) planned = make_baseline(contest.baseline);
    Workload workload(contest.point);
    Tensors tensors(workload.shapes(), contest.direction, contest.device);
    Execution execution{.threads = static_cast<int>(contest.point.threads)};
    plan_rows(rows, planned.get(), workload, tensors, execution, options.memory_budget);
    if (!any_left()) return rows;

    workload.place(contest.device);
    tensors.allocate(options.seed);
    std::optional<GpuTimer> gpu;
    if (contest.device.type == DeviceType::cuda)
      execution.stream = gpu.emplace(contest.device.index).stream();
    const auto allocator = make_allocator(contest.device, options.memory_budget - tensors.bytes());
    const std::unique_ptr<Baseline> baseline =
        std::move(planned);  // goes before the allocator whose memory it keeps
    execution.allocator = allocator.get();
    const bool backward_pass = contest.direction == Direction::backward;
    if (backward_pass) {  // gradients need the output and the LSE
      if (!proceed(0)) return {};
      if (baseline) baseline->run(workload, tensors, Direction::forward, execution);
      else forward(workload.attention(Algorithm::automatic), tensors.forward(), execution);
    }

    std::vector<Contender> contenders;
    contenders.reserve(rows.size());
    for (const Row& row : rows) {
      if (baseline) {
        contenders.push_back({[&] { baseline->run(workload, tensors, contest.direction, execution); }});
        continue;
      }
      contenders.push_back(
          {[&tensors, &execution, backward_pass, attention = workload.attention(row.algorithm)] {
            if (backward_pass) backward(attention, tensors.backward(), execution);
            else forward(attention, tensors.forward(), execution);
          }});
    }
    RunnerOptions rehearsal = options;
    if (baseline && !baseline->exact()) rehearsal.check_rows = 0;
    if (!rehearse(rows, contenders, workload, tensors, rehearsal, *allocator, proceed)) return {};
    std::vector<std::vector<double>> clocks(rows.size());
    if (gpu) {
      for (std::size_t i = 0; i < rows.size(); ++i) {
        contenders[i].timed = [&gpu, &seen = clocks[i], call = contenders[i].call] {
          gpu->forget_clocks();
          const double seconds = gpu->time(call);
          seen.insert(seen.end(), gpu->clocks().begin(), gpu->clocks().end());
          return seconds;
        };
      }
    }

    std::vector<Contender> runners;
    std::vector<Row*> measured;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].status != Status::ok) continue;
      runners.push_back(std::move(contenders[i]));
      measured.push_back(&rows[i]);
    }
    // The rehearsal was the first warm-up call.
    Schedule schedule = options.schedule;
    schedule.warmup = std::max(0, schedule.warmup - 1);
    if (!measure(runners, schedule, proceed)) return {};
    for (std::size_t i = 0; i < runners.size(); ++i) {
      if (runners[i].failure) fail(*measured[i], runners[i].failure);
      else measured[i]->seconds = summarise(runners[i].seconds);
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (!clocks[i].empty()) rows[i].sm_clock_mhz = summarise(clocks[i]).median;
    }
    if (gpu && options.count_traffic && !count_traffic(runners, measured, proceed)) return {};
  } catch (...) {
    fail_all(rows, std::current_exception());
  }
  add_speedups(rows);
  return rows;
}

}  // namespace tessera::lab
