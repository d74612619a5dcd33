#include "registry/registry.h"

#include <algorithm>
#include <optional>
#include <ostream>
#include <string>
#include <utility>

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

using core::Choice;
using core::concat;
using core::Features;
using core::Kernel;
using core::Problem;
using core::Reason;

// A device as messages name it.
struct Named {
  Device device;
};

std::ostream& operator<<(std::ostream& stream, const Named& named) {
  return named.device.type == DeviceType::cpu ? stream << "cpu" : stream << "cuda:" << named.device.index;
}

// What selection knows about one call.
struct Call {
  const Problem& problem;
  Features features;  // that the problem requires
  int workers;
  std::string_view forced;

  Call(const Problem& p, int count, std::string_view name)
      : problem(p), features(required(p)), workers(count), forced(name) {}
};

bool implements(const Kernel& kernel, const Problem& p) {
  return p.algorithm == Algorithm::automatic || kernel.algorithm == p.algorithm;
}

// Whether, and why, what the kernel declares already excludes it.
bool excluded(const Kernel& kernel, const Call& call, Reason reason) {
  const Problem& p = call.problem;
  if (!call.forced.empty() && kernel.name != call.forced) {
    return reason.give("TESSERA_KERNEL selects another kernel: ", call.forced);
  }
  bool result = false;
  if (kernel.device != p.device.type) {
    result = reason.give("runs on ", kernel.device == DeviceType::cpu ? "the CPU" : "CUDA devices",
                         ", the tensors are on ", Named{p.device});
  }
  if (!implements(kernel, p)) {
    result = reason.give("implements ", name(kernel.algorithm), ", not ", name(p.algorithm));
  }
  const Features missing = call.features.without(kernel.features);
  if (!missing.empty()) {
    const bool way_out = missing.contains(core::Feature::visible);
    result = reason.give("does not support ", missing,
                         way_out ? "; pass a bias of -infinity where it is false" : "");
  }
  return result;
}

// How the kernel would run the problem. Whether it prefers another comes first: its choice may need
// more workspace than there can be.
std::optional<Choice> choice_of(const Kernel& kernel, const Call& call, Reason reason) {
  if (excluded(kernel, call, reason)) return std::nullopt;
  const bool may_prefer = kernel.prefers_another != nullptr && call.forced.empty();
  if (may_prefer && kernel.prefers_another(call.problem, reason)) return std::nullopt;
  return kernel.choose(call.problem, call.workers, reason);
}

std::string why_not(const Kernel& kernel, const Call& call) {
  std::string reason;
  return choice_of(kernel, call, Reason(reason)) ? std::string() : reason;
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

// The first kernel that implements the problem's algorithm on another kind of device, also when
// this build has no such kernels; null: none.
const Kernel* elsewhere(std::span<const Kernel> table, const Problem& p) {
  for (const std::span<const Kernel> kernels : {table, cuda::kernels()}) {
    for (const Kernel& kernel : kernels) {
      if (kernel.direction == p.direction && kernel.device != p.device.type && implements(kernel, p)) {
        return &kernel;
      }
    }
  }
  return nullptr;
}

// The kernel that comes closest to running the call: first one that declares all it takes, then one
// that is for the device and the algorithm; null: none is.
const Kernel* nearest(std::span<const Kernel> table, const Call& call) {
  const Kernel* result = nullptr;
  for (const Kernel& kernel : table) {
    if (kernel.direction != call.problem.direction) continue;
    if (!excluded(kernel, call, {})) return &kernel;
    const bool selectable = call.forced.empty() || kernel.name == call.forced;
    const bool here = kernel.device == call.problem.device.type && implements(kernel, call.problem);
    if (result == nullptr && selectable && here) result = &kernel;
  }
  return result;
}

// The first sentence of a refusal: what is in the way, and what would help.
std::string obstacle(std::span<const Kernel> table, const Call& call) {
  const Problem& p = call.problem;
  const bool on_cpu = p.device.type == DeviceType::cpu;
  if (!on_cpu) {
    if (std::string unusable = cuda::unusable(p.device.index); !unusable.empty()) return unusable;
  }
  if (const Kernel* kernel = nearest(table, call); kernel != nullptr) {
    return concat("no kernel supports this ", name(p.direction), " on ", Named{p.device}, " in ",
                  name(p.dtype), "; ", kernel->name, " ", why_not(*kernel, call));
  }
  if (!call.forced.empty()) {
    return concat("TESSERA_KERNEL selects ", call.forced, ", which does not run this ", name(p.direction),
                  " on ", Named{p.device});
  }
  if (const Kernel* other = elsewhere(table, p); other != nullptr && p.algorithm != Algorithm::automatic) {
    return concat("no ", on_cpu ? "CPU" : "GPU", " kernel implements ", name(p.algorithm), "; it requires ",
                  other->hardware);
  }
  return concat("this build has no kernel for ", name(p.direction), " on ", Named{p.device},
                p.algorithm == Algorithm::automatic ? "" : " that implements ",
                p.algorithm == Algorithm::automatic ? "" : name(p.algorithm));
}

// Why no kernel of the table supports the problem. Throws Error.
[[noreturn]] void refuse_unsupported(std::span<const Kernel> table, const Call& call) {
  const bool known = call.forced.empty() || std::any_of(table.begin(), table.end(), [&](const Kernel& k) {
                       return k.name == call.forced;
                     });
  if (!known) core::refuse("TESSERA_KERNEL is '", call.forced, "'; it must be one of: ", names_of(table));
  std::string message = obstacle(table, call);
  for (const Kernel& kernel : table) {
    if (kernel.direction == call.problem.direction) {
      message += concat("\n  ", kernel.name, ": ", why_not(kernel, call));
    }
  }
  throw Error(ErrorCode::unsupported, message);
}

}  // namespace

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

Selection select(std::span<const Kernel> table, const Problem& problem, int workers,
                 std::string_view forced) {
  const Call call(problem, workers, forced);
  for (const Kernel& kernel : table) {
    if (kernel.direction != problem.direction) continue;
    if (const std::optional<Choice> choice = choice_of(kernel, call, {})) return {&kernel, *choice};
  }
  refuse_unsupported(table, call);
}

std::vector<Rejection> rejections(std::span<const Kernel> table, const Problem& problem, int workers,
                                  const Kernel& chosen, std::string_view forced) {
  const Call call(problem, workers, forced);
  std::vector<Rejection> result;
  for (const Kernel& kernel : table) {
    if (kernel.direction != problem.direction || kernel.name == chosen.name) continue;
    std::string reason;
    try {
      reason = why_not(kernel, call);
    } catch (const Error& error) {  // workspace beyond 64 bits, say: the chosen kernel does not mind
      reason = error.what();
    }
    if (reason.empty()) reason = concat("supports it; ", chosen.name, " is preferred");
    result.push_back({std::string(kernel.name), std::move(reason)});
  }
  return result;
}

}  // namespace tessera::registry
