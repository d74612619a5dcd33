// The experiments that `tessera lab` measures. `full` has the sizes of the studies; the other
// scales have the same shape in sizes for two cores.
#include "lab/experiments/experiment.h"

#include "lab/baselines/baseline.h"
#include "lab/experiments/origins.h"

namespace tessera::lab {
namespace {

// The curves of most experiments: time, speed and memory over the swept field, on logarithmic axes,
// or on linear ones where the question is whether time is linear.
std::vector<Figure> time_speed_memory(const std::string& x, bool log_x,
                                      std::vector<std::string> facets = {}) {
  return {{.kind = FigureKind::lines,
           .title = "Time",
           .x = x,
           .y = {"median_ms"},
           .facets = facets,
           .log_x = log_x,
           .log_y = log_x},
          {.kind = FigureKind::lines,
           .title = "Speed",
           .x = x,
           .y = {"tflops"},
           .facets = facets,
           .log_x = log_x},
          {.kind = FigureKind::lines,
           .title = "Peak memory",
           .x = x,
           .y = {"peak_bytes"},
           .facets = facets,
           .log_x = log_x,
           .log_y = log_x},
          {.kind = FigureKind::lines,
           .title = "Extra memory",
           .x = x,
           .y = {"peak_extra_bytes"},
           .facets = std::move(facets),
           .log_x = log_x,
           .log_y = log_x}};
}

Experiment sequence() {
  Experiment e{
      .name = "sequence",
      .title = "Sequence length",
      .question =
          "How do time, speed and memory grow with the sequence, and from where on does flash attention win?",
      .origin = origin::kT4 + ", figures 1, 2, 4 and 8; " + origin::kSweeps + "; " + origin::kTables,
      .problems = {{.common = "--dim 64 --direction forward,backward",
                    .sweeps = {.quick = {"--heads 8 --seq 128..2k"},
                               .normal = {"--heads 8 --seq 128..4k"},
                               .full = {"--batch 4 --heads 16 --seq 256..16k"}}}},
      .figures = time_speed_memory("q_length", true, {"direction"})};
  e.figures.push_back({.kind = FigureKind::lines,
                       .title = "Speed-up over standard",
                       .x = "q_length",
                       .y = {"speedup_over_standard"},
                       .facets = {"direction"},
                       .log_x = true});
  return e;
}

Experiment batch() {
  return {.name = "batch",
          .title = "Batch size",
          .question = "Is time linear in the batch, and from which batch on is the device busy?",
          .origin = origin::kT4 + ", figure 3; " + origin::kTables,
          .problems = {{.common = "--direction forward",
                        .sweeps = {.quick = {"--seq 256 --heads 8 --dim 64 --batch 1..8"},
                                   .normal = {"--seq 512 --heads 8 --dim 64 --batch 1..16"},
                                   .full = {"--seq 1024 --heads 16 --dim 128 --batch 1..64"}}}},
          .figures = time_speed_memory("batch", false)};
}

Experiment causal() {
  return {.name = "causal",
          .title = "Causal masks",
          .question = "Does a causal mask, which hides half of the matrix, save half of the time?",
          .origin = origin::kT4 + ", figure 5; " + origin::kTables,
          .problems = {{.common = "--causal no,yes",
                        .sweeps = {.quick = {"--heads 8 --dim 64 --seq 256..1024"},
                                   .normal = {"--heads 8 --dim 64 --seq 256..2048"},
                                   .full = {"--batch 16 --heads 16 --dim 128 --seq 512..8k"}}}},
          .figures = {{.kind = FigureKind::lines,
                       .title = "Time",
                       .x = "q_length",
                       .y = {"median_ms"},
                       .facets = {"mask"},
                       .log_x = true,
                       .log_y = true},
                      {.kind = FigureKind::bars,
                       .title = "Speed",
                       .x = "mask",
                       .y = {"tflops"},
                       .facets = {"q_length"}}}};
}

Experiment heads() {
  // Heads and head dimensions of the same width.
  auto splits = [](const std::string& common, std::vector<BenchText> heads) {
    for (BenchText& one : heads) one.insert(0, common);
    return heads;
  };
  const std::vector<BenchText> narrow = {"--heads 2 --dim 256", "--heads 4 --dim 128", "--heads 8 --dim 64",
                                         "--heads 16 --dim 32"};
  const std::vector<BenchText> wide = {"--heads 8 --dim 256", "--heads 16 --dim 128", "--heads 32 --dim 64",
                                       "--heads 64 --dim 32"};
  return {.name = "heads",
          .title = "Heads at a fixed width",
          .question = "What do more and smaller heads cost at the same width of the model?",
          .origin = origin::kT4 + ", figure 6; " + origin::kSweeps + "; " + origin::kTables,
          .problems = {{.common = "--direction forward",
                        .sweeps = {.quick = splits("--seq 512 ", narrow),
                                   .normal = splits("--seq 1024 ", narrow),
                                   .full = splits("--batch 16 --seq 1024 ", wide)}}},
          .figures = time_speed_memory("q_heads", true)};
}

Experiment embedding() {
  return {.name = "embedding",
          .title = "Width at a fixed number of heads",
          .question = "How do time, speed and memory grow with the width of the model?",
          .origin = origin::kT4 + ", figure 7; " + origin::kSweeps + "; " + origin::kTables,
          .problems = {{.common = "--direction forward",
                        .sweeps = {.quick = {"--seq 512 --heads 8 --dim 32..128"},
                                   .normal = {"--seq 1024 --heads 8 --dim 32..256"},
                                   .full = {"--batch 16 --seq 1024 --heads 16 --dim 32..256"}}}},
          .figures = time_speed_memory("embedding", false)};
}

Experiment direction() {
  return {.name = "direction",
          .title = "Forward and backward",
          .question = "How much longer does the backward pass take than the forward pass?",
          .origin = origin::kT4 + ", figure 9",
          .problems = {{.common = "--direction forward,backward",
                        .sweeps = {.quick = {"--heads 8 --dim 64 --batch 1,4 --seq 256,512"},
                                   .normal = {"--heads 8 --dim 64 --batch 1,4 --seq 256..1024"},
                                   .full = {"--heads 16 --dim 64 --batch 4,16 --seq 512..4k"}}}},
          .figures = {{.kind = FigureKind::bars,
                       .title = "Time by direction",
                       .x = "q_length",
                       .y = {"median_ms"},
                       .series = {"direction"},
                       .facets = {"algorithm", "batch"},
                       .log_y = true}}};
}

Experiment head_dim() {
  return {.name = "head_dim",
          .title = "Head dimension",
          .question = "How does the speed of each algorithm depend on the head dimension?",
          .origin = origin::kT4 + ", figure 10",
          .problems = {{.common = "--direction forward",
                        .sweeps = {.quick = {"--seq 512 --heads 4 --dim 16..256"},
                                   .normal = {"--seq 1024 --heads 4 --dim 16..256"},
                                   .full = {"--batch 8 --seq 2048 --heads 16 --dim 16..256"}}}},
          .figures = {
              {.kind = FigureKind::lines, .title = "Speed", .x = "qk_dim", .y = {"tflops"}, .log_x = true}}};
}

Experiment heatmap() {
  return {.name = "heatmap",
          .title = "Batch and sequence",
          .question = "At which batches and sequences is each algorithm fast?",
          .origin = origin::kT4 + ", figure 11",
          .problems = {{.common = "--direction forward",
                        .sweeps = {.quick = {"--heads 4 --dim 64 --batch 1..4 --seq 128..1024"},
                                   .normal = {"--heads 8 --dim 64 --batch 1..8 --seq 128..1024"},
                                   .full = {"--heads 16 --dim 64 --batch 1..32 --seq 256..8k"}}}},
          .figures = {{.kind = FigureKind::heatmap,
                       .title = "Speed",
                       .x = "q_length",
                       .y = {"batch"},
                       .series = {},
                       .facets = {"algorithm"},
                       .value = "tflops"}}};
}

Experiment summary() {
  return {.name = "summary",
          .title = "All algorithms at one size",
          .question = "At one ordinary size, how fast is each algorithm in each direction?",
          .origin = origin::kT4 + ", figure 12",
          .problems = {{.common = "--direction forward,backward",
                        .sweeps = {.quick = {"--heads 8 --dim 64 --seq 1024"},
                                   .normal = {"--heads 8 --dim 64 --seq 2048"},
                                   .full = {"--batch 8 --heads 16 --dim 128 --seq 4096"}}}},
          .figures = {{.kind = FigureKind::bars,
                       .title = "Speed",
                       .x = "algorithm",
                       .y = {"tflops"},
                       .series = {"direction"}}}};
}

Experiment out_of_memory() {
  return {.name = "out_of_memory",
          .title = "What fits",
          .question = "Which batches and sequences fit into a given memory with each algorithm?",
          .origin = origin::kTables + ", where running out of memory is a result; " + origin::kMinimal +
                    ", its frontier of what fits",
          .problems = {{.common = "--dim 64 --direction forward,backward",
                        .sweeps = {.quick = {"--heads 4 --batch 1..4 --seq 256..2048"},
                                   .normal = {"--heads 8 --batch 1..8 --seq 256..2048"},
                                   .full = {"--heads 32 --batch 16..64 --seq 512..16k"}}}},
          .figures = {{.kind = FigureKind::heatmap,
                       .title = "Fits or not",
                       .x = "q_length",
                       .y = {"batch"},
                       .series = {},
                       .facets = {"algorithm", "direction"},
                       .value = "status"},
                      {.kind = FigureKind::lines,
                       .title = "Extra memory",
                       .x = "q_length",
                       .y = {"peak_extra_bytes"},
                       .facets = {"batch", "direction"},
                       .log_x = true,
                       .log_y = true}},
          .memory_budget = {.quick = "64MiB", .normal = "192MiB", .full = "15GiB"},
          .repetitions = 1};
}

Experiment traffic() {
  return {.name = "traffic",
          .title = "Work, memory traffic and time",
          .question = "Is flash attention faster because it moves less memory?",
          .origin = origin::kPaper + ", its table (66.6 to 75.2 GFLOP, 40.3 to 4.4 GB, 41.7 to 7.3 ms)",
          .problems = {{.common = "--seq 1024 --dim 64 --direction forward,backward",
                        .sweeps = {.quick = {"--heads 8"},
                                   .normal = {"--batch 2 --heads 16"},
                                   .full = {"--batch 64 --heads 16"}}}},
          .figures = {{.kind = FigureKind::table,
                       .title = "Work, traffic and time",
                       .y = {"flops", "executed_flops", "predicted_traffic_bytes", "measured_traffic_bytes",
                             "minimum_traffic_bytes", "bound_traffic_bytes", "bound_memory_bytes",
                             "median_ms", "peak_bytes", "peak_extra_bytes"},
                       .facets = {"direction"}},
                      {.kind = FigureKind::bars,
                       .title = "Memory traffic",
                       .x = "direction",
                       .y = {"predicted_traffic_bytes"},
                       .log_y = true,
                       .bounds = {"measured_traffic_bytes"}}}};
}

Experiment steps() {
  const Scaled<std::vector<BenchText>> sizes = {.quick = {"--heads 8 --seq 512"},
                                                .normal = {"--heads 12 --seq 1024"},
                                                .full = {"--batch 16 --heads 12 --seq 1024"}};
  const std::string common = "--dim 64 --causal yes --dropout 0.1 --direction forward --algorithm ";
  Experiment e{
      .name = "steps",
      .title = "Standard attention, step by step",
      .question = "Where does standard attention spend its time, and what does one fused kernel save?",
      .origin = origin::kPaper + ", its first figure: matmul, mask, softmax, dropout and matmul of GPT-2",
      .problems = {{.common = common + "flash1,flash2", .sweeps = sizes, .method = {.stage = "one kernel"}}},
      .figures = {{.kind = FigureKind::bars,
                   .title = "Time by step",
                   .x = "algorithm",
                   .y = {"median_ms"},
                   .series = {"stage"},
                   .stack = true}}};
  for (const char* stage : kStages) {
    e.problems.push_back({.common = common + "standard",
                          .sweeps = sizes,
                          .method = {.label = "unfused", .baseline = "unfused", .stage = stage},
                          .only_on = DeviceType::cpu});
  }
  return e;
}

Experiment hierarchy() {
  return {.name = "hierarchy",
          .title = "Levels of memory",
          .question = "How large and how fast is each level of this machine's memory?",
          .origin = origin::kPaper + ", its first figure: size and bandwidth of SRAM, HBM and DRAM",
          .figures = {{.kind = FigureKind::hierarchy,
                       .title = "Size and read bandwidth",
                       .x = "level",
                       .y = {"level_bytes", "bandwidth_gbs"},
                       .series = {}},
                      {.kind = FigureKind::table,
                       .title = "Size and bandwidth",
                       .x = "level",
                       .y = {"level_bytes", "bandwidth_gbs"},
                       .series = {}}},
          .levels = true};
}

Experiment block_size() {
  return {
      .name = "block_size",
      .title = "Tile size",
      .question =
          "How do traffic and time depend on the keys of a tile, and when does a larger one stop paying off?",
      .origin = origin::kPaper + ", its figure of block sizes",
      .problems = {{.common = "--algorithm flash2 --dim 64 --direction forward",
                    .sweeps = {.quick = {"--heads 4 --seq 2048"},
                               .normal = {"--heads 8 --seq 2048"},
                               .full = {"--batch 16 --heads 16 --seq 4096"}},
                    .block_k = {16, 32, 64, 128, 256, 512, 1024}}},
      .figures = {{.kind = FigureKind::lines,
                   .title = "Time",
                   .x = "requested_block_k",
                   .y = {"median_ms"},
                   .log_x = true},
                  {.kind = FigureKind::lines,
                   .title = "Memory traffic: theory, prediction, measurement",
                   .x = "requested_block_k",
                   .y = {"tile_traffic_bytes"},
                   .log_x = true,
                   .log_y = true,
                   .bounds = {"bound_traffic_bytes", "standard_traffic_bytes", "minimum_traffic_bytes",
                              "predicted_traffic_bytes", "measured_traffic_bytes"}}}};
}

Experiment sparsity() {
  const std::string masks =
      " --block-mask random:0.0625,random:0.125,random:0.25,random:0.5,random:0.75,random:1 --block-size ";
  const std::string directions = "--dim 64 --direction forward,backward ";
  return {.name = "sparsity",
          .title = "Block-sparse attention",
          .question = "Is time proportional to the share of blocks that a block mask keeps?",
          .origin = origin::kPaper + ", its figure of sparsity",
          .problems = {{.common = directions + "--algorithm flash2",
                        .sweeps = {.quick = {"--heads 4 --seq 2048" + masks + "64"},
                                   .normal = {"--heads 8 --seq 2048" + masks + "64"},
                                   .full = {"--batch 8 --heads 16 --seq 8192" + masks + "128"}},
                        .method = {.label = "block_sparse"}},
                       {.common = directions + "--algorithm standard,flash2",
                        .sweeps = {.quick = {"--heads 4 --seq 2048"},
                                   .normal = {"--heads 8 --seq 2048"},
                                   .full = {"--batch 8 --heads 16 --seq 8192"}}}},
          .figures = {{.kind = FigureKind::lines,
                       .title = "Time, forward and backward",
                       .x = "kept_share",
                       .y = {"median_ms"},
                       .sum_over = "direction"},
                      {.kind = FigureKind::lines,
                       .title = "Time by direction",
                       .x = "kept_share",
                       .y = {"median_ms"},
                       .facets = {"direction"}}}};
}

Experiment long_sequences() {
  const std::string common = "--dim 64 --direction forward,backward";
  const Scaled<std::vector<BenchText>> lengths = {.quick = {"--heads 2 --seq 512..4k"},
                                                  .normal = {"--heads 2 --seq 512..8k"},
                                                  .full = {"--heads 8 --seq 1k..64k"}};
  auto part = [&](const std::string& options, const std::string& label) {
    return Problems{.common = common + options, .sweeps = lengths, .method = {.label = label}};
  };
  Problems fused = part(" --algorithm standard", "megatron");
  fused.method.kernel = "cuda.standard_fused";
  fused.only_on = DeviceType::cuda;
  Problems linformer = part(" --algorithm automatic", "linformer");
  linformer.method.baseline = "linformer";
  return {
      .name = "long",
      .title = "Long sequences",
      .question = "At which lengths do sparse and approximate attention become faster than exact attention?",
      .origin = origin::kPaper +
                ", its figure of long sequences; patterns of the Sparse Transformer, Linformer, and on a "
                "GPU Megatron's fused softmax",
      .problems = {part("", ""), fused,
                   part(" --algorithm flash2 --block-mask butterfly --block-size 128", "block_sparse"),
                   part(" --algorithm flash2 --block-mask strided:4 --block-size 64", "sparse_strided"),
                   part(" --algorithm flash2 --block-mask fixed:4,1 --block-size 64", "sparse_fixed"),
                   linformer},
      .figures = {{.kind = FigureKind::lines,
                   .title = "Time, forward and backward",
                   .x = "q_length",
                   .y = {"median_ms"},
                   .log_x = true,
                   .log_y = true,
                   .sum_over = "direction"},
                  {.kind = FigureKind::lines,
                   .title = "Extra memory",
                   .x = "q_length",
                   .y = {"peak_extra_bytes"},
                   .facets = {"direction"},
                   .log_x = true,
                   .log_y = true}}};
}

Experiment minimal() {
  const Scaled<std::vector<BenchText>> lengths = {.quick = {"--heads 2 --seq 64..512"},
                                                  .normal = {"--heads 4 --seq 64..1024"},
                                                  .full = {"--batch 4 --heads 12 --seq 64..4k"}};
  const std::string common = "--dtype fp32 --dim 64 --direction forward --algorithm ";
  return {.name = "minimal",
          .title = "The teaching kernel",
          .question = "How fast and how exact is a kernel of one page, compared with the others?",
          .origin = origin::kMinimal + ": 0.17 ms against 0.78 ms at N = 512 on a T4",
          .problems = {{.common = common + "standard,flash2", .sweeps = lengths, .only_on = DeviceType::cpu},
                       {.common = common + "minimal",
                        .sweeps = lengths,
                        .method = {.label = "minimal", .baseline = "minimal"},
                        .only_on = DeviceType::cpu},
                       {.common = common + "standard,flash2,minimal",
                        .sweeps = lengths,
                        .only_on = DeviceType::cuda}},
          .figures = {{.kind = FigureKind::lines,
                       .title = "Time",
                       .x = "q_length",
                       .y = {"median_ms"},
                       .log_x = true,
                       .log_y = true},
                      {.kind = FigureKind::bars,
                       .title = "Error against fp64",
                       .x = "q_length",
                       .y = {"max_error"},
                       .log_y = true}}};
}

Experiment accuracy() {
  return {.name = "accuracy",
          .title = "Accuracy",
          .question = "How large is the error of each algorithm in each type?",
          .origin =
              origin::kMinimal + ", its comparison of outputs; " + origin::kPaper + ", its correctness tests",
          .problems = {{.common = "--direction forward --dim 64 --heads 4 --dtype fp32,fp16,bf16",
                        .sweeps = {.quick = {"--seq 128,512"},
                                   .normal = {"--seq 128..1024"},
                                   .full = {"--seq 128..8k"}}}},
          .figures = {{.kind = FigureKind::lines,
                       .title = "Error against fp64, root mean square",
                       .x = "q_length",
                       .y = {"rms_error"},
                       .facets = {"dtype"},
                       .log_x = true,
                       .log_y = true},
                      {.kind = FigureKind::table,
                       .title = "Errors",
                       .y = {"q_length", "max_error", "rms_error", "rms_reference", "sampled_rows"},
                       .facets = {"dtype"}}}};
}

}  // namespace

const std::vector<Experiment>& experiments() {
  static const std::vector<Experiment> kAll = [] {
    std::vector<Experiment> all = {summary(),   sequence(),  batch(),        causal(),   heads(),
                                   embedding(), direction(), head_dim(),     heatmap(),  traffic(),
                                   steps(),     hierarchy(), block_size(),   sparsity(), long_sequences(),
                                   minimal(),   accuracy(),  out_of_memory()};
    for (Experiment& one : python_experiments()) all.push_back(std::move(one));
    return all;
  }();
  return kAll;
}

}  // namespace tessera::lab
