#include "registry/registry.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <vector>

#include "core/refuse.h"
#include "core/text.h"
#include "cpu/kernels.h"
#include "cuda/host/devices.h"
#include "cuda/kernels.h"
#include "tessera/error.h"

namespace tessera::registry {
namespace {

using core::concat;

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
};

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

std::string describe(Device device) {
  return device.type == DeviceType::cpu ? "cpu" : concat("cuda:", device.index);
}

}  // namespace

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

Features required(const core::Problem& p) {
  Features features;
  switch (p.dtype) {
    case DType::fp64: features |= Feature::fp64; break;
    case DType::fp32: features |= Feature::fp32; break;
    case DType::fp16: features |= Feature::fp16; break;
    case DType::bf16: features |= Feature::bf16; break;
  }
  if (p.right == 0) features |= Feature::causal;
  if (p.left != core::kUnbounded || p.right > 0) features |= Feature::window;
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
  return features;
}

std::span<const Kernel> kernels() {
  auto sorted = [](bool with_cuda) {
    const std::span<const Kernel> cpu = cpu::kernels(), cuda = cuda::kernels();
    std::vector<Kernel> all(cpu.begin(), cpu.end());
    if (with_cuda) all.insert(all.end(), cuda.begin(), cuda.end());
    std::stable_sort(all.begin(), all.end(),
                     [](const Kernel& a, const Kernel& b) { return a.priority > b.priority; });
    return all;
  };
  static const std::vector<Kernel> all = sorted(true), without_cuda = sorted(false);
  return cuda::kernels_exist() ? all : without_cuda;
}

std::string_view forced_kernel() noexcept {
  const char* name = std::getenv("TESSERA_KERNEL");
  return name == nullptr ? std::string_view() : std::string_view(name);
}

std::string missing(const Kernel& kernel, const core::Problem& problem, std::string_view forced) {
  std::vector<std::string> reasons;
  if (!forced.empty() && kernel.name != forced) {
    return concat("TESSERA_KERNEL asks for ", forced);
  }
  if (kernel.device != problem.device.type) {
    reasons.push_back(concat("runs on ", kernel.device == DeviceType::cpu ? "the CPU" : "CUDA devices",
                             ", the data is on ", describe(problem.device)));
  }
  if (problem.algorithm != Algorithm::automatic && kernel.algorithm != problem.algorithm) {
    reasons.push_back(
        concat("implements ", name(kernel.algorithm), ", ", name(problem.algorithm), " is asked for"));
  }
  const Features lacking = required(problem).without(kernel.features);
  if (!lacking.empty()) reasons.push_back("lacks " + join(names(lacking)));
  if (reasons.empty() && kernel.limits != nullptr) {
    if (std::string limit = kernel.limits(problem); !limit.empty()) return limit;
  }
  if (reasons.empty() && kernel.yields != nullptr && forced.empty()) return kernel.yields(problem);
  return join(reasons);
}

const Kernel& select(std::span<const Kernel> table, const core::Problem& problem, std::string_view forced) {
  auto for_direction = [&](const Kernel& kernel) { return kernel.direction == problem.direction; };
  for (const Kernel& kernel : table) {
    if (for_direction(kernel) && missing(kernel, problem, forced).empty()) return kernel;
  }

  const bool known = forced.empty() || std::any_of(table.begin(), table.end(),
                                                   [&](const Kernel& k) { return k.name == forced; });
  if (!known) {
    std::vector<std::string> known_names;
    for (const Kernel& kernel : table) {
      std::string name(kernel.name);
      if (std::find(known_names.begin(), known_names.end(), name) == known_names.end()) {
        known_names.push_back(std::move(name));
      }
    }
    core::refuse("TESSERA_KERNEL is '", forced, "'; it must be one of: ", join(known_names));
  }
  std::string message = concat("no kernel serves this ", name(problem.direction), " on ",
                               describe(problem.device), " in ", name(problem.dtype));
  if (problem.device.type == DeviceType::cuda) {
    if (const std::string reason = cuda::unusable(problem.device.index); !reason.empty()) {
      message += concat(": ", reason);
    }
  }
  bool any = false;
  for (const Kernel& kernel : table) {
    if (!for_direction(kernel)) continue;
    message += concat("\n  ", kernel.name, ": ", missing(kernel, problem, forced));
    any = true;
  }
  if (!any) message += concat("\n  this build has no ", name(problem.direction), " kernel");
  throw Error(ErrorCode::unsupported, message);
}

std::vector<Rejection> rejections(std::span<const Kernel> table, const core::Problem& problem,
                                  const Kernel& chosen, std::string_view forced) {
  std::vector<Rejection> result;
  for (const Kernel& kernel : table) {
    if (kernel.direction != problem.direction || kernel.name == chosen.name) continue;
    std::string reason = missing(kernel, problem, forced);
    if (reason.empty()) reason = concat("serves it, but ", chosen.name, " comes first");
    result.push_back({std::string(kernel.name), std::move(reason)});
  }
  return result;
}

}  // namespace tessera::registry
