// The rows of `tessera bench`: one measurement each, self-describing, as JSON Lines, CSV or a table.
#pragma once

#include <cstddef>
#include <cstdio>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lab/commands/options.h"
#include "lab/measure/interleave.h"
#include "lab/terminal/table.h"
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

// What the analysis of FlashAttention says about the tiles of a kernel.
struct Theory {
  // FlashAttention-1's order with tiles of this size and nothing but the tile in fast memory: what the paper's figure
  // of block sizes counts.
  double tile_bytes = 0;
  // N^2 d^2 / M elements, M being the keys and values of one tile.
  double bound_bytes = 0;
};

struct Row {
  Point point{};
  Algorithm algorithm = Algorithm::automatic;  // as asked for
  Direction direction = Direction::forward;
  Device device{};
  Status status = Status::ok;
  std::string reason{};  // why not ok, one line
  std::optional<Plan> plan{};
  std::size_t tensor_bytes = 0;
  int warmup = 0;
  std::uint64_t seed = 0;
  Summary seconds{};
  std::size_t peak_extra_bytes = 0;
  std::optional<double> sm_clock_mhz{};  // of a GPU while it was measured
  std::optional<SampledError> error{};
  std::optional<double> speedup{};           // over standard at the same point
  std::optional<double> measured_traffic{};  // DRAM bytes by the GPU's counters
  std::string traffic_note{};                // how they were counted, or why not; empty: nobody asked

  // What the experiments of `tessera lab` add.
  std::string label{};                         // what it is called instead of its algorithm; empty: just that
  std::int64_t requested_block_k = 0;          // keys per step that were asked for; 0: the kernel's choice
  std::optional<std::size_t> memory_budget{};  // when one was given
  std::optional<Theory> theory{};

  [[nodiscard]] double tflops() const {
    return plan && seconds.median > 0 ? plan->flops / seconds.median / 1e12 : 0;
  }
};

// Every field under the same name and in the same order for every row; what is not known is null.
nlohmann::ordered_json to_json(const Row& row);

// The names of the fields, and their values, as lines of a CSV file (RFC 4180; without the line end).
std::string csv_header(const nlohmann::ordered_json& fields);
std::string to_csv(const nlohmann::ordered_json& fields);
std::string csv_header();
std::string to_csv(const Row& row);

// A file of rows that is complete after every row, whatever happens next. "-" is standard output.
class RowFile {
 public:
  enum class Format { json_lines, csv };

  // Opens (and empties) the file. Throws UsageError naming the option when that cannot be done.
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

// The table on the terminal: what differs between the points as columns, the rest in a line above.
class RowTable {
 public:
  explicit RowTable(const Sweep& sweep, const std::vector<Algorithm>& algorithms);

  // What all rows share, and the header.
  [[nodiscard]] std::string header() const;
  [[nodiscard]] std::string row(const Row& row, bool color) const;

 private:
  void build_table(const Sweep& sweep, const std::vector<Algorithm>& algorithms);
  [[nodiscard]] std::vector<std::string> labels(const Row& row) const;

  std::vector<Property> varying_;
  bool directions_vary_ = false;
  bool with_speedup_ = false;
  bool with_traffic_ = true;
  bool with_spread_ = true;
  std::string caption_;
  Table table_;
};

}  // namespace tessera::lab
