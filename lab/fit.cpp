// `tessera fit`: how long a sequence fits into a memory, with which attention.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cuda/host/devices.h"
#include "lab/commands.h"
#include "lab/fit_model.h"
#include "lab/options.h"
#include "lab/parse.h"
#include "lab/table.h"
#include "lab/terminal.h"
#include "lab/units.h"
#include "tessera/error.h"

namespace tessera::lab {
namespace {

struct FitOptions {
  std::string memory, width = "1024", depth = "12", heads = "16", batch = "1", dtype = "bf16", causal = "yes";
  std::string device = "cpu", assume_gpu;
  bool train = false, json = false;
};

Transformer model_of(const FitOptions& options) {
  Transformer model;
  model.width = parse_integer("--width", options.width, {.lowest = 1, .highest = 1 << 20});
  model.depth = parse_integer("--depth", options.depth, {.lowest = 1, .highest = 1 << 16});
  model.heads = parse_integer("--heads", options.heads, {.lowest = 1, .highest = 1 << 16});
  model.batch = parse_integer("--batch", options.batch, {.lowest = 1, .highest = 1 << 20});
  model.dtype = parse_dtypes("--dtype", {options.dtype}).front();
  model.causal = parse_switches("--causal", options.causal).front();
  model.train = options.train;
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

std::string length_text(std::int64_t length) {
  if (length == 0) return "none";
  return (length >= kLongestFit ? "at least " : "") + fmt::format("{}", length);
}

std::string table_text(const std::vector<Fit>& fits) {
  std::vector<Column> columns = {{.header = "attention", .justify = Justify::left}};
  for (const char* header : {"longest N", "parameters", "states", "activations", "attention's", "in all"}) {
    columns.push_back({.header = header});
  }
  std::vector<std::vector<std::string>> rows;
  for (const Fit& fit : fits) {
    const FitMemory& m = fit.memory;
    rows.push_back({fit.choice.name, length_text(fit.length), bytes_text(m.parameters), bytes_text(m.states),
                    bytes_text(m.activations), bytes_text(m.attention), bytes_text(m.total())});
  }
  return render(std::move(columns), rows);
}

// A bar for each, as long as its sequence.
std::string chart_text(const std::vector<Fit>& fits) {
  constexpr double kWidest = 50;
  std::int64_t longest = 1;
  std::size_t label = 0;
  for (const Fit& fit : fits) {
    longest = std::max(longest, fit.length);
    label = std::max(label, display_width(fit.choice.name));
  }
  std::string text;
  for (const Fit& fit : fits) {
    const auto cells = static_cast<std::size_t>(
        kWidest * static_cast<double>(fit.length) / static_cast<double>(longest) + 0.5);
    std::string bar;
    for (std::size_t i = 0; i < cells; ++i) bar += "█";
    text += fmt::format("{}  {}{}{}\n", pad(fit.choice.name, label, Justify::left), bar,
                        bar.empty() ? "" : " ", length_text(fit.length));
  }
  return text;
}

nlohmann::ordered_json fit_json(const Fit& fit) {
  const FitMemory& m = fit.memory;
  return {{"attention", fit.choice.name},
          {"longest", fit.length},
          {"parameters_bytes", m.parameters},
          {"states_bytes", m.states},
          {"activations_bytes", m.activations},
          {"attention_bytes", m.attention},
          {"total_bytes", m.total()}};
}

int run_fit(const FitOptions& options) {
  if (options.memory.empty()) throw UsageError("--memory: a size is needed, e.g. 16GiB");
  const auto bytes = static_cast<double>(parse_bytes("--memory", options.memory));
  const Transformer model = model_of(options);
  const Device device = parse_device("--device", options.device);
  std::optional<cuda::AssumedGpu> gpu;
  if (!options.assume_gpu.empty()) {
    if (device.type != DeviceType::cuda) throw UsageError("--assume-gpu: needs --device cuda");
    gpu.emplace(parse_capability("--assume-gpu", options.assume_gpu));
  }
  std::vector<Fit> fits;
  std::vector<std::string> missing;
  for (const FitChoice& choice : fit_choices(model.train)) {
    try {
      fits.push_back(longest_fit(model, choice, bytes, device));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
      missing.push_back(fmt::format("{}: {}", choice.name, one_line(error.what())));
    }
  }
  if (options.json) {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const Fit& fit : fits) all.push_back(fit_json(fit));
    print(all.dump(2) + "\n");
  } else {
    print(fmt::format("{} of width {}, {} layers, {} heads, {}, batch {}, in {}\n\n{}\n{}",
                      model.train ? "training a transformer" : "a transformer", model.width, model.depth,
                      model.heads, name(model.dtype), model.batch, bytes_text(bytes), table_text(fits),
                      chart_text(fits)));
  }
  for (const std::string& line : missing) fmt::print(stderr, "note: {}\n", line);
  return fits.empty() ? 1 : 0;
}

}  // namespace

void add_fit(CLI::App& application, Action& action) {
  CLI::App* command =
      application.add_subcommand("fit", "How long a sequence fits into a memory, with which attention");
  command->allow_extras();
  auto options = std::make_shared<FitOptions>();
  command->add_option("--memory", options->memory, "What there is, e.g. 16GiB")->option_text("SIZE");
  command->add_option("--width", options->width, "Of the model [1024]")->option_text("N");
  command->add_option("--depth", options->depth, "Layers [12]")->option_text("N");
  command->add_option("--heads", options->heads, "A divisor of --width [16]")->option_text("N");
  command->add_option("--batch", options->batch, "Sequences at a time [1]")->option_text("N");
  command->add_option("--dtype", options->dtype, "fp32, fp16 or bf16 [bf16]")->option_text("TYPE");
  command->add_option("--causal", options->causal, "No query sees a key after it [yes]")
      ->option_text("[yes|no]");
  command->add_flag("--train", options->train,
                    "With gradients, Adam's states and the activations of every layer");
  command->add_option("--device", options->device, "cpu, cuda or cuda:N [cpu]")->option_text("DEVICE");
  command
      ->add_option("--assume-gpu", options->assume_gpu,
                   "Plan for a GPU of this compute capability, which need not be there [the GPU of --device]")
      ->option_text("X.Y");
  command->add_flag("--json", options->json, "Print the numbers as JSON instead")->group("Output");
  command->footer(
      "Parameters: 12 width^2 per layer. Activations: 9 N width for one layer, or 16 N width for every layer "
      "in\n"
      "training. Adam: 12 bytes per parameter (8 in fp32) beside its gradient. Attention: what the "
      "library's\n"
      "own plan declares, and LSE. \"P kept\" saves every layer's N x N probabilities for backward, as "
      "frameworks\n"
      "do; \"standard\" computes them again. Embeddings and the memory of the framework come on top.\n\n"
      "Examples:\n"
      "  tessera fit --memory 16GiB --width 2048 --depth 24 --heads 16 --train\n"
      "  tessera fit --memory 80GiB --width 4096 --depth 32 --heads 32 --device cuda --assume-gpu 9.0");
  command->callback([&action, options] { action = [options] { return run_fit(*options); }; });
}

}  // namespace tessera::lab
