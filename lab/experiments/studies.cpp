#include "lab/experiments/studies.h"

#include <fmt/format.h>

#include <algorithm>

#include "lab/experiments/origins.h"
#include "lab/terminal/errors.h"
#include "lab/terminal/table.h"
#include "lab/terminal/text.h"

namespace tessera::lab {
namespace {

// Studies have one size; see Scale::study.
Scaled<std::vector<BenchText>> sizes(std::vector<BenchText> sweeps) { return {.full = std::move(sweeps)}; }

Figure lines(const std::string& title, const std::string& x, const std::string& y,
             std::vector<std::string> facets = {}) {
  return {.kind = FigureKind::lines, .title = title, .x = x, .y = {y}, .facets = std::move(facets)};
}

Figure bars(const std::string& title, const std::string& x, const std::string& y,
            std::vector<std::string> facets = {}) {
  return {.kind = FigureKind::bars, .title = title, .x = x, .y = {y}, .facets = std::move(facets)};
}

// Time, speed and peak memory over a field, on linear axes.
std::vector<Figure> time_speed_peak(const std::string& x, const std::vector<std::string>& facets = {}) {
  return {lines("Time", x, "median_ms", facets), lines("Speed", x, "tflops", facets),
          lines("Peak memory", x, "peak_bytes", facets)};
}

// The same as columns of one table, a row for each value of the field.
Figure one_table(const std::string& title, const std::string& x) {
  return {.kind = FigureKind::table, .title = title, .x = x, .y = {"median_ms", "tflops", "peak_bytes"}};
}

// ---- FlashAttention-1 against PyTorch on a T4, twelve figures ----

Study t4() {
  const std::string base = "--causal yes --batch 16 --heads 8 --dim 64 ";
  auto experiment = [](const std::string& name, const std::string& title, const std::string& question,
                       const std::string& figures, const BenchText& sweep, std::vector<Figure> drawn) {
    return Experiment{.name = "t4_" + name,
                      .title = "T4: " + title,
                      .question = question,
                      .origin = origin::kT4 + ", " + figures,
                      .problems = {{.common = "", .sweeps = sizes({sweep})}},
                      .figures = std::move(drawn)};
  };
  const std::string ours = "--algorithm flash1,flash2 ";
  Figure time = lines("Figure 1: time", "q_length", "median_ms");
  Figure speed = lines("Figure 2: speed", "q_length", "tflops");
  Figure peak = lines("Figure 8: peak memory", "q_length", "peak_bytes");
  Figure against_pytorch = bars("Figure 4: speed-up over PyTorch", "q_length", "speedup_over_pytorch");
  Figure by_batch = lines("Figure 3: time", "batch", "median_ms");
  Figure masks = lines("Figure 5: time with and without the mask", "q_length", "median_ms", {"algorithm"});
  masks.series = {"mask"};
  Figure by_heads = lines("Figure 6: speed", "q_heads", "tflops");
  Figure directions = bars("Figure 9: time by direction", "q_length", "median_ms", {"algorithm", "batch"});
  directions.series = {"direction"};
  Figure by_dim = lines("Figure 10: speed", "qk_dim", "tflops");
  const Figure heat = {.kind = FigureKind::heatmap,
                       .title = "Figure 11: speed",
                       .x = "q_length",
                       .y = {"batch"},
                       .series = {},
                       .facets = {"algorithm", "direction"},
                       .value = "tflops"};
  Figure all = bars("Figure 12: speed", "algorithm", "tflops");
  all.series = {"direction"};
  return {
      .name = "t4",
      .origin = origin::kT4,
      .settings =
          "causal, batch 16, 8 heads of 64, N = 512 unless it is varied; fp16 on a GPU, fp32 on a CPU",
      .experiments = {
          experiment(
              "sequence", "sequence length", "How do time, speed and memory grow with the sequence?",
              "figures 1, 2, 4 and 8", base + "--seq 128..2048",
              {time, speed, bars("Figure 4: speed-up over standard", "q_length", "speedup_over_standard"),
               against_pytorch, peak, lines("Extra memory", "q_length", "peak_extra_bytes")}),
          experiment("batch", "batch size", "Is time linear in the batch?", "figure 3",
                     ours + "--causal yes --heads 8 --dim 64 --seq 512 --batch 1..64", {by_batch}),
          experiment("causal", "causal masks", "How much time does the causal mask save?", "figure 5",
                     ours + "--causal no,yes --batch 16 --heads 8 --dim 64 --seq 128..2048", {masks}),
          experiment("heads", "heads of 64", "How does the speed depend on the number of heads?", "figure 6",
                     ours + "--causal yes --batch 16 --dim 64 --seq 512 --heads 1..16,24,32,64", {by_heads}),
          experiment("width", "width", "Is time linear in the width of the model?", "figure 7",
                     ours + "--causal yes --batch 16 --heads 8 --seq 512 --dim 8..256",
                     {lines("Figure 7: time", "embedding", "median_ms")}),
          experiment("direction", "forward and backward",
                     "How much longer does the backward pass take, and at which sizes is it fast?",
                     "figures 9 and 11",
                     ours + "--causal yes --heads 8 --dim 64 --batch 1..16 --seq 128..2048 --direction "
                            "forward,backward",
                     {directions, heat}),
          experiment("head_dim", "head dimension", "How does the speed depend on the head dimension?",
                     "figure 10", ours + "--causal yes --batch 16 --heads 8 --seq 512 --dim 16..256",
                     {by_dim}),
          experiment("summary", "all algorithms",
                     "How fast is each algorithm forward, backward and both ways?", "figure 12",
                     base + "--seq 512 --direction forward,backward,both", {all}),
      }};
}

// ---- FlashAttention-2 against PyTorch ----

Study sweeps() {
  auto experiment = [](const std::string& name, const std::string& title, const std::string& question,
                       std::vector<BenchText> sweep, std::vector<Figure> drawn) {
    return Experiment{.name = "sweeps_" + name,
                      .title = "Sweeps: " + title,
                      .question = question,
                      .origin = origin::kSweeps,
                      .problems = {{.common = "--batch 16", .sweeps = sizes(std::move(sweep))}},
                      .figures = std::move(drawn)};
  };
  std::vector<BenchText> heads;
  for (const char* split : {"4 --dim 256", "8 --dim 128", "16 --dim 64", "32 --dim 32", "64 --dim 16"})
    heads.push_back(fmt::format("--algorithm flash2 --seq 1024 --heads {}", split));
  return {
      .name = "sweeps",
      .origin = origin::kSweeps,
      .settings = "batch 16, 16 heads of 64, N = 1024 unless one is varied; the study does not give its own",
      .experiments = {
          experiment("comparison", "flash against standard",
                     "Does flash attention need less time and memory, and do more FLOP/s?",
                     {"--algorithm standard,flash2 --heads 16 --dim 64 --seq 256..2048"},
                     time_speed_peak("q_length")),
          experiment("sequence", "sequence length", "How does flash attention grow with the sequence?",
                     {"--algorithm flash2 --heads 16 --dim 64 --seq 256..4096"}, time_speed_peak("q_length")),
          experiment("width", "width", "How does flash attention grow with the width of the model?",
                     {"--algorithm flash2 --heads 16 --seq 1024 --dim 16..256"},
                     time_speed_peak("embedding")),
          experiment("heads", "heads at a fixed width",
                     "Do more heads of the same total width change memory and FLOPs?", heads,
                     time_speed_peak("q_heads")),
      }};
}

// ---- a minimal CUDA kernel, and a training grid on an L4 ----

Study l4() {
  const std::string common = "--dtype fp32 --dim 64 --batch 4 --heads 12 --seq 64..2048 --algorithm ";
  Figure device = lines("Time", "q_length", "median_ms");
  return {
      .name = "l4",
      .origin = origin::kMinimal,
      .settings =
          "fp32, 32 x 32 tiles, one thread a row; the training grid has batch 1 and sequences of "
          "2048 to 16384",
      .experiments = {Experiment{
          .name = "l4_kernel",
          .title = "L4: the minimal kernel",
          .question = "Is a kernel of one page faster than standard attention, and does it agree with it?",
          .origin = origin::kMinimal + ", its bench script",
          .problems =
              {{.common = common + "standard,flash2", .sweeps = sizes({""}), .only_on = DeviceType::cpu},
               {.common = common + "minimal",
                .sweeps = sizes({""}),
                .method = {.label = "minimal", .baseline = "minimal"},
                .only_on = DeviceType::cpu},
               {.common = common + "standard,flash2,minimal",
                .sweeps = sizes({""}),
                .only_on = DeviceType::cuda}},
          .figures = {device,
                      lines("Time on the host", "q_length", "host_ms"),
                      {.kind = FigureKind::table,
                       .title = "Device and host",
                       .x = "q_length",
                       .y = {"median_ms", "host_ms", "max_error"}}}}},
      .commands = {"python -m tessera.lab training --study"}};
}

// ---- FlashAttention-2 against PyTorch, one parameter at a time ----

// The study gives no sizes. These follow from its times, its rates and its peak memory, which is
// that of five fp16 tensors: batch x N x width is 2^26 at 644 MB.
Study tables() {
  auto experiment = [](const std::string& name, const std::string& title, const std::string& question,
                       const std::string& algorithms, std::vector<BenchText> sweep,
                       std::vector<Figure> drawn) {
    return Experiment{
        .name = "tables_" + name,
        .title = "Tables: " + title,
        .question = question,
        .origin = origin::kTables,
        .problems = {{.common = "--algorithm " + algorithms, .sweeps = sizes(std::move(sweep))}},
        .figures = std::move(drawn)};
  };
  const std::string ours = "flash2";
  Experiment points = experiment(
      "points", "batch and sequence", "Which sizes run at all, how fast, and with how much memory?",
      "standard,flash2", {"--causal yes --heads 32 --dim 64 --batch 16,32,64 --seq 512,1024,2048"},
      time_speed_peak("q_length", {"batch"}));
  points.figures.push_back({.kind = FigureKind::heatmap,
                            .title = "Fits or not",
                            .x = "q_length",
                            .y = {"batch"},
                            .series = {},
                            .facets = {"algorithm"},
                            .value = "status"});
  // On a CPU what 15 GiB are on the study's GPU: tensors are a quarter, in fp32 a half; the matrix
  // of scores is a sixteenth.
  points.memory_budget = {.normal = "2GiB", .full = "15GiB"};
  std::vector<BenchText> heads, widths;
  for (const char* split : {"8 --dim 256", "16 --dim 128", "32 --dim 64"})
    heads.push_back(fmt::format("--causal yes --batch 64 --seq 1024 --heads {}", split));
  return {.name = "tables",
          .origin = origin::kTables,
          .settings = "causal, one parameter varied in each table",
          .experiments = {
              points,
              experiment("batch", "batch size", "What does a larger batch cost?", ours,
                         {"--causal yes --heads 32 --dim 128 --seq 1024 --batch 16,32,64"},
                         {one_table("Batch", "batch")}),
              experiment("sequence", "sequence length", "What does a longer sequence cost?", ours,
                         {"--causal yes --batch 32 --heads 32 --dim 128 --seq 512,1024,2048"},
                         {one_table("Sequence", "q_length")}),
              experiment("heads", "heads at a fixed width", "What do more and smaller heads cost?", ours,
                         heads, {one_table("Heads", "q_heads")}),
              experiment("width", "width at 16 heads", "What does a wider model cost?", ours,
                         {"--causal yes --batch 64 --seq 1024 --heads 16 --dim 64,128,256"},
                         {one_table("Width", "embedding")}),
              experiment("causal", "causal masks", "What does a causal mask save?", ours,
                         {"--causal no,yes --batch 64 --heads 32 --dim 128 --seq 512"},
                         {one_table("Mask", "mask")}),
          }};
}

// ---- the FlashAttention paper ----

// The lab's experiment at the paper's size.
Experiment at_size_of_paper(const char* name) {
  Experiment experiment = *std::find_if(experiments().begin(), experiments().end(),
                                        [&](const Experiment& one) { return one.name == name; });
  experiment.name = std::string("paper_") + name;
  experiment.title = "Paper: " + experiment.title;
  for (Problems& problems : experiment.problems) problems.sweeps = sizes(problems.sweeps.full);
  return experiment;
}

Study paper() {
  Study study{.name = "paper",
              .origin = origin::kPaper,
              .settings = "16 heads of 64 at N = 1024 and batch 64; sequences to 64k",
              .experiments = {},
              .commands = {"python -m tessera.lab gpt --preset gpt2-small",
                           "python -m tessera.lab gpt --preset bert-large"}};
  for (const char* name : {"hierarchy", "steps", "traffic", "block_size", "sparsity", "long", "accuracy"})
    study.experiments.push_back(at_size_of_paper(name));
  return study;
}

}  // namespace

const std::vector<Study>& studies() {
  static const std::vector<Study> kAll = {t4(), sweeps(), l4(), tables(), paper()};
  return kAll;
}

std::vector<const Study*> find_studies(const std::vector<std::string>& names) {
  std::vector<std::string> known;
  for (const Study& study : studies()) known.push_back(study.name);
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string meant = nearest(name, known);
    throw UsageError(fmt::format("--study '{}': {}the studies are {}", name,
                                 meant.empty() ? "" : fmt::format("did you mean {}? ", meant),
                                 fmt::join(known, ", ")));
  }
  std::vector<const Study*> chosen;
  for (const Study& study : studies()) {
    if (std::find(names.begin(), names.end(), study.name) != names.end()) chosen.push_back(&study);
  }
  return chosen;
}

