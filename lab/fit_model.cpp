#include "lab/fit_model.h"

#include <algorithm>

namespace tessera::lab {

std::vector<FitChoice> fit_choices(bool train) {
  std::vector<FitChoice> choices;
  if (train) choices.push_back({"standard, P kept", Algorithm::standard, true});
  choices.push_back({"standard", Algorithm::standard, false});
  choices.push_back({"flash", Algorithm::automatic, false});
  return choices;
}

FitMemory memory_of(const Transformer& model, const FitChoice& choice, std::int64_t length, Device device) {
  constexpr double kParametersPerLayer =
      12;                      // times width^2: Q, K, V, output, and twice four times the width
  constexpr double kLive = 9;  // times N width: x, Q, K, V, the output, four in the middle
  constexpr double kSaved =
      16;  // x, two normalised ones, Q, K, V, the output, the sum after it, twice four in the middle
  const auto element = static_cast<double>(size_of(model.dtype));
  const auto width = static_cast<double>(model.width), depth = static_cast<double>(model.depth);
  const double rows = static_cast<double>(model.batch) * static_cast<double>(length);
  const double parameters = kParametersPerLayer * width * width * depth;

  FitMemory memory;
  memory.parameters = parameters * element;
  // Adam: two moments in fp32, and the parameters themselves unless they are fp32 already.
  if (model.train) memory.states = parameters * (element + (model.dtype == DType::fp32 ? 8 : 12));
  memory.activations = rows * width * element * (model.train ? kSaved * depth : kLive);

  const Attention attention{.mask = model.causal ? causal() : Mask{}, .algorithm = choice.algorithm};
  const Shapes shapes{.batch = model.batch,
                      .q_length = length,
                      .k_length = length,
                      .q_heads = model.heads,
                      .kv_heads = model.heads,
                      .qk_dim = model.width / model.heads,
                      .v_dim = model.width / model.heads,
                      .dtype = model.dtype};
  auto workspace = [&](Direction direction) {
    return static_cast<double>(plan(attention, shapes, device, direction).workspace_bytes);
  };
  memory.attention = workspace(Direction::forward);
  if (model.train) {
    const double heads = static_cast<double>(model.heads);
    memory.attention = std::max(memory.attention, workspace(Direction::backward)) + rows * heads * 4 * depth;
    if (choice.keeps_probabilities)
      memory.attention += rows * static_cast<double>(length) * heads * element * depth;
  }
  return memory;
}

Fit longest_fit(const Transformer& model, const FitChoice& choice, double bytes, Device device) {
  auto fits = [&](std::int64_t steps) {
    return memory_of(model, choice, steps * kFitStep, device).total() <= bytes;
  };
  std::int64_t low = 0, high = 1;  // steps: low fits, high does not
  while (high * kFitStep <= kLongestFit && fits(high)) low = high, high *= 2;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (fits(middle) ? low : high) = middle;
  }
  const std::int64_t length = low * kFitStep;
  return {choice, length, memory_of(model, choice, std::max(length, kFitStep), device)};
}

}  // namespace tessera::lab
