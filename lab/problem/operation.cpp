#include "lab/problem/operation.h"

#include <fmt/format.h>

#include <algorithm>

#include "lab/terminal/errors.h"
#include "tessera/error.h"

namespace tessera::lab {
namespace {

// Refuses sizes whose products would not even fit an index; the library judges the rest.
void check_size(const Shapes& s) {
  constexpr double kMostElements = 0x1p60;
  const auto batch = static_cast<double>(s.batch), heads = static_cast<double>(s.q_heads);
  const auto rows = static_cast<double>(s.q_length), columns = static_cast<double>(s.k_length);
  const double largest = std::max(batch * std::max(rows, columns) * heads * 256, rows * columns);
  if (largest < kMostElements) return;
  throw UsageError(fmt::format(
      "--batch {}, --seq {}, --seq-k {}, --heads {}: together more elements than an index can count", s.batch,
      s.q_length, s.k_length, s.q_heads));
}

BlockMask block_mask(const Problem& problem, const Shapes& shapes) {
  const BlockPreset& preset = problem.block_mask;
  const BlockLayout layout{.q_length = shapes.q_length,
                           .k_length = shapes.k_length,
                           .block_q = problem.block_size,
                           .block_k = problem.block_size};
  auto integer = [&](std::size_t index) { return static_cast<std::int64_t>(preset.numbers.at(index)); };
  try {
    if (preset.name == "local") return BlockMask::local(layout, integer(0));
    if (preset.name == "strided") return BlockMask::strided(layout, integer(0));
    if (preset.name == "fixed") {
      return BlockMask::fixed(layout, integer(0), preset.numbers.size() > 1 ? integer(1) : 1);
    }
    if (preset.name == "bigbird") {
      return BlockMask::big_bird(layout, integer(0), integer(1), integer(2));
    }
    if (preset.name == "butterfly") return BlockMask::butterfly(layout);
    if (preset.name == "random") return BlockMask::random(layout, preset.numbers.at(0));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument) throw;
    throw UsageError(fmt::format("--block-mask '{}': {}", to_string(preset), error.what()));
  }
  return {};
}

Mask mask_of(const Problem& problem, const Shapes& shapes) {
  Mask mask = problem.causal ? causal(problem.align) : Mask{.align = problem.align};
  if (problem.window != Window{}) {
    mask = mask & window(problem.window.left, problem.window.right, problem.align);
  }
  mask.blocks = block_mask(problem, shapes);
  return mask;
}

}  // namespace

Operation::Operation(const Problem& problem) : problem_(problem) {
  shapes_.batch = problem.batch;
  shapes_.q_length = problem.seq;
  shapes_.k_length = keys(problem);
  shapes_.q_heads = problem.heads;
  shapes_.kv_heads = kv_heads(problem);
  shapes_.qk_dim = problem.dim;
  shapes_.v_dim = value_dim(problem);
  shapes_.dtype = problem.dtype;
  shapes_.bias = problem.bias;
  shapes_.visible = problem.visible;
  if (shapes_.q_heads % shapes_.kv_heads != 0) {
    throw UsageError(fmt::format("--kv-heads '{}': must divide --heads {}", problem.kv_heads, problem.heads));
  }
  check_size(shapes_);
  attention_.mask = mask_of(problem, shapes_);
  attention_.softcap = problem.softcap;
  attention_.dropout = {.probability = problem.dropout, .seed = 42};
  if (problem.alibi) {
    slopes_ = alibi_slopes(problem.heads);
    attention_.alibi.slopes = slopes_.data();
  }
}

Attention Operation::attention(Algorithm algorithm) const {
  Attention result = attention_;
  result.algorithm = algorithm;
  if (device_slopes_.data() != nullptr) {
    result.alibi.slopes = reinterpret_cast<const float*>(device_slopes_.data());
  }
  return result;
}

void Operation::place(Device device) {
  if (device.type == DeviceType::cpu) return;
  attention_.mask.blocks.prepare(device);
  if (slopes_.empty()) return;
  const std::size_t bytes = slopes_.size() * sizeof(float);
  device_slopes_ = cuda::DeviceBuffer(device.index, bytes);
  device_slopes_.upload(slopes_.data(), bytes);
}

}  // namespace tessera::lab
