#include "core/kernel.h"

#include <array>
#include <ostream>
#include <utility>

namespace tessera::core {
namespace {

constexpr std::array<const char*, kFeatureCount> kFeatureNames = {
    "fp64",
    "fp32",
    "fp16",
    "bf16",
    "causal",
    "window",
    "block-sparse mask",
    "packed sequences",
    "grouped heads",
    "d_v != d_qk",
    "bias",
    "bias gradient",
    "ALiBi",
    "softcap",
    "dropout",
    "LSE gradient",
    "shards (origin)",
    "deterministic backward",
    "boolean mask (visible)",
};

}  // namespace

std::ostream& operator<<(std::ostream& stream, Features features) {
  const char* comma = "";
  for (const std::string& name : names(features)) stream << std::exchange(comma, ", ") << name;
  return stream;
}

std::vector<std::string> names(Features features) {
  std::vector<std::string> result;
  for (int bit = 0; bit < kFeatureCount; ++bit) {
    if (features.contains(static_cast<Feature>(1U << bit))) result.emplace_back(kFeatureNames[bit]);
  }
  return result;
}

Features relevant(Direction direction) {
  if (direction == Direction::backward) return Features::all();
  return Features::all().without(Feature::bias_gradient | Feature::lse_gradient | Feature::deterministic);
}

Features required(const Problem& p) {
  Features features;
  switch (p.dtype) {
    case DType::fp64: features |= Feature::fp64; break;
    case DType::fp32: features |= Feature::fp32; break;
    case DType::fp16: features |= Feature::fp16; break;
    case DType::bf16: features |= Feature::bf16; break;
    case DType::boolean: break;
  }
  if (p.right == 0) features |= Feature::causal;
  if (p.left != kUnbounded || p.right > 0) features |= Feature::window;
  if (p.blocks) features |= Feature::block_sparse;
  if (p.packed) features |= Feature::packed;
  if (p.kv_heads != p.q_heads) features |= Feature::gqa;
  if (p.v_dim != p.qk_dim) features |= Feature::value_dim;
  if (p.has_bias) features |= Feature::bias;
  if (p.has_grad_bias) features |= Feature::bias_gradient;
  if (p.alibi_slopes != nullptr) features |= Feature::alibi;
  if (p.softcap != 0) features |= Feature::softcap;
  if (p.dropout) features |= Feature::dropout;
  if (p.has_grad_lse) features |= Feature::lse_gradient;
  const Origin& origin = p.origin;
  if (origin.row != 0 || origin.column != 0 || origin.batch != 0 || origin.head != 0) {
    features |= Feature::shard;
  }
  if (p.deterministic && p.direction == Direction::backward) features |= Feature::deterministic;
  if (p.has_visible) features |= Feature::visible;
  return features;
}

}  // namespace tessera::core
