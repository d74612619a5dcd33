#include "lab/measure/peak.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "cpu/machine/cpu_info.h"
#include "cpu/machine/parallel_for.h"
#include "cpu/machine/thread_pool.h"
#include "lab/measure/machine/ceilings.h"
#include "lab/measure/machine/machine_text.h"

namespace tessera::lab {
namespace {

// Uses the results, so that the compiler removes no loop.
std::atomic<std::uint64_t> kept_results;

// Calls run(task) for each task on `threads` threads, as kernels do: a delayed thread takes fewer
// tasks.
template <typename Run>
void run_tasks(int threads, std::int64_t tasks, const Run& run) {
  cpu::parallel_for(cpu::ThreadPool::instance(), threads, tasks, [&](std::int64_t task, int) {
    kept_results.fetch_xor(static_cast<std::uint64_t>(run(task)), std::memory_order_relaxed);
  });
}

// Work of any size: one task is `units` FLOPs or bytes.
struct Load {
  Peak peak;
  double units = 0;
  std::function<void(std::int64_t tasks)> run;
};

// How many tasks keep the threads busy for `seconds`.
std::int64_t tasks_for(const Load& load, double seconds) {
  using Clock = std::chrono::steady_clock;
  for (std::int64_t tasks = load.peak.threads;; tasks *= 2) {
    const Clock::time_point begin = Clock::now();
    load.run(tasks);
    if (std::chrono::duration<double>(Clock::now() - begin).count() >= seconds) return tasks;
  }
}

Load arithmetic_load(const Arithmetic& arithmetic, int threads) {
  constexpr std::int64_t kSteps = 20'000;  // per task: some 0.1 ms
  Load load{{arithmetic.name, arithmetic.instructions, "GFLOP/s", threads}, 0, {}};
  if (arithmetic.run == nullptr) {
    load.peak.missing = arithmetic.missing;
    return load;
  }
  load.units = arithmetic.flops_per_step * kSteps;
  load.run = [run = arithmetic.run, threads](std::int64_t tasks) {
    run_tasks(threads, tasks, [run](std::int64_t) { return run(kSteps); });
  };
  return load;
}

// More memory than the caches hold.
class Buffer {
 public:
  Buffer() : blocks_(blocks()), data_(blocks_ * kReadBlock) {
    std::fill(data_.begin(), data_.end(), std::byte{1});
  }

  [[nodiscard]] const std::byte* block(std::int64_t task) const {
    return data_.data() + static_cast<std::size_t>(task) % blocks_ * kReadBlock;
  }

 private:
  static std::size_t blocks() {
    constexpr std::size_t kLeast = std::size_t{256} << 20, kTimesLastLevel = 4;
    return std::max(kLeast, kTimesLastLevel * cpu::caches().l3) / kReadBlock;
  }

