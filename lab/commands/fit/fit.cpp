// `tessera fit`: the longest sequence that fits into a memory, with each attention.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/common/host/gpus.h"
#include "lab/commands/commands.h"
#include "lab/commands/fit/fit_model.h"
#include "lab/commands/options.h"
#include "lab/commands/parse.h"
#include "lab/terminal/table.h"
#include "lab/terminal/terminal.h"
#include "lab/terminal/text.h"
#include "lab/terminal/units.h"
#include "tessera/error.h"

namespace tessera::lab {
namespace {

// The length that remedies aim at when nothing fits.
constexpr std::int64_t kWanted = 2048;

struct FitOptions {
  std::string memory, width = "1024", depth = "12", heads = "16", batch = "1", vocab = "0";
  std::string dtype = "bf16", causal = "yes", optimizer;
  std::string device = "cpu", assume_gpu;
  bool train = false, checkpoint = false, kv_cache = false, json = false;
};

// The value of an option that takes no list.
template <typename T>
T only(const std::string& option, const std::string& text, const std::vector<T>& values) {
  if (values.size() != 1) throw UsageError(fmt::format("{} '{}': must be one value", option, text));
  return values.front();
}

void check_together(const FitOptions& options) {
  auto refuse = [](const char* option, const char* why) {
    throw UsageError(fmt::format("{}: {}", option, why));
  };
  if (!options.train && !options.optimizer.empty()) refuse("--optimizer", "needs --train");
  if (!options.train && options.checkpoint) refuse("--checkpoint", "needs --train");
  if (options.train && options.kv_cache)
    refuse("--kv-cache and --train", "cannot be combined; a KV cache is for generation");
}

Transformer model_of(const FitOptions& options) {
  constexpr std::array<std::string_view, 3> kOptimizers = {"adam", "sgd", "none"};
  Transformer model;
  model.width = parse_integer("--width", options.width, {.lowest = 1, .highest = 1 << 20});
  model.depth = parse_integer("--depth", options.depth, {.lowest = 1, .highest = 1 << 16});
  model.heads = parse_integer("--heads", options.heads, {.lowest = 1, .highest = 1 << 16});
  model.batch = parse_integer("--batch", options.batch, {.lowest = 1, .highest = 1 << 20});
  model.vocabulary = parse_integer("--vocab", options.vocab, {.lowest = 0, .highest = 1 << 30});
  model.dtype = only("--dtype", options.dtype, parse_dtypes("--dtype", {options.dtype}));
  model.causal = only("--causal", options.causal, parse_switches("--causal", options.causal));
  model.train = options.train;
  if (!options.optimizer.empty()) {
    model.optimizer = static_cast<Optimizer>(
        only("--optimizer", options.optimizer, parse_choices("--optimizer", options.optimizer, kOptimizers)));
  }
  model.checkpoint = options.checkpoint;
  model.kv_cache = options.kv_cache;
  if (model.width % model.heads != 0) {
    throw UsageError(fmt::format("--heads '{}': must divide --width {}", model.heads, model.width));
  }
  if (model.width / model.heads > 256) {
    throw UsageError(
        fmt::format("--heads '{}': heads of {} columns are wider than 256; at least {} are needed",
                    model.heads, model.width / model.heads, (model.width + 255) / 256));
  }
  return model;
}

std::string model_text(const Transformer& model, double bytes) {
  std::string text = fmt::format("{} of width {}, {} layers, {} heads, {}, batch {}",
                                 model.train ? "training a transformer" : "a transformer", model.width,
                                 model.depth, model.heads, name(model.dtype), model.batch);
  text += model.vocabulary > 0 ? fmt::format(", vocabulary {}", model.vocabulary) : ", layers alone";
  if (model.train) text += fmt::format(", optimizer {}", name(model.optimizer));
  if (model.checkpoint) text += ", checkpoints";
  if (model.kv_cache) text += ", KV cache";
  return wrap(fmt::format("{}; in {}", text, bytes_text(bytes)), line_width(), 0) + "\n";
}

// A kind of memory: its column, its place in the bars and its field of the JSON.
struct MemoryItem {
  const char* header;
  const char* field;
  const char* cell;  // of a bar
  double FitMemory::* bytes;
};

constexpr std::array<MemoryItem, 6> kMemoryItems = {{
    {"parameters", "parameters_bytes", "█", &FitMemory::parameters},
    {"gradients", "gradients_bytes", "▓", &FitMemory::gradients},
    {"optimizer", "optimizer_bytes", "▒", &FitMemory::optimizer},
    {"activations", "activations_bytes", "░", &FitMemory::activations},
    {"attention", "attention_bytes", "#", &FitMemory::attention},
    {"at work", "working_bytes", "+", &FitMemory::working},
}};

// The kinds of memory that some fit uses.
std::vector<MemoryItem> items_of(const std::vector<Fit>& fits) {
  std::vector<MemoryItem> items;
  for (const MemoryItem& item : kMemoryItems) {
    const bool used =
        std::any_of(fits.begin(), fits.end(), [&](const Fit& fit) { return fit.memory.*item.bytes > 0; });
    if (used) items.push_back(item);
  }
  return items;
}

std::string length_text(std::int64_t length) {
  if (length == 0) return "none";
  return (length >= kLongestFit ? "at least " : "") + fmt::format("{}", length);
}

std::string table_text(const std::vector<Fit>& fits) {
  const std::vector<MemoryItem> items = items_of(fits);
  std::vector<Column> columns = {{.header = "with", .justify = Justify::left}, {.header = "longest N"}};
  for (const MemoryItem& item : items) columns.push_back({.header = item.header});
  columns.push_back({.header = "total"});
  columns.push_back({.header = "at work on", .justify = Justify::left});
  std::vector<std::vector<std::string>> rows;
  for (const Fit& fit : fits) {
    std::vector<std::string> row = {fit.choice.name, length_text(fit.length)};
    for (const MemoryItem& item : items) row.push_back(bytes_text(fit.memory.*item.bytes));
    row.push_back(bytes_text(fit.memory.total()));
    row.emplace_back(fit.memory.at_work);
    rows.push_back(std::move(row));
  }
  return render(std::move(columns), rows);
}

std::string repeated(const char* cell, double share, double width) {
  std::string bar;
  for (int i = 0; i < static_cast<int>(share * width + 0.5); ++i) bar += cell;
  return bar;
}

// A bar for each, as long as its sequence; and one of what takes the memory, up to the mark where
// it ends.
std::string chart_text(const std::vector<Fit>& fits, double bytes) {
  constexpr double kWidest = 60;
  double longest = 0, most = bytes;
  std::size_t label = 0;
  for (const Fit& fit : fits) {
    longest = std::max(longest, static_cast<double>(fit.length));
    most = std::max(most, fit.memory.total());
    label = std::max(label, display_width(fit.choice.name));
  }
  auto line = [&](const Fit& fit, const std::string& bar) {
    return fmt::format("{}  {}\n", pad(fit.choice.name, label, Justify::left), bar);
  };
  std::string text;
  if (longest > 0) {
    text += "longest N\n";
    for (const Fit& fit : fits) {
      const std::string bar = repeated("█", static_cast<double>(fit.length) / longest, kWidest);
      text += line(fit, bar + (bar.empty() ? "" : " ") + length_text(fit.length));
    }
    text += "\n";
  }
  std::vector<std::string> legend;
  for (const MemoryItem& item : items_of(fits))
    legend.push_back(fmt::format("{} {}", item.cell, item.header));
  text +=
      fmt::format("memory{}: {}\n", longest > 0 ? " at that length" : fmt::format(" for N = {}", kFitStep),
                  fmt::join(legend, "  "));
  const auto end = static_cast<std::size_t>(bytes / most * kWidest + 0.5);
  for (const Fit& fit : fits) {
    std::string bar;
    double before = 0;
    for (const MemoryItem& item :
         items_of(fits)) {  // rounded where they end, so that rounding does not add up
      const double after = before + fit.memory.*item.bytes / most;
      const double cells = std::max(0.0, after * kWidest + 0.5) - static_cast<double>(display_width(bar));
      for (int i = 0; i < static_cast<int>(cells); ++i) bar += item.cell;
      before = after;
    }
    const std::size_t used = display_width(bar);
    text += line(fit, fmt::format("{} {}", used <= end ? pad(bar, end, Justify::left) + "|" : bar,
                                  bytes_text(fit.memory.total())));
  }
  if (most > bytes) {
    text += fmt::format("{}^ the {} end here\n",
                        std::string(label + 2 + std::max<std::size_t>(end, 1) - 1, ' '), bytes_text(bytes));
  }
  return text;
}

// For models that fit with no attention: what takes the memory, and which changes make it fit.
std::string advice_text(const Transformer& model, const std::vector<Fit>& fits, double bytes, Device device) {
  // With the attention that grows least.
  auto wanted = [&](const Fit& fit) { return memory_of(model, fit.choice, kWanted, device).total(); };
  const auto least = std::min_element(fits.rbegin(), fits.rend(),
                                      [&](const Fit& a, const Fit& b) { return wanted(a) < wanted(b); });
  const FitMemory& m = least->memory;
  const double fixed = m.parameters + m.gradients + m.optimizer;
  std::vector<std::string> taken;
  for (const MemoryItem& item : kMemoryItems) {
    if (m.*item.bytes > 0) taken.push_back(fmt::format("{} {}", item.header, bytes_text(m.*item.bytes)));
  }
  std::string text =
      fixed > bytes ? fmt::format("Nothing fits: parameters{} alone take {} at any length",
                                  model.train ? ", gradients and optimizer state" : "", bytes_text(fixed))
                    : fmt::format("Nothing fits: {} tokens take {}", kFitStep, bytes_text(m.total()));
  text = "\n" + wrap(fmt::format("{} ({}).", text, fmt::join(taken, ", ")), line_width(), 0) + "\n";
  text += fmt::format("Changes that make it fit, with {}:\n", least->choice.name);
  const std::vector<Remedy> found = remedies(model, least->choice, bytes, device, kWanted);
  std::size_t widest = 0;
  for (const Remedy& remedy : found) widest = std::max(widest, remedy.options.size());
  for (const Remedy& remedy : found) {
    text +=
        fmt::format("  {}  N = {}\n", pad(remedy.options, widest, Justify::left), length_text(remedy.length));
  }
  return text;
}

nlohmann::ordered_json fit_json(const Fit& fit) {
  nlohmann::ordered_json json = {{"attention", fit.choice.name}, {"longest", fit.length}};
  for (const MemoryItem& item : kMemoryItems) json[item.field] = fit.memory.*item.bytes;
  json["working_on"] = fit.memory.at_work;
  json["total_bytes"] = fit.memory.total();
  return json;
}

int run_fit(const FitOptions& options) {
  if (options.memory.empty()) throw UsageError("--memory: needs a size, e.g. 16GiB");
  const auto bytes = static_cast<double>(parse_bytes("--memory", options.memory));
  check_together(options);
  const Transformer model = model_of(options);
  const Device device = parse_device("--device", options.device);
  std::optional<cuda::AssumedGpu> gpu;
  if (!options.assume_gpu.empty()) {
    if (device.type != DeviceType::cuda) throw UsageError("--assume-gpu requires --device cuda");
    gpu.emplace(parse_capability("--assume-gpu", options.assume_gpu));
  }
  std::vector<Fit> fits;
  std::vector<std::string> missing;
  for (const FitChoice& choice : fit_choices(model.train, device.type)) {
    try {
      fits.push_back(longest_fit(model, choice, bytes, device));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
      missing.push_back(fmt::format("{}: {}", choice.name, one_line(error.what())));
    }
  }
  const bool none = std::all_of(fits.begin(), fits.end(), [](const Fit& fit) { return fit.length == 0; });
  if (options.json) {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const Fit& fit : fits) all.push_back(fit_json(fit));
    print(all.dump(2, ' ', true) + "\n");
  } else if (!fits.empty()) {
    print(fmt::format("{}\n{}\n{}{}", model_text(model, bytes), table_text(fits), chart_text(fits, bytes),
                      none ? advice_text(model, fits, bytes, device) : ""));
  }
  for (const std::string& line : missing) fmt::print(stderr, "note: {}\n", line);
  return fits.empty() ? 1 : 0;
}

}  // namespace

