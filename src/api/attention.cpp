// The two calls: validate, choose, take workspace, run.
#include "tessera/attention.h"

#include <cmath>

#include "api/execution.h"
#include "api/problem_of.h"
#include "api/workspace.h"
#include "core/base/out_of_memory.h"
#include "core/base/refuse.h"
#include "cpu/machine/float_environment.h"
#include "cuda/common/host/block_mask.h"
#include "registry/registry.h"

namespace tessera {
namespace {

template <typename Tensors>
void call(const Attention& attention, const Tensors& tensors, const Execution& execution) {
  core::guarded([&] {
    const cpu::DefaultFloats floats;
    core::Problem problem = api::problem_of(attention, tensors, api::Data::required);
    Executor& executor = api::executor_of(execution);
    const auto [kernel, choice] =
        registry::select(registry::kernels(), problem, api::workers_of(problem, execution, executor),
                         registry::forced_kernel());
    if (execution.workspace.data != nullptr) api::check_workspace(execution.workspace, problem, tensors);
    if (api::writes_nothing(problem)) return;
    // The choice was made with the mask on the host; the kernel reads a copy on the device.
    if (problem.blocks && problem.device.type == DeviceType::cuda) {
      problem.blocks = cuda::device_blocks(attention.mask.blocks, problem.device.index);
    }
    api::CallWorkspace workspace(execution, choice.workspace_bytes, problem.device);
    kernel->run(problem, choice, {workspace.data(), &executor, execution.stream});
    workspace.release();
  });
}

}  // namespace

void forward(const Attention& attention, const ForwardTensors& tensors, const Execution& execution) {
  call(attention, tensors, execution);
}

void backward(const Attention& attention, const BackwardTensors& tensors, const Execution& execution) {
  call(attention, tensors, execution);
}

std::vector<float> alibi_slopes(std::int64_t heads) {
  if (heads < 1 || heads > (std::int64_t{1} << 20)) {
    core::refuse("heads is ", heads, "; it must be between 1 and 2^20");
  }
  return core::guarded([&] {
    const cpu::DefaultFloats floats;
    std::int64_t power = 1;  // the largest power of two that is not above `heads`
    while (power * 2 <= heads) power *= 2;
    std::vector<float> slopes;
    slopes.reserve(static_cast<std::size_t>(heads));
    auto slope = [](std::int64_t step, std::int64_t steps) {
      return static_cast<float>(std::exp2(-8.0 * static_cast<double>(step) / static_cast<double>(steps)));
    };
    for (std::int64_t h = 1; h <= power; ++h) slopes.push_back(slope(h, power));
    for (std::int64_t h = 0; h < heads - power; ++h) slopes.push_back(slope(2 * h + 1, 2 * power));
    return slopes;
  });
}

}  // namespace tessera
