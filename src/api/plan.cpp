// Plans: the decision of a call as data.
#include "tessera/plan.h"

#include <algorithm>
#include <locale>
#include <ostream>
#include <sstream>

#include "api/execution.h"
#include "api/problem_of.h"
#include "api/shapes.h"
#include "core/base/out_of_memory.h"
#include "core/cost.h"
#include "cpu/machine/float_environment.h"
#include "registry/registry.h"

namespace tessera {
namespace {

using core::guarded;

Plan plan_problem(const core::Problem& problem, const Execution& execution) {
  const std::string_view forced = registry::forced_kernel();
  const std::span<const core::Kernel> table = registry::kernels();
  const int workers = api::workers_of(problem, execution, api::executor_of(execution));
  const registry::Selection selection = registry::select(table, problem, workers, forced);
  const core::Kernel& kernel = *selection.kernel;
  const core::Choice& choice = selection.choice;

  auto cost_of = [&](Algorithm algorithm) {
    return core::cost(problem, algorithm, choice.block_q, choice.block_k, choice.traffic_cache_bytes);
  };
  const core::Cost cost = cost_of(kernel.algorithm);
  const core::Cost standard = cost_of(Algorithm::standard);
  return {
      .kernel = std::string(kernel.name),
      .algorithm = kernel.algorithm,
      .direction = kernel.direction,
      .device = problem.device,
      .threads = kernel.device == DeviceType::cpu ? choice.workers : 0,
      .block_q = choice.block_q,
      .block_k = choice.block_k,
      .shared_memory_bytes = choice.shared_memory_bytes,
      .workspace_bytes = api::writes_nothing(problem) ? 0 : choice.workspace_bytes,
      .details = kernel.details(problem, choice),
      .flops = cost.flops,
      .visible_pairs = cost.visible_pairs,
      .minimum_bytes = cost.minimum_bytes,
      .traffic_bytes = cost.traffic_bytes,
      .standard_traffic_bytes = standard.traffic_bytes,
      .standard_workspace_bytes = standard.extra_bytes,
      .rejected = registry::rejections(table, problem, workers, kernel, forced),
  };
}

}  // namespace

Plan plan(const Attention& attention, const ForwardTensors& tensors, const Execution& execution) {
  return guarded([&] {
    const cpu::DefaultFloats floats;
    return plan_problem(api::problem_of(attention, tensors, api::Data::optional), execution);
  });
}

Plan plan(const Attention& attention, const BackwardTensors& tensors, const Execution& execution) {
  return guarded([&] {
    const cpu::DefaultFloats floats;
    return plan_problem(api::problem_of(attention, tensors, api::Data::optional), execution);
  });
}

Plan plan(const Attention& attention, const Shapes& shapes, Device device, Direction direction,
          const Execution& execution) {
  return guarded([&] {
    if (direction > Direction::backward) {
      core::refuse("direction is ", static_cast<int>(direction), "; it must be forward or backward");
    }
    Attention planned = attention;
    Lengths& lengths = planned.mask.lengths;
    if (lengths.count != 0) {  // sequences as long as the shapes say; real lengths belong to real tensors
      lengths = {nullptr, nullptr, lengths.count, shapes.q_length, shapes.k_length};
    }
    if (direction == Direction::forward) {
      return plan(planned, api::forward_tensors(planned, shapes, device), execution);
    }
    return plan(planned, api::backward_tensors(planned, shapes, device), execution);
  });
}

std::string to_string(const Plan& plan) {
  return guarded([&] {
    std::ostringstream text;
    text.imbue(std::locale::classic());
    text.exceptions(std::ios::badbit);
    text.precision(4);
    text << "kernel            " << plan.kernel << " (" << name(plan.algorithm) << ", "
         << name(plan.direction) << ", " << plan.device << ")\n";
    if (plan.threads > 0) text << "threads           " << plan.threads << "\n";
    text << "tile              " << plan.block_q << " queries x " << plan.block_k << " keys\n";
    if (plan.shared_memory_bytes > 0) {
      text << "shared memory     " << plan.shared_memory_bytes << " bytes per thread block\n";
    }
    text << "workspace         " << plan.workspace_bytes
         << " bytes (standard: " << plan.standard_workspace_bytes << ")\n"
         << "visible pairs     " << plan.visible_pairs << "\n"
         << "floating point    " << plan.flops / 1e9 << " GFLOP\n"
         << "memory traffic    " << plan.traffic_bytes / 1e6 << " MB predicted, " << plan.minimum_bytes / 1e6
         << " MB at least, " << plan.standard_traffic_bytes / 1e6 << " MB for standard\n";
    for (std::size_t at = 0; at < plan.details.size();) {
      const std::size_t end = std::min(plan.details.find('\n', at), plan.details.size());
      text << "                  " << plan.details.substr(at, end - at) << "\n";
      at = end + 1;
    }
    for (const Rejection& rejection : plan.rejected) {
      text << "not " << rejection.kernel << ": " << rejection.reason << "\n";
    }
    return text.str();
  });
}

std::ostream& operator<<(std::ostream& stream, const Plan& plan) { return stream << to_string(plan); }

std::vector<KernelInfo> kernels() {
  return guarded([] {
    std::vector<KernelInfo> result;
    for (const core::Kernel& kernel : registry::kernels()) {
      result.push_back({std::string(kernel.name), kernel.algorithm, kernel.direction, kernel.device,
                        core::names(kernel.features),
                        core::names(core::relevant(kernel.direction).without(kernel.features))});
    }
    return result;
  });
}

}  // namespace tessera
