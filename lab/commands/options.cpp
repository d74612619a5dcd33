#include "lab/commands/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <utility>

#include "cuda/common/host/gpus.h"
#include "lab/terminal/text.h"

namespace tessera::lab {
namespace {

constexpr IntegerBounds kDims{1, 256};
constexpr IntegerBounds kThreads{0, 4096};

constexpr std::array<DType, 4> kDTypes = {DType::fp64, DType::fp32, DType::fp16, DType::bf16};
constexpr std::array<std::string_view, 4> kDTypeNames = {"fp64", "fp32", "fp16", "bf16"};
constexpr std::array<Align, 2> kAligns = {Align::bottom_right, Align::top_left};
constexpr std::array<std::string_view, 2> kAlignNames = {"bottom_right", "top_left"};
constexpr std::array<Pass, 3> kDirections = {Pass::forward, Pass::backward, Pass::both};
constexpr std::array<std::string_view, 3> kDirectionNames = {"forward", "backward", "both"};
constexpr std::array<Algorithm, 6> kAlgorithms = {Algorithm::automatic, Algorithm::standard,
                                                  Algorithm::flash1,    Algorithm::flash2,
                                                  Algorithm::flash3,    Algorithm::minimal};
constexpr std::array<std::string_view, 6> kAlgorithmNames = {"automatic", "standard", "flash1",
                                                             "flash2",    "flash3",   "minimal"};

// All values of a repeated option, each of whose texts `parse` turns into a list.
template <typename T, typename Parse>
std::vector<T> collect(const std::vector<std::string>& texts, Parse&& parse) {
  std::vector<T> values;
  for (const std::string& text : texts) {
    for (auto&& value : parse(text)) values.push_back(static_cast<T>(value));
  }
  return values;
}

template <typename T, std::size_t N>
std::vector<T> choices(const std::string& option, const std::vector<std::string>& texts,
                       const std::array<T, N>& values, const std::array<std::string_view, N>& names) {
  std::vector<T> chosen;
  for (const std::string& text : texts) {
    for (const std::size_t index : parse_choices(option, text, names)) chosen.push_back(values[index]);
  }
  return chosen;
}

template <typename T>
std::vector<T> distinct(const std::vector<T>& values) {
  std::vector<T> result;
  for (const auto& value : values) {
    if (std::find(result.begin(), result.end(), value) == result.end()) result.push_back(value);
  }
  return result;
}

// Every problem once with each distinct value; without values, the problems as they are.
template <typename T>
void vary(std::vector<Problem>& problems, const std::vector<T>& typed, T Problem::* member) {
  if (typed.empty()) return;
  const std::vector<T> values = distinct(typed);
  std::vector<Problem> product;
  for (const Problem& problem : problems) {
    for (const auto& value : values) {
      product.push_back(problem);
      product.back().*member = value;
    }
  }
  problems = std::move(product);
}

void vary_integer(std::vector<Problem>& problems, const std::string& option,
                  const std::vector<std::string>& texts, IntegerBounds bounds,
                  std::int64_t Problem::* member) {
  vary(problems,
       collect<std::int64_t>(texts,
                             [&](const std::string& text) { return parse_integers(option, text, bounds); }),
       member);
}

void vary_number(std::vector<Problem>& problems, const std::string& option,
                 const std::vector<std::string>& texts, NumberBounds bounds, double Problem::* member) {
  vary(problems,
       collect<double>(texts, [&](const std::string& text) { return parse_numbers(option, text, bounds); }),
       member);
}

void vary_switch(std::vector<Problem>& problems, const std::string& option,
                 const std::vector<std::string>& texts, bool Problem::* member) {
  vary(problems, collect<bool>(texts, [&](const std::string& text) { return parse_switches(option, text); }),
       member);
}

}  // namespace

void add_problem_options(CLI::App& command, ProblemOptions& options, const std::string& default_algorithm) {
  auto add = [&](const char* option, std::vector<std::string>& values, const char* text,
                 const std::string& description, const char* group) {
    return command.add_option(option, values, description)
        ->expected(1)
        ->take_all()
        ->option_text(text)
        ->group(group);
  };
  auto add_switch = [&](const char* option, std::vector<std::string>& values, const char* description,
                        const char* group) {
    add(option, values, "[yes|no]", description, group)
        ->expected(0, 1)
        ->take_all()
        ->default_str("yes");  // what the bare option means
  };
  constexpr const char* kShape = "Shape";
  add("--batch", options.batch, "N", "Batch entries [1]", kShape);
  add("--seq", options.seq, "N", "Queries, and keys unless --seq-k is given [1024]", kShape);
  add("--seq-k", options.seq_k, "N", "Keys [as --seq]", kShape);
  add("--heads", options.heads, "N", "Query heads [8]", kShape);
  add("--kv-heads", options.kv_heads, "N", "Key/value heads, a divisor of --heads [as --heads]", kShape);
  add("--dim", options.dim, "N", "Head dimension of q and k, 1 to 256 [64]", kShape);
  add("--v-dim", options.v_dim, "N", "Head dimension of v, 1 to 256 [as --dim]", kShape);
  add("--dtype", options.dtype, "TYPE", "fp64, fp32, fp16 or bf16 [fp32]", kShape);

  constexpr const char* kMask = "Mask";
  add_switch("--causal", options.causal, "Each query attends to keys up to its own position [no]", kMask);
  add("--window", options.window, "L,R",
      "Keys before and after the diagonal that a query attends to; -1: all [none]", kMask);
  add("--align", options.align, "WHERE", "Diagonal: bottom_right or top_left [bottom_right]", kMask);
  add("--block-mask", options.block_mask, "PRESET",
      "local:2, strided:4, fixed:4,1, bigbird:1,1,2, butterfly, random:0.25 [none]", kMask);
  add("--block-size", options.block_size, "N", "Queries and keys per block of --block-mask [128]", kMask);
  add_switch("--visible", options.visible, "Hide the last quarter of the keys by a boolean mask [no]", kMask);

  constexpr const char* kScores = "Scores";
  add_switch("--bias", options.bias, "Add a random bias that batch entries and heads share [no]", kScores);
  add_switch("--alibi", options.alibi, "Add linear biases with the slopes of the ALiBi paper [no]", kScores);
  add("--softcap", options.softcap, "CAP", "Replace scores by cap * tanh(score / cap); 0: off [0]", kScores);
  add("--dropout", options.dropout, "P", "Dropout probability, 0 to below 1 [0]", kScores);

  constexpr const char* kRun = "Method";
  add("--direction", options.direction, "DIR",
      "forward, backward, or both: one after the other in one call [forward]", kRun);
  add("--algorithm", options.algorithm, "NAME",
      "automatic, standard, flash1, flash2, flash3, minimal [" + default_algorithm + "]", kRun);
  add("--threads", options.threads, "N", "CPU threads; 0: all [0]", kRun);
  command.add_option("--device", options.device, "cpu, cuda or cuda:N [cpu]")
      ->option_text("DEVICE")
      ->group(kRun);
}

std::vector<Problem> parse_problems(const ProblemOptions& o) {
  Problem first;
  first.device = parse_device("--device", o.device);
  std::vector<Problem> problems = {first};
  vary(problems, parse_dtypes("--dtype", o.dtype), &Problem::dtype);
  vary_integer(problems, "--batch", o.batch, {}, &Problem::batch);
  vary_integer(problems, "--heads", o.heads, {}, &Problem::heads);
  vary_integer(problems, "--kv-heads", o.kv_heads, {}, &Problem::kv_heads);
  vary_integer(problems, "--dim", o.dim, kDims, &Problem::dim);
  vary_integer(problems, "--v-dim", o.v_dim, kDims, &Problem::v_dim);
  vary_switch(problems, "--causal", o.causal, &Problem::causal);
  vary(problems,
       collect<Window>(
           o.window,
           [](const std::string& text) { return std::vector<Window>{parse_window("--window", text)}; }),
       &Problem::window);
  vary(problems, choices("--align", o.align, kAligns, kAlignNames), &Problem::align);
  vary(problems,
       collect<BlockPreset>(o.block_mask,
                            [](const std::string& text) { return parse_block_masks("--block-mask", text); }),
       &Problem::block_mask);
  vary_integer(problems, "--block-size", o.block_size, {}, &Problem::block_size);
  vary_switch(problems, "--visible", o.visible, &Problem::visible);
  vary_switch(problems, "--bias", o.bias, &Problem::bias);
  vary_switch(problems, "--alibi", o.alibi, &Problem::alibi);
  vary_number(problems, "--softcap", o.softcap, {}, &Problem::softcap);
  vary_number(problems, "--dropout", o.dropout, {0, 1, true}, &Problem::dropout);
  vary_integer(problems, "--seq", o.seq, {}, &Problem::seq);
  vary_integer(problems, "--seq-k", o.seq_k, {}, &Problem::seq_k);
  vary_integer(problems, "--threads", o.threads, kThreads, &Problem::threads);
  vary(problems, choices("--direction", o.direction, kDirections, kDirectionNames), &Problem::direction);
  return problems;
}

std::vector<Algorithm> parse_algorithms(const ProblemOptions& options) {
  for (const std::string& text : options.algorithm) {
    for (const std::string& word : split(text, ',')) {
      if (word == "hopper") throw UsageError("--algorithm 'hopper': hopper is now called flash3");
    }
  }
  return distinct(choices("--algorithm", options.algorithm, kAlgorithms, kAlgorithmNames));
}

std::vector<DType> parse_dtypes(const std::string& option, const std::vector<std::string>& texts) {
  return choices(option, texts, kDTypes, kDTypeNames);
}

Device parse_device(const std::string& option, const std::string& text) {
  if (text == "cpu") return Device::cpu();
  if (text == "cuda") return Device::cuda();
  if (text.rfind("cuda:", 0) == 0) {
    return Device::cuda(static_cast<int>(parse_integer(option, text.substr(5), {0, 1023})));
  }
  throw UsageError(fmt::format("{} '{}': must be cpu, cuda or cuda:N", option, text));
}

int parse_capability(const std::string& option, const std::string& text) {
  std::vector<std::string> known;
  for (const int capability : cuda::AssumedGpu::known()) {
    known.push_back(fmt::format("{}.{}", capability / 10, capability % 10));
    if (known.back() == text) return capability;
  }
  throw UsageError(known.empty()
                       ? fmt::format("{}: this build has no CUDA; build with TESSERA_CUDA=ON", option)
                       : fmt::format("{} '{}': must be one of {}", option, text, fmt::join(known, ", ")));
}

}  // namespace tessera::lab
