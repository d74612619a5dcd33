// Rows, as JSON Lines and CSV. Each describes itself: lab/measure/fields.json lists its fields.
#pragma once

#include <cstddef>
#include <cstdio>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lab/measure/interleave.h"
#include "lab/problem/method.h"
#include "lab/problem/problem.h"
#include "tessera/plan.h"

namespace tessera::lab {

enum class Status { ok, out_of_memory, unsupported, invalid, failed };

const char* name(Status status);

// How far the output of some rows is from the oracle's.
struct SampledError {
  int rows = 0;
  double largest = 0;              // absolute
  double root_mean_square = 0;     // absolute
  double reference_magnitude = 0;  // root mean square of the exact values
};

// How far the results of a call are from those of another method.
struct Comparison {
  double atol = 0;                  // how far they may be
  std::string with{};               // the method; "fp64": only sampled rows of the output
  std::optional<double> largest{};  // absolute difference; none: nothing to compare with
  [[nodiscard]] bool agrees() const { return largest && *largest <= atol; }  // false for NaN
};

// A level of the machine's memory.
struct MemoryLevel {
  std::string name;             // "L1", "L2", "L3", "memory"
  std::size_t bytes = 0;        // its size; of L1 and L2 that of one core
  double bytes_per_second = 0;  // read by all threads together
};

// What the analysis of FlashAttention says about the tiles of a kernel.
struct Theory {
  // The traffic of FlashAttention-1 with tiles of this size and only the tile in fast memory, as in
  // the paper's figure of block sizes.
  double tile_bytes = 0;
  // N^2 d^2 / M elements, where M is the keys and values of one tile: `bound_memory_bytes`.
  double bound_bytes = 0;
  double bound_memory_bytes = 0;
};

// What one method gave on one problem: measured, or the reason why not.
struct Row {
  Problem problem{};
  Method method{};
  Status status = Status::ok;
  std::string reason{};  // unless ok: why, on one line
  std::optional<Plan> plan{};
  std::size_t tensor_bytes = 0;
  int warmup = 0;
  std::uint64_t seed = 0;
  Summary seconds{};
  std::optional<double> host_seconds{};  // the host's median time in the call, on a GPU
  std::size_t peak_extra_bytes = 0;
  std::optional<double> sm_clock_mhz{};  // of the GPU during the measurement
  std::optional<SampledError> error{};
  std::optional<Comparison> comparison{};  // where outputs are to be compared
  std::optional<double> executed_flops{};
  std::optional<double> speedup{};           // over standard on the same problem
  std::optional<double> measured_traffic{};  // DRAM bytes by the GPU's counters
  std::string traffic_note{};                // how they were counted, or why not; empty: not requested

  std::optional<MemoryLevel> level{};          // a level of memory that was read instead of a problem
  std::optional<Theory> theory{};              // of the library's tiled kernels
  std::optional<std::size_t> memory_budget{};  // of an experiment, where one was given

  [[nodiscard]] double tflops() const {
    return plan && seconds.median > 0 ? plan->flops / seconds.median / 1e12 : 0;
  }
};

// The commit that this program was built from, with "-dirty" when files had changed; "unknown"
// outside a repository.
std::string commit_text();

// The time now as "2026-11-15T17:02:45Z".
std::string date_text();

// What the rows of one run have in common.
struct Stamp {
  std::string commit = commit_text();
  std::string scale = "default";
  std::string settings{};                      // options that change what is measured, as typed
  std::optional<std::int64_t> study_factor{};  // of a study's run: what its lengths are divided by
};

// The stamp and the experiment of rows that belong to no experiment: those of `tessera bench`.
inline const std::string kBench = "bench";

// A row of an experiment as it is written. Every row has the same fields in the same order; unknown
// values are null.
nlohmann::ordered_json to_json(const Row& row, const std::string& experiment, const Stamp& stamp,
                               const std::string& date);

// The names of the fields, and their values, as lines of a CSV file (RFC 4180; without the line
// end).
std::string csv_header(const nlohmann::ordered_json& fields);
std::string to_csv(const nlohmann::ordered_json& fields);

// A file of rows of `tessera bench`, flushed after every row. "-" is standard output.
class RowFile {
 public:
  enum class Format { json_lines, csv };

  // Opens and empties the file. Throws UsageError, which names the option, when that fails.
  RowFile(const std::string& option, const std::string& path, Format format);

  // Throws OutputError when the row cannot be written.
  void write(const Row& row);

 private:
  void write_line(const std::string& line);

  struct Close {
    void operator()(std::FILE* file) const;
  };
  std::string option_;
  std::string path_;
  Format format_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace tessera::lab
