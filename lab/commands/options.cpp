#include "lab/commands/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <utility>

#include "cuda/common/host/gpus.h"

namespace tessera::lab {
namespace {

constexpr IntegerBounds kDims{1, 256};
constexpr IntegerBounds kThreads{0, 4096};

constexpr std::array<DType, 4> kDTypes = {DType::fp64, DType::fp32, DType::fp16, DType::bf16};
constexpr std::array<std::string_view, 4> kDTypeNames = {"fp64", "fp32", "fp16", "bf16"};
constexpr std::array<Align, 2> kAligns = {Align::bottom_right, Align::top_left};
constexpr std::array<std::string_view, 2> kAlignNames = {"bottom_right", "top_left"};
constexpr std::array<Direction, 2> kDirections = {Direction::forward, Direction::backward};
constexpr std::array<std::string_view, 2> kDirectionNames = {"forward", "backward"};
constexpr std::array<Algorithm, 6> kAlgorithms = {Algorithm::automatic, Algorithm::standard,
                                                  Algorithm::flash1,    Algorithm::flash2,
                                                  Algorithm::flash3,    Algorithm::minimal};
constexpr std::array<std::string_view, 6> kAlgorithmNames = {"automatic", "standard", "flash1",
                                                             "flash2",    "flash3",   "minimal"};

std::string yes_no(bool value) { return value ? "yes" : "no"; }

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

// Every point once with each of the values, repeated ones left out; no values: the points as they are.
template <typename T>
void vary(std::vector<Point>& points, const std::vector<T>& typed, T Point::*member) {
  if (typed.empty()) return;
  const std::vector<T> values = distinct(typed);
  std::vector<Point> product;
  for (const Point& point : points) {
    for (const auto& value : values) {
      product.push_back(point);
      product.back().*member = value;
    }
  }
  points = std::move(product);
}

void vary_integer(std::vector<Point>& points, const std::string& option,
                  const std::vector<std::string>& texts, IntegerBounds bounds, std::int64_t Point::*member) {
  vary(points,
       collect<std::int64_t>(texts,
                             [&](const std::string& text) { return parse_integers(option, text, bounds); }),
       member);
}

void vary_number(std::vector<Point>& points, const std::string& option, const std::vector<std::string>& texts,
                 NumberBounds bounds, double Point::*member) {
  vary(points,
       collect<double>(texts, [&](const std::string& text) { return parse_numbers(option, text, bounds); }),
       member);
}

void vary_switch(std::vector<Point>& points, const std::string& option, const std::vector<std::string>& texts,
                 bool Point::*member) {
  vary(points, collect<bool>(texts, [&](const std::string& text) { return parse_switches(option, text); }),
       member);
}

}  // namespace

std::string mask_text(const Point& point) {
  std::string text;
  auto add = [&](const std::string& part) { text += (text.empty() ? "" : "+") + part; };
  if (point.causal) add("causal");
  if (point.window != Window{}) add(fmt::format("window:{},{}", point.window.left, point.window.right));
  if (!text.empty() && point.align == Align::top_left) add("top_left");
  if (point.block_mask.name != "none") {
    add(fmt::format("{}/{}", to_string(point.block_mask), point.block_size));
  }
  return text.empty() ? "full" : text;
}

std::int64_t keys(const Point& point) { return point.seq_k > 0 ? point.seq_k : point.seq; }

std::int64_t kv_heads(const Point& point) { return point.kv_heads > 0 ? point.kv_heads : point.heads; }

std::int64_t value_dim(const Point& point) { return point.v_dim > 0 ? point.v_dim : point.dim; }

const std::vector<Property>& properties() {
  using P = const Point&;
  constexpr auto kNever = [](P) { return false; };
  static const std::vector<Property> kAll = {
      {"batch", [](P p) { return fmt::format("{}", p.batch); }, kNever},
      {"seq", [](P p) { return fmt::format("{}", p.seq); }, kNever},
      {"seq_k", [](P p) { return fmt::format("{}", keys(p)); }, [](P p) { return keys(p) == p.seq; }},
      {"heads", [](P p) { return fmt::format("{}", p.heads); }, kNever},
      {"kv_heads", [](P p) { return fmt::format("{}", kv_heads(p)); },
       [](P p) { return kv_heads(p) == p.heads; }},
      {"dim", [](P p) { return fmt::format("{}", p.dim); }, kNever},
      {"v_dim", [](P p) { return fmt::format("{}", value_dim(p)); },
       [](P p) { return value_dim(p) == p.dim; }},
      {"dtype", [](P p) { return std::string(name(p.dtype)); }, kNever},
      {"mask", mask_text, kNever},
      {"bias", [](P p) { return yes_no(p.bias); }, [](P p) { return !p.bias; }},
      {"alibi", [](P p) { return yes_no(p.alibi); }, [](P p) { return !p.alibi; }},
      {"softcap", [](P p) { return fmt::format("{}", p.softcap); }, [](P p) { return p.softcap == 0; }},
      {"dropout", [](P p) { return fmt::format("{}", p.dropout); }, [](P p) { return p.dropout == 0; }},
      {"threads", [](P p) { return p.threads > 0 ? fmt::format("{}", p.threads) : "all"; },
       [](P p) { return p.threads == 0; }},
  };
  return kAll;
}

std::string to_string(const Point& point) {
  std::string text = fmt::format("batch {}, seq {}", point.batch, point.seq);
  if (keys(point) != point.seq) text += fmt::format(" x {}", keys(point));
  text += fmt::format(", heads {}", point.heads);
  if (kv_heads(point) != point.heads) text += fmt::format(" (kv {})", kv_heads(point));
  text += fmt::format(", dim {}", point.dim);
  if (value_dim(point) != point.dim) text += fmt::format(" (v {})", value_dim(point));
  text += fmt::format(", {}, {}", name(point.dtype), mask_text(point));
  if (point.bias) text += ", bias";
  if (point.alibi) text += ", alibi";
  if (point.softcap > 0) text += fmt::format(", softcap {}", point.softcap);
  if (point.dropout > 0) text += fmt::format(", dropout {}", point.dropout);
  return text;
}

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
  add("--seq", options.seq, "N", "Queries, and keys unless --seq-k says otherwise [1024]", kShape);
  add("--seq-k", options.seq_k, "N", "Keys [as --seq]", kShape);
  add("--heads", options.heads, "N", "Query heads [8]", kShape);
  add("--kv-heads", options.kv_heads, "N", "Key/value heads, a divisor of --heads [as --heads]", kShape);
  add("--dim", options.dim, "N", "Head dimension of q and k, 1 to 256 [64]", kShape);
  add("--v-dim", options.v_dim, "N", "Head dimension of v, 1 to 256 [as --dim]", kShape);
  add("--dtype", options.dtype, "TYPE", "fp64, fp32, fp16 or bf16 [fp32]", kShape);