std::vector<const Experiment*> experiments_of(const std::vector<const Study*>& chosen,
                                              const std::vector<std::string>& names) {
  std::vector<const Experiment*> all;
  std::vector<std::string> known;
  for (const Study* study : chosen) {
    for (const Experiment& experiment : study->experiments) {
      all.push_back(&experiment);
      known.push_back(experiment.name);
    }
  }
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string meant = nearest(name, known);
    throw UsageError(fmt::format("experiment '{}': {}the experiments of --study are {}", name,
                                 meant.empty() ? "" : fmt::format("did you mean {}? ", meant),
                                 fmt::join(known, ", ")));
  }
  if (names.empty()) return all;
  std::erase_if(all, [&](const Experiment* experiment) {
    return std::find(names.begin(), names.end(), experiment->name) == names.end();
  });
  return all;
}

std::vector<const Experiment*> all_experiments() {
  std::vector<const Experiment*> all;
  for (const Experiment& experiment : experiments()) all.push_back(&experiment);
  for (const Study& study : studies()) {
    for (const Experiment& experiment : study.experiments) all.push_back(&experiment);
  }
  return all;
}

std::int64_t study_factor(Device device) { return device.type == DeviceType::cpu ? kCpuFactor : 1; }

std::string describe(const Study& study) {
  std::string text =
      wrap(fmt::format("{}: {}; {}", study.name, study.origin, study.settings), line_width(), 2) + "\n";
  std::size_t width = 0;
  for (const Experiment& experiment : study.experiments) width = std::max(width, experiment.name.size());
  for (const Experiment& experiment : study.experiments) {
    text += fmt::format("  {}  {}\n", pad(experiment.name, width, Justify::left),
                        wrap(experiment.question, line_width(), width + 4));
  }
  for (const std::string& command : study.commands) text += fmt::format("  and {}\n", command);
  return text;
}

}  // namespace tessera::lab
