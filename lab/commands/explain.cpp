// `tessera explain`: the plan for a problem, and why the other kernels were not chosen.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cuda/common/host/gpus.h"
#include "lab/commands/commands.h"
#include "lab/commands/options.h"
#include "lab/problem/operation.h"
#include "lab/terminal/table.h"
#include "lab/terminal/terminal.h"
#include "lab/terminal/text.h"
#include "lab/terminal/units.h"
#include "tessera/plan.h"

namespace tessera::lab {
namespace {

constexpr std::size_t kLabel = 12;

struct ExplainOptions {
  ProblemOptions problem;
  std::string assume_gpu;
  bool json = false;
};

nlohmann::ordered_json plan_json(const Plan& plan) {
  nlohmann::ordered_json rejected = nlohmann::ordered_json::array();
  for (const Rejection& rejection : plan.rejected) {
    rejected.push_back({{"kernel", rejection.kernel}, {"reason", rejection.reason}});
  }
  return {{"kernel", plan.kernel},
          {"algorithm", name(plan.algorithm)},
          {"direction", name(plan.direction)},
          {"device", to_string(plan.device)},
          {"threads", plan.threads},
          {"block_q", plan.block_q},
          {"block_k", plan.block_k},
          {"shared_memory_bytes", plan.shared_memory_bytes},
          {"workspace_bytes", plan.workspace_bytes},
          {"flops", plan.flops},
          {"visible_pairs", plan.visible_pairs},
          {"minimum_bytes", plan.minimum_bytes},
          {"traffic_bytes", plan.traffic_bytes},
          {"standard_traffic_bytes", plan.standard_traffic_bytes},
          {"standard_workspace_bytes", plan.standard_workspace_bytes},
          {"details", plan.details},
          {"rejected", rejected}};
}

std::string fact(const std::string& label, const std::string& text) {
  return pad(label, kLabel, Justify::left) + wrap(text, line_width(), kLabel) + "\n";
}

// "standard: 16.0 MiB, 128 times as much"; the ratio only where both take memory.
std::string against_standard(double ours, double standard) {
  std::string text = "standard: " + bytes_text(standard);
  if (ours > 0 && standard > 0) text += fmt::format(", {} times as much", significant(standard / ours));
  return text;
}

std::string plan_text(const Operation& operation, const Plan& plan, bool color) {
  const Shapes& shapes = operation.shapes();
  std::string place = to_string(plan.device);
  if (plan.threads > 0) place += fmt::format(", {} threads", plan.threads);
  const double pairs = static_cast<double>(shapes.batch) * static_cast<double>(shapes.q_heads) *
                       static_cast<double>(shapes.q_length) * static_cast<double>(shapes.k_length);

  std::string text = fact("problem", to_string(operation.problem()));
  text += fact("kernel", fmt::format("{} ({}, {}) on {}", colored(plan.kernel, Color::bold, color),
                                     name(plan.algorithm), name(plan.direction), place));
  text += fact("tiles", fmt::format("{} queries x {} keys", plan.block_q, plan.block_k));
  if (plan.shared_memory_bytes > 0) {
    text += fact("shared", bytes_text(static_cast<double>(plan.shared_memory_bytes)) + " per thread block");
  }
  const auto workspace = static_cast<double>(plan.workspace_bytes);
  const bool standard = plan.algorithm == Algorithm::standard;
  text += fact("workspace",
               bytes_text(workspace) +
                   (standard ? "" : " (" + against_standard(workspace, plan.standard_workspace_bytes) + ")"));
  text += fact("work", fmt::format("{} over {} visible pairs, {:.1f}% of all", count_text(plan.flops, "FLOP"),
                                   count_text(plan.visible_pairs),
                                   pairs > 0 ? plan.visible_pairs / pairs * 100 : 0.0));
  text += fact(
      "traffic",
      fmt::format(
          "{} predicted, {} at least{}", bytes_text(plan.traffic_bytes), bytes_text(plan.minimum_bytes),
          standard ? "" : " (" + against_standard(plan.traffic_bytes, plan.standard_traffic_bytes) + ")"));
  std::string label = "details";
  for (const std::string& line : split(plan.details, '\n')) {
    if (line.empty()) continue;
    text += fact(label, line);
    label.clear();
  }
  label = "not chosen";
  for (const Rejection& rejection : plan.rejected) {
    text += fact(label, fmt::format("{}: {}", rejection.kernel, rejection.reason));
    label.clear();
  }
  return text;
}

// The block mask as a drawing, when it fits.
std::string mask_drawing(const Operation& operation) {
  constexpr std::int64_t kMostBlocks = 64;
  const BlockMask& blocks = operation.attention(Algorithm::automatic).mask.blocks;
  if (!blocks || blocks.q_blocks() > kMostBlocks || blocks.k_blocks() > kMostBlocks) return {};
  std::string text = fmt::format("\nkept blocks of {} queries x {} keys\n", blocks.layout().block_q,
                                 blocks.layout().block_k);
  for (const std::string& line : split(blocks.draw(), '\n')) {
    if (!line.empty()) text += "  " + line + "\n";
  }
  return text;
}

int run_explain(const ExplainOptions& options) {
  const std::vector<Problem> problems = parse_problems(options.problem);
  const std::vector<Algorithm> algorithms = parse_algorithms(options.problem);
  const Problem& first = problems.front();
  const bool one = std::all_of(problems.begin(), problems.end(),
                               [&](const Problem& problem) { return same_but_direction(problem, first); });
  if (!one) {
    throw UsageError("explain takes one value for each option but --direction; tessera bench takes lists");
  }
  if (algorithms.size() > 1) {
    throw UsageError(
        "--algorithm: explain takes one value; its output also says why other kernels were not chosen");
  }
  const Operation operation(first);
  std::optional<cuda::AssumedGpu> gpu;
  if (!options.assume_gpu.empty()) {
    if (first.device.type != DeviceType::cuda) {
      throw UsageError("--assume-gpu requires --device cuda");
    }
    gpu.emplace(parse_capability("--assume-gpu", options.assume_gpu));
  }
  const Algorithm algorithm = algorithms.empty() ? Algorithm::automatic : algorithms.front();
  const Execution execution{.threads = static_cast<int>(first.threads)};

  nlohmann::ordered_json plans = nlohmann::ordered_json::array();
  std::string text;
  std::vector<Direction> directions;
  for (const Problem& problem : problems) {
    if (problem.direction != Pass::backward) directions.push_back(Direction::forward);
    if (problem.direction != Pass::forward) directions.push_back(Direction::backward);
  }
  for (const Direction direction : directions) {
    const Plan plan =
        tessera::plan(operation.attention(algorithm), operation.shapes(), first.device, direction, execution);
    plans.push_back(plan_json(plan));
    text += (text.empty() ? "" : "\n") + plan_text(operation, plan, use_color(stdout));
  }
  if (options.json) {
    print((plans.size() == 1 ? plans.front() : plans).dump(2, ' ', true) + "\n");
  } else {
    print(text + mask_drawing(operation));
  }
  return 0;
}

}  // namespace

void add_explain(CLI::App& application, Action& action) {
  CLI::App* command = application.add_subcommand(
      "explain", "Show the plan for a problem: kernel, tiles, memory, FLOPs, traffic; and why not others");
  command->allow_extras();
  auto options = std::make_shared<ExplainOptions>();
  add_problem_options(*command, options->problem, "automatic");
  command
      ->add_option(
          "--assume-gpu", options->assume_gpu,
          "Plan for a GPU of this compute capability, with or without such a GPU [the GPU of --device]")
      ->option_text("X.Y");
  command->add_flag("--json", options->json, "Print the plan as JSON instead (two directions: an array)")
      ->group("Output");
  command->footer(
      "One value for each option; --direction both explains forward and backward.\n\n"
      "Examples:\n"
      "  tessera explain --batch 2 --seq 4096 --heads 16 --dim 128 --dtype bf16 --causal\n"
      "  tessera explain --device cuda --assume-gpu 8.6 --seq 4096 --dtype bf16\n"
      "  tessera explain --seq 2048 --block-mask bigbird:1,1,2 --block-size 64 --direction backward\n"
      "  tessera explain --heads 32 --kv-heads 8 --window 1023,0 --algorithm standard --json");
  command->callback([&action, options] { action = [options] { return run_explain(*options); }; });
}

}  // namespace tessera::lab