  constexpr const char* kMask = "Mask";
  add_switch("--causal", options.causal, "No query sees a key after it [no]", kMask);
  add("--window", options.window, "L,R", "Only L keys before and R after the diagonal; -1: all [none]",
      kMask);
  add("--align", options.align, "WHERE", "Diagonal: bottom_right or top_left [bottom_right]", kMask);
  add("--block-mask", options.block_mask, "PRESET",
      "local:2, strided:4, fixed:4,1, bigbird:1,1,2, butterfly, random:0.25 [none]", kMask);
  add("--block-size", options.block_size, "N", "Queries and keys per block of --block-mask [128]", kMask);

  constexpr const char* kScores = "Scores";
  add_switch("--bias", options.bias, "Add a random bias, shared by batch and heads [no]", kScores);
  add_switch("--alibi", options.alibi, "Linear biases with the slopes of the ALiBi paper [no]", kScores);
  add("--softcap", options.softcap, "CAP", "cap * tanh(score / cap); 0: off [0]", kScores);
  add("--dropout", options.dropout, "P", "Dropout probability, 0 to below 1 [0]", kScores);

  constexpr const char* kRun = "What runs";
  add("--direction", options.direction, "DIR", "forward, backward or both [forward]", kRun);
  add("--algorithm", options.algorithm, "NAME",
      "automatic, standard, flash1, flash2, flash3, minimal [" + default_algorithm + "]", kRun);
  add("--threads", options.threads, "N", "CPU threads; 0: all [0]", kRun);
  command.add_option("--device", options.device, "cpu, cuda or cuda:N [cpu]")
      ->option_text("DEVICE")
      ->group(kRun);
}

