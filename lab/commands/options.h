// The options that describe a problem, shared by the subcommands, and the points of a sweep over them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lab/commands/parse.h"
#include "tessera/attention.h"
#include "tessera/plan.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's own name
class App;
}

namespace tessera::lab {

// One problem: every option with one value.
struct Point {
  std::int64_t batch = 1;
  std::int64_t seq = 1024;
  std::int64_t seq_k = 0;  // 0: as seq
  std::int64_t heads = 8;
  std::int64_t kv_heads = 0;  // 0: as heads
  std::int64_t dim = 64;
  std::int64_t v_dim = 0;  // 0: as dim
  DType dtype = DType::fp32;
  bool causal = false;
  Window window{};
  Align align = Align::bottom_right;
  BlockPreset block_mask{};
  std::int64_t block_size = 128;
  bool bias = false;
  bool alibi = false;
  double softcap = 0;
  double dropout = 0;
  std::int64_t threads = 0;  // 0: all
};

// What 0 stands for filled in.
std::int64_t keys(const Point& point);
std::int64_t kv_heads(const Point& point);
std::int64_t value_dim(const Point& point);

// "causal", "window:128,0", "causal+local:2/64"; "full" when everyone sees everyone.
std::string mask_text(const Point& point);

// Something a point says about itself: the name of the column and the value. Those that differ between the
// points of a sweep become columns of its table, the others one line above it; those that are `implied` at
// every point (off, or the same as another one) are not worth a word.
struct Property {
  const char* name;
  std::string (*value)(const Point& point);
  bool (*implied)(const Point& point);
};
const std::vector<Property>& properties();

// The whole point on one line.
std::string to_string(const Point& point);

// What the options ask for, checked.
struct Sweep {
  std::vector<Point> points;          // the product of all lists, none twice
  std::vector<Algorithm> algorithms;  // empty: every one that the machine has
  std::vector<Direction> directions;
  Device device{};
};

// The options as typed; each may be repeated, and most take lists.
struct ProblemOptions {
  std::vector<std::string> batch, seq, seq_k, heads, kv_heads, dim, v_dim, dtype, causal, window, align,
      block_mask, block_size, bias, alibi, softcap, dropout, direction, algorithm, threads;
  std::string device = "cpu";
};

// Declares the options on a subcommand, which says in its help what it does without --algorithm.
void add_problem_options(CLI::App& command, ProblemOptions& options, const std::string& default_algorithm);

// Reads them. Throws UsageError.
Sweep parse_sweep(const ProblemOptions& options);

// Names as the options take them. Throw UsageError.
std::vector<DType> parse_dtypes(const std::string& option, const std::vector<std::string>& texts);
Device parse_device(const std::string& option, const std::string& text);
// A compute capability that plans can be made for without such a GPU: "8.6" as 86.
int parse_capability(const std::string& option, const std::string& text);

}  // namespace tessera::lab
