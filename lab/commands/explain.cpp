// `tessera explain`: the plan for a problem, and why the other kernels were passed over.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cuda/common/host/gpus.h"
#include "lab/commands/commands.h"
#include "lab/commands/options.h"
#include "lab/problem/workload.h"
#include "lab/terminal/table.h"
#include "lab/terminal/terminal.h"
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
  return pad(label, kLabel, Justify::left) + wrap(text, kWidestLine, kLabel) + "\n";
}

// "standard: 16.0 MiB, 128x"; how many times more it is, when that can be said.
std::string against_standard(double ours, double standard) {
  std::string text = "standard: " + bytes_text(standard);
  if (ours > 0 && standard > 0) {
    const double ratio = standard / ours;
    text += ratio >= 1 ? fmt::format(", {}x more", significant(ratio))
                       : fmt::format(", {}x less", significant(1 / ratio));
  }
  return text;
}

std::string plan_text(const Workload& workload, const Plan& plan, bool color) {
  const Shapes& shapes = workload.shapes();
  std::string place = to_string(plan.device);
  if (plan.threads > 0) place += fmt::format(", {} threads", plan.threads);
  const double pairs = static_cast<double>(shapes.batch) * static_cast<double>(shapes.q_heads) *
                       static_cast<double>(shapes.q_length) * static_cast<double>(shapes.k_length);

  std::string text = fact("problem", to_string(workload.point()));
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
std::string mask_drawing(const Workload& workload) {
  constexpr std::int64_t kMostBlocks = 64;
  const BlockMask& blocks = workload.attention(Algorithm::automatic).mask.blocks;
  if (!blocks || blocks.q_blocks() > kMostBlocks || blocks.k_blocks() > kMostBlocks) return {};
  std::string text = fmt::format("\nkept blocks of {} queries x {} keys\n", blocks.layout().block_q,
                                 blocks.layout().block_k);
  for (const std::string& line : split(blocks.draw(), '\n')) {
    if (!line.empty()) text += "  " + line + "\n";
  }
  return text;
}

int run_explain(const ExplainOptions& options) {
  const Sweep sweep = parse_sweep(options.problem);
  if (sweep.points.size() > 1) {
    throw UsageError("explain takes one value for each option; tessera bench sweeps over lists");
  }
  if (sweep.algorithms.size() > 1) {
    throw UsageError("--algorithm: explain takes one; it also says why the others were not chosen");
  }
  const Workload workload(sweep.points.front());
  std::optional<cuda::AssumedGpu> gpu;
  if (!options.assume_gpu.empty()) {
    if (sweep.device.type != DeviceType::cuda) {
      throw UsageError("--assume-gpu: needs --device cuda");
    }
    gpu.emplace(parse_capability("--assume-gpu", options.assume_gpu));
  }
  const Algorithm algorithm = sweep.algorithms.empty() ? Algorithm::automatic : sweep.algorithms.front();
  const Execution execution{.threads = static_cast<int>(workload.point().threads)};

  nlohmann::ordered_json plans = nlohmann::ordered_json::array();
  std::string text;
  for (const Direction direction : sweep.directions) {
    const Plan plan =
        tessera::plan(workload.attention(algorithm), workload.shapes(), sweep.device, direction, execution);
    plans.push_back(plan_json(plan));
    text += (text.empty() ? "" : "\n") + plan_text(workload, plan, use_color(stdout));
  }
  if (options.json) {
    print((plans.size() == 1 ? plans.front() : plans).dump(2) + "\n");
  } else {
    print(text + mask_drawing(workload));
  }
  return 0;
}

}  // namespace

void add_explain(CLI::App& application, Action& action) {
  CLI::App* command = application.add_subcommand(
      "explain", "The plan for a problem: kernel, tiles, memory, FLOPs, traffic; and why not the others");
  command->allow_extras();
  auto options = std::make_shared<ExplainOptions>();
  add_problem_options(*command, options->problem, "automatic");
  command
      ->add_option("--assume-gpu", options->assume_gpu,
                   "Plan for a GPU of this compute capability, which need not be there [the GPU of --device]")
      ->option_text("X.Y");
  command->add_flag("--json", options->json, "Print the plan as JSON instead (two directions: an array)")
      ->group("Output");
  command->footer(
      "One value for each option; --direction forward,backward explains both.\n\n"
      "Examples:\n"
      "  tessera explain --batch 2 --seq 4096 --heads 16 --dim 128 --dtype bf16 --causal\n"
      "  tessera explain --device cuda --assume-gpu 8.6 --seq 4096 --dtype bf16\n"
      "  tessera explain --seq 2048 --block-mask bigbird:1,1,2 --block-size 64 --direction backward\n"
      "  tessera explain --heads 32 --kv-heads 8 --window 1023,0 --algorithm standard --json");
  command->callback([&action, options] { action = [options] { return run_explain(*options); }; });
}

}  // namespace tessera::lab
