#include "lab/commands/fit/fit_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lab/problem/method.h"

namespace tessera::lab {
namespace {

constexpr double kFp32 = 4;

double optimizer_bytes_per_parameter(const Transformer& model) {
  const auto element = static_cast<double>(size_of(model.dtype));
  const double number = std::max(kFp32, element);
  const double copy = element < kFp32 ? kFp32 : 0;
  switch (model.optimizer) {
    case Optimizer::adam: return 2 * number + copy;
    case Optimizer::sgd: return number + copy;
    case Optimizer::none: break;
  }
  return 0;
}

// The workspace of the call that needs most.
double attention_workspace(const Transformer& model, const FitChoice& choice, std::int64_t length,
                           Device device) {
  const Attention attention{.mask = model.causal ? causal() : Mask{}, .algorithm = choice.algorithm};
  const Shapes shapes{.batch = model.batch,
                      .q_length = length,
                      .k_length = length,
                      .q_heads = model.heads,
                      .kv_heads = model.heads,
                      .qk_dim = model.width / model.heads,
                      .v_dim = model.width / model.heads,
                      .dtype = model.dtype,
                      .lse = model.train};
  auto workspace = [&](Direction direction) {
    return static_cast<double>(plan(attention, shapes, device, direction).workspace_bytes);
  };
  const double forward = workspace(Direction::forward);
  return model.train ? std::max(forward, workspace(Direction::backward)) : forward;
}

void work(FitMemory& memory, const char* what, double bytes) {
  if (bytes <= memory.working) return;
  memory.working = bytes;
  memory.at_work = what;
}

}  // namespace

const char* name(Optimizer optimizer) {
  switch (optimizer) {
    case Optimizer::adam: return "adam";
    case Optimizer::sgd: return "sgd";
    case Optimizer::none: break;
  }
  return "none";
}

std::vector<FitChoice> fit_choices(bool train, DeviceType device) {
  std::vector<FitChoice> choices;
  Problem forward;
  forward.device.type = device;
  std::vector<Algorithm> algorithms = algorithms_here({forward});
  std::erase(algorithms, Algorithm::minimal);
  for (const Algorithm algorithm : algorithms) {
    if (train && algorithm == Algorithm::standard)
      choices.push_back({"standard, P kept", Algorithm::standard, true});
    choices.push_back({tessera::name(algorithm), algorithm, false});
  }
  return choices;
}

FitMemory memory_of(const Transformer& model, const FitChoice& choice, std::int64_t length, Device device) {
  constexpr double kParametersPerLayer = 12;  // times width^2
  // Times N width.
  constexpr double kKept = 16, kLinearMaps = 9, kAroundAttention = 5;
  const auto element = static_cast<double>(size_of(model.dtype));
  const auto width = static_cast<double>(model.width), depth = static_cast<double>(model.depth);
  const auto heads = static_cast<double>(model.heads), vocabulary = static_cast<double>(model.vocabulary);
  const double rows = static_cast<double>(model.batch) * static_cast<double>(length);
  const double matrix = rows * static_cast<double>(length) * heads * element;  // P of a layer
  const double tokens = rows * width * element;
  const double parameters = kParametersPerLayer * width * width * depth + vocabulary * width;

  FitMemory memory;
  memory.parameters = parameters * element;
  if (model.train) {
    const double layers = model.checkpoint ? 1 : depth;  // whose activations are there at the same time
    memory.gradients = parameters * element;
    memory.optimizer = parameters * optimizer_bytes_per_parameter(model);
    memory.activations = tokens * (kKept * layers + (model.checkpoint ? depth : 0));
    memory.attention =
        choice.keeps_probabilities ? matrix * layers : rows * heads * std::max(kFp32, element) * layers;
  } else if (model.kv_cache) {
    memory.activations = 2 * tokens * depth;
  }
  // Frameworks that keep P take one matrix more: S forward, dP backward.
  const double workspace =
      choice.keeps_probabilities ? matrix : attention_workspace(model, choice, length, device);
  work(memory, "linear maps", kLinearMaps * tokens);
  work(memory, "attention", kAroundAttention * tokens + workspace);
  work(memory, "logits",
       vocabulary * (model.train ? rows * (element + kFp32) : static_cast<double>(model.batch) * element));
  return memory;
}

Fit longest_fit(const Transformer& model, const FitChoice& choice, double bytes, Device device) {
  constexpr std::int64_t kMost = kLongestFit / kFitStep;
  auto fits = [&](std::int64_t steps) {
    return memory_of(model, choice, steps * kFitStep, device).total() <= bytes;
  };
  std::int64_t low = 0, high = 1;  // steps: low fits, high does not, or is not tested
  while (high <= kMost && fits(high)) low = high, high *= 2;
  high = std::min(high, kMost + 1);
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (fits(middle) ? low : high) = middle;
  }
  const std::int64_t length = low * kFitStep;
  return {choice, length, memory_of(model, choice, std::max(length, kFitStep), device)};
}

std::vector<Remedy> remedies(const Transformer& model, const FitChoice& choice, double bytes, Device device,
                             std::int64_t wanted) {
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  std::vector<Remedy> all;
  auto try_out = [&](const Transformer& changed, double memory, const std::string& options) {
    const std::int64_t length = longest_fit(changed, choice, memory, device).length;
    if (length > 0) all.push_back({options, length});
  };
  Transformer changed = model;
  for (const Optimizer lighter : {Optimizer::sgd, Optimizer::none}) {
    if (!model.train || lighter <= model.optimizer) continue;
    changed.optimizer = lighter;
    try_out(changed, bytes, fmt::format("--optimizer {}", name(lighter)));
  }
  changed = model;
  if (model.train && !model.checkpoint) {
    changed.checkpoint = true;
    try_out(changed, bytes, "--checkpoint");
  }
  auto total = [&](std::int64_t depth) {
    changed = model;
    changed.depth = depth;
    return memory_of(changed, choice, wanted, device).total();
  };
  std::int64_t low = 0, high = model.depth;  // layers: low fits, high does not
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (total(middle) <= bytes ? low : high) = middle;
  }
  changed.depth = low;
  if (low > 0) try_out(changed, bytes, fmt::format("--depth {}", low));
  const double needed = std::ceil(total(model.depth) / kGiB);
  try_out(model, needed * kGiB, fmt::format("--memory {:.0f}GiB", needed));
  return all;
}

}  // namespace tessera::lab