  std::size_t blocks_;
  std::vector<std::byte> data_;
};

Load memory_load(const Buffer& buffer, int threads) {
  const Reading reading = reading_ceiling();
  Load load{{"memory_read", reading.instructions, "GB/s", threads, memory_bytes()},
            static_cast<double>(kReadBlock),
            {}};
  load.run = [&buffer, run = reading.memory, threads](std::int64_t tasks) {
    run_tasks(threads, tasks, [&](std::int64_t task) { return run(buffer.block(task), kReadBlock); });
  };
  return load;
}

// Every thread reads memory of its own again and again, half as large as the cache or, of a cache
// that all share, as its part of it.
Load cache_load(const std::string& name, std::size_t size, bool shared, int threads) {
  const Reading reading = reading_ceiling();
  const std::size_t own = size / 2 / (shared ? static_cast<std::size_t>(threads) : 1) / kReadUnit * kReadUnit;
  Load load{{name, reading.instructions, "GB/s", threads, size}, 0, {}};
  const std::size_t rounds = std::max<std::size_t>(1, kReadBlock / own);
  load.units = static_cast<double>(own * rounds);
  const auto memory =
      std::make_shared<std::vector<std::byte>>(own * static_cast<std::size_t>(threads), std::byte{1});
  load.run = [memory, own, rounds, run = shared ? reading.memory : reading.cache,
              threads](std::int64_t tasks) {
    cpu::parallel_for(cpu::ThreadPool::instance(), threads, tasks, [&](std::int64_t, int worker) {
      std::uint64_t sum = 0;
      for (std::size_t round = 0; round < rounds; ++round)
        sum ^= run(memory->data() + own * static_cast<std::size_t>(worker), own);
      kept_results.fetch_xor(sum, std::memory_order_relaxed);
    });
  };
  return load;
}

// Measures the loads interleaved and adds their peaks to `peaks`.
bool measure_loads(std::vector<Load> loads, const PeakOptions& options, std::vector<Peak>& peaks,
                   const std::function<bool(double)>& proceed) {
  std::vector<TimedCall> calls;
  std::vector<double> units;
  for (Load& load : loads) {
    if (!load.run) continue;
    if (!proceed(0)) return false;
    const std::int64_t tasks = tasks_for(load, options.call_seconds);
    units.push_back(load.units * static_cast<double>(tasks));
    calls.push_back({[&load, tasks] { load.run(tasks); }});
  }
  const Repetitions repetitions{.warmup = 0, .repetitions = options.repetitions};
  const bool finished = interleave(calls, repetitions, proceed);
  std::size_t measured = 0;
  for (Load& load : loads) {
    if (load.run) {
      std::vector<double> rates;
      for (const double seconds : calls[measured].seconds) {
        rates.push_back(units[measured] / seconds / 1e9);
      }
      load.peak.rate = summarise(std::move(rates));
      ++measured;
    }
    peaks.push_back(std::move(load.peak));
  }
  return finished;
}

}  // namespace

std::vector<Peak> measure_peaks(const PeakOptions& options,
                                const std::function<bool(double share)>& proceed) {
  const Buffer buffer;
  const std::vector<Arithmetic> kinds = arithmetic_ceilings();
  auto wanted = [&](const std::string& name) {
    return std::find(options.ceilings.begin(), options.ceilings.end(), name) != options.ceilings.end();
  };
  std::vector<Peak> peaks;
  const auto rounds = static_cast<double>(options.threads.size());
  double done = 0;
  for (const int threads : options.threads) {
    std::vector<Load> loads;
    for (const Arithmetic& kind : kinds) loads.push_back(arithmetic_load(kind, threads));
    const cpu::Caches& caches = cpu::caches();
    loads.push_back(cache_load("l1_read", caches.l1, false, threads));
    loads.push_back(cache_load("l2_read", caches.l2, false, threads));
    loads.push_back(cache_load("l3_read", caches.l3, true, threads));
    loads.push_back(memory_load(buffer, threads));
    std::erase_if(loads, [&](const Load& load) { return !wanted(load.peak.name); });
    auto overall = [&](double share) { return proceed((done + share) / rounds); };
    if (!measure_loads(std::move(loads), options, peaks, overall)) break;
    done += 1;
  }
  return peaks;
}

nlohmann::ordered_json to_json(const Peak& peak) {
  nlohmann::ordered_json json = {{"name", peak.name},
                                 {"instructions", peak.instructions},
                                 {"threads", peak.threads},
                                 {"unit", peak.unit},
                                 {"bytes", peak.bytes > 0 ? nlohmann::ordered_json(peak.bytes) : nullptr}};
  const bool measured = peak.missing.empty();
  auto set = [&](const char* key, double value) {
    json[key] = measured ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
  };
  set("median", peak.rate.median);
  set("lower_quartile", peak.rate.lower_quartile);
  set("upper_quartile", peak.rate.upper_quartile);
  set("min", peak.rate.lowest);
  set("max", peak.rate.highest);
  json["missing"] = measured ? nlohmann::ordered_json() : nlohmann::ordered_json(peak.missing);
  return json;
}

}  // namespace tessera::lab