Sweep parse_sweep(const ProblemOptions& o) {
  Sweep sweep{{Point{}}, {}, {}, parse_device("--device", o.device)};
  std::vector<Point>& points = sweep.points;
  vary(points, parse_dtypes("--dtype", o.dtype), &Point::dtype);
  vary_integer(points, "--batch", o.batch, {}, &Point::batch);
  vary_integer(points, "--heads", o.heads, {}, &Point::heads);
  vary_integer(points, "--kv-heads", o.kv_heads, {}, &Point::kv_heads);
  vary_integer(points, "--dim", o.dim, kDims, &Point::dim);
  vary_integer(points, "--v-dim", o.v_dim, kDims, &Point::v_dim);
  vary_switch(points, "--causal", o.causal, &Point::causal);
  vary(points,
       collect<Window>(
           o.window,
           [](const std::string& text) { return std::vector<Window>{parse_window("--window", text)}; }),
       &Point::window);
  vary(points, choices("--align", o.align, kAligns, kAlignNames), &Point::align);
  vary(points,
       collect<BlockPreset>(o.block_mask,
                            [](const std::string& text) { return parse_block_masks("--block-mask", text); }),
       &Point::block_mask);
  vary_integer(points, "--block-size", o.block_size, {}, &Point::block_size);
  vary_switch(points, "--bias", o.bias, &Point::bias);
  vary_switch(points, "--alibi", o.alibi, &Point::alibi);
  vary_number(points, "--softcap", o.softcap, {}, &Point::softcap);
  vary_number(points, "--dropout", o.dropout, {0, 1, true}, &Point::dropout);
  vary_integer(points, "--seq", o.seq, {}, &Point::seq);
  vary_integer(points, "--seq-k", o.seq_k, {}, &Point::seq_k);
  vary_integer(points, "--threads", o.threads, kThreads, &Point::threads);

  for (const std::string& text : o.algorithm) {
    if (text.find("hopper") != std::string::npos) {
      throw UsageError(fmt::format("--algorithm '{}': hopper is now called flash3", text));
    }
  }
  sweep.algorithms = distinct(choices("--algorithm", o.algorithm, kAlgorithms, kAlgorithmNames));
  sweep.directions = distinct(choices("--direction", o.direction, kDirections, kDirectionNames));
  if (sweep.directions.empty()) sweep.directions = {Direction::forward};
  return sweep;
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

std::string to_string(Device device) {
  return device.type == DeviceType::cpu ? "cpu" : fmt::format("cuda:{}", device.index);
}

int parse_capability(const std::string& option, const std::string& text) {
  std::vector<std::string> known;
  for (const int capability : cuda::AssumedGpu::known()) {
    known.push_back(fmt::format("{}.{}", capability / 10, capability % 10));
    if (known.back() == text) return capability;
  }
  throw UsageError(known.empty()
                       ? fmt::format("{}: this build has no CUDA", option)
                       : fmt::format("{} '{}': must be one of {}", option, text, fmt::join(known, ", ")));
}

}  // namespace tessera::lab