void add_fit(CLI::App& application, Action& action) {
  CLI::App* command = application.add_subcommand(
      "fit", "Find the longest sequence that fits into a given memory, with each attention");
  command->allow_extras();
  auto options = std::make_shared<FitOptions>();
  auto option = [&](const char* flag, std::string& value, const char* what, const char* form) {
    return command->add_option(flag, value, what)->option_text(form);
  };
  option("--memory", options->memory, "Memory to fit into, e.g. 16GiB", "SIZE");
  option("--width", options->width, "Width of the model [1024]", "N");
  option("--depth", options->depth, "Layers [12]", "N");
  option("--heads", options->heads, "Heads, a divisor of --width [16]", "N");
  option("--batch", options->batch, "Sequences at a time [1]", "N");
  option("--vocab", options->vocab, "Vocabulary, for the embedding and the logits [0: layers only]", "N");
  option("--dtype", options->dtype, "fp64, fp32, fp16 or bf16 [bf16]", "TYPE");
  option("--causal", options->causal, "Each query attends to keys up to its own position [yes]", "[yes|no]");
  option("--device", options->device, "cpu, cuda or cuda:N [cpu]", "DEVICE");
  option("--assume-gpu", options->assume_gpu,
         "Plan for a GPU of this compute capability, with or without such a GPU [the GPU of --device]",
         "X.Y");
  command->add_flag("--train", options->train,
                    "Count gradients, optimizer state and activations for backward");
  option("--optimizer", options->optimizer, "adam, sgd (with momentum) or none, for --train [adam]", "NAME");
  command->add_flag("--checkpoint", options->checkpoint,
                    "For --train: keep only the input of each layer and recompute the rest");
  command->add_flag("--kv-cache", options->kv_cache, "Without --train: keep keys and values of every layer");
  command->add_flag("--json", options->json, "Print the numbers as JSON instead")->group("Output");
  command->footer(
      "Parameters: 12 width^2 per layer. Activations in training: 16 N width per layer. \"At work\" is the "
      "largest\n"
      "temporary memory: 9 N width for linear maps, 5 N width and the workspace of the library's plan for\n"
      "attention, or the logits. Adam keeps 8 bytes per parameter and SGD 4; both keep 4 more for an fp32 "
      "copy of\n"
      "a 16-bit model. \"standard, P kept\" saves every layer's N x N probabilities for backward, as "
      "frameworks do;\n"
      "\"standard\" recomputes them. The framework's own memory is not counted.\n\n"
      "Examples:\n"
      "  tessera fit --memory 16GiB --width 2048 --depth 24 --heads 16 --train --optimizer sgd\n"
      "  tessera fit --memory 24GiB --width 4096 --depth 32 --heads 32 --kv-cache --vocab 32000\n"
      "  tessera fit --memory 80GiB --width 4096 --depth 32 --heads 32 --device cuda --assume-gpu 9.0");
  command->callback([&action, options] { action = [options] { return run_fit(*options); }; });
}

}  // namespace tessera::lab
