// The experiments that `python -m tessera.lab` measures, with their figures. Their problems stand
// in python/tessera/lab, beside the models.
#include "lab/experiments/experiment.h"
#include "lab/experiments/origins.h"

namespace tessera::lab {
namespace {

Experiment training() {
  auto over_sequence = [](const char* title, const char* y, FigureKind kind) {
    return Figure{.kind = kind,
                  .title = title,
                  .x = "q_length",
                  .y = {y},
                  .facets = {"depth"},
                  .log_x = kind == FigureKind::lines,
                  .log_y = kind == FigureKind::lines};
  };
  return {.name = "training",
          .title = "Training transformers",
          .question =
              "How much time and memory does flash attention save in training, and which models fit with it?",
          .origin = origin::kMinimal + " (on average -68.9 % time, -49.5 % memory, a larger frontier)",
          .figures = {over_sequence("Time of a step", "median_ms", FigureKind::lines),
                      over_sequence("Peak memory", "peak_bytes", FigureKind::lines),
                      over_sequence("Memory held after a step", "memory_used_bytes", FigureKind::lines),
                      over_sequence("Time saved", "time_saved_percent", FigureKind::bars),
                      over_sequence("Peak memory saved", "memory_saved_percent", FigureKind::bars),
                      {.kind = FigureKind::table,
                       .title = "Outputs and losses against standard",
                       .x = "q_length",
                       .y = {"max_difference", "atol", "train_loss"},
                       .facets = {"depth"}},
                      {.kind = FigureKind::heatmap,
                       .title = "What fits",
                       .x = "q_length",
                       .y = {"embedding"},
                       .series = {},
                       .facets = {"algorithm", "depth"},
                       .value = "status"},
                      {.kind = FigureKind::bars,
                       .title = "The frontier: the longest sequence tried that fits",
                       .x = "embedding",
                       .y = {"q_length"},
                       .facets = {"depth"},
                       .last_of = "q_length"}},
          .program = "python -m tessera.lab training"};
}

Experiment gpt() {
  auto at_the_end = [](const char* title, const char* y) {
    return Figure{.kind = FigureKind::bars, .title = title, .x = "preset", .y = {y}, .last_of = "step"};
  };
  auto loss_over = [](const char* title, const char* x) {
    return Figure{.kind = FigureKind::lines, .title = title, .x = x, .y = {"loss"}, .facets = {"preset"}};
  };
  return {
      .name = "gpt",
      .title = "Training a GPT",
      .question = "Does a language model learn equally well with each attention, and how fast?",
      .origin = origin::kPaper +
                ", its set-up for training GPT, which never obtained results, and the paper's BERT-large",
      .figures = {loss_over("Loss on held-out text", "step"), loss_over("Loss against time", "train_seconds"),
                  at_the_end("Perplexity on held-out text", "perplexity"),
                  at_the_end("Speed of training", "tokens_per_second"),
                  at_the_end("Peak memory", "peak_bytes")},
      .program = "python -m tessera.lab gpt"};
}

Experiment peers() {
  auto bars = [](const char* title, const char* y) {
    return Figure{.kind = FigureKind::bars,
                  .title = title,
                  .x = "q_length",
                  .y = {y},
                  .facets = {"direction", "mask"},
                  .log_y = true};
  };
  return {.name = "peers",
          .title = "Tessera and PyTorch",
          .question =
              "How fast is Tessera, compared with each backend of PyTorch's scaled_dot_product_attention?",
          .origin = origin::kT4 + "; " + origin::kSweeps + "; " + origin::kTables +
                    ": flash attention against PyTorch",
          .figures = {bars("Time", "median_ms"), bars("Speed", "tflops")},
          .program = "python -m tessera.lab peers"};
}

}  // namespace

std::vector<Experiment> python_experiments() { return {training(), gpt(), peers()}; }

}  // namespace tessera::lab
