#include "registry/registry.h"

#include <algorithm>
#include <array>
#include <ostream>
#include <utility>
#include <vector>

#include "core/base/environment.h"
#include "core/base/lazy.h"
#include "core/base/refuse.h"
#include "core/base/text.h"
#include "cpu/kernels.h"
#include "cuda/common/host/gpus.h"
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

// A device as messages name it.
struct Named {
  Device device;
};

std::ostream& operator<<(std::ostream& stream, const Named& named) {
  return named.device.type == DeviceType::cpu ? stream << "cpu" : stream << "cuda:" << named.device.index;
}

// Whether the kernel cannot serve the problem, which requires `features`, and why.
bool missing(const Kernel& kernel, const core::Problem& problem, Features features, std::string_view forced,
             core::Reason reason) {
  if (!forced.empty() && kernel.name != forced) return reason.give("TESSERA_KERNEL asks for ", forced);
  bool unfit = false;
  if (kernel.device != problem.device.type) {
    unfit = reason.give("runs on ", kernel.device == DeviceType::cpu ? "the CPU" : "CUDA devices",
                        ", the data is on ", Named{problem.device});
  }
  if (problem.algorithm != Algorithm::automatic && kernel.algorithm != problem.algorithm) {
    unfit =
        reason.give("implements ", name(kernel.algorithm), ", ", name(problem.algorithm), " is asked for");
  }
  const Features lacking = features.without(kernel.features);
  if (!lacking.empty()) unfit = reason.give("lacks ", lacking);
  if (unfit) return true;
  if (kernel.limits != nullptr && kernel.limits(problem, reason)) return true;
  return kernel.yields != nullptr && forced.empty() && kernel.yields(problem, reason);
}

std::string names_of(std::span<const Kernel> table) {
  std::vector<std::string_view> known;
  std::string text;
  for (const Kernel& kernel : table) {
    if (std::find(known.begin(), known.end(), kernel.name) != known.end()) continue;
    text += concat(known.empty() ? "" : ", ", kernel.name);
    known.push_back(kernel.name);
  }
  return text;
}

// Why no kernel of the table serves the problem. Throws Error.
[[noreturn]] void refuse_unserved(std::span<const Kernel> table, const core::Problem& problem,
                                  std::string_view forced) {
  const bool known = forced.empty() || std::any_of(table.begin(), table.end(),
                                                   [&](const Kernel& k) { return k.name == forced; });
  if (!known) core::refuse("TESSERA_KERNEL is '", forced, "'; it must be one of: ", names_of(table));
  std::string message = concat("no kernel serves this ", name(problem.direction), " on ",
                               Named{problem.device}, " in ", name(problem.dtype));
  if (problem.device.type == DeviceType::cuda) {
    if (const std::string reason = cuda::unusable(problem.device.index); !reason.empty()) {
      message += concat(": ", reason);
    }
  }
  bool any = false;
  for (const Kernel& kernel : table) {
    if (kernel.direction != problem.direction) continue;
    std::string reason;
    missing(kernel, problem, required(problem), forced, core::Reason(reason));
    message += concat("\n  ", kernel.name, ": ", reason);
    any = true;
  }
  if (!any) message += concat("\n  this build has no ", name(problem.direction), " kernel");
  throw Error(ErrorCode::unsupported, message);
}

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
  const auto sorted = [](bool with_cuda) {
    const std::span<const Kernel> cpu = cpu::kernels(), cuda = cuda::kernels();
    std::vector<Kernel> table(cpu.begin(), cpu.end());
    if (with_cuda) table.insert(table.end(), cuda.begin(), cuda.end());
    std::stable_sort(table.begin(), table.end(),
                     [](const Kernel& a, const Kernel& b) { return a.priority > b.priority; });
    return table;
  };
  static constinit core::Lazy<const std::vector<Kernel>> all, without_cuda;
  return cuda::kernels_exist() ? all.get([&] { return sorted(true); })
                               : without_cuda.get([&] { return sorted(false); });
}

std::string_view forced_kernel() {
  const std::optional<std::string>& name = core::environment().kernel;
  return name ? std::string_view(*name) : std::string_view();
}

const Kernel& select(std::span<const Kernel> table, const core::Problem& problem, std::string_view forced) {
  const Features features = required(problem);
  for (const Kernel& kernel : table) {
    if (kernel.direction == problem.direction && !missing(kernel, problem, features, forced, {}))
      return kernel;
  }
  refuse_unserved(table, problem, forced);
}

std::vector<Rejection> rejections(std::span<const Kernel> table, const core::Problem& problem,
                                  const Kernel& chosen, std::string_view forced) {
  std::vector<Rejection> result;
  for (const Kernel& kernel : table) {
    if (kernel.direction != problem.direction || kernel.name == chosen.name) continue;
    std::string reason;
    if (!missing(kernel, problem, required(problem), forced, core::Reason(reason))) {
      reason = concat("serves it, but ", chosen.name, " comes first");
    }
    result.push_back({std::string(kernel.name), std::move(reason)});
  }
  return result;
}

}  // namespace tessera::registry
