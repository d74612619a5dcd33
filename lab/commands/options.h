// The options that describe problems and algorithms, shared by the subcommands.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lab/commands/parse.h"
#include "lab/problem/problem.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's own name
class App;
}

namespace tessera::lab {

// The texts of the options. Each option may be repeated, and most take lists.
struct ProblemOptions {
  std::vector<std::string> batch, seq, seq_k, heads, kv_heads, dim, v_dim, dtype, causal, window, align,
      block_mask, block_size, visible, bias, alibi, softcap, dropout, direction, algorithm, threads;
  std::string device = "cpu";
};

// Declares the options on a subcommand. `default_algorithm` is what its help shows as the default
// of --algorithm.
void add_problem_options(CLI::App& command, ProblemOptions& options, const std::string& default_algorithm);

// The product of all lists, none twice; directions vary fastest. Throws UsageError.
std::vector<Problem> parse_problems(const ProblemOptions& options);

// The values of --algorithm; empty: none was given. Throws UsageError.
std::vector<Algorithm> parse_algorithms(const ProblemOptions& options);

// Values of options from their names. Throw UsageError.
std::vector<DType> parse_dtypes(const std::string& option, const std::vector<std::string>& texts);
Device parse_device(const std::string& option, const std::string& text);
// A compute capability that the library can plan for without such a GPU: "8.6" as 86.
int parse_capability(const std::string& option, const std::string& text);

}  // namespace tessera::lab
