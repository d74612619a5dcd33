// cuda.hopper, forward: what the registry calls, and the choices behind it. For 16-bit types on
// GPUs of compute capability 9.0.
#pragma once

#include <span>
#include <string>

#include "core/kernel.h"
#include "core/problem.h"
#include "cuda/sm90/forward/config.h"

namespace tessera::cuda {

// The compiled instances of an element type, in the order of kConfigs.
std::span<const sm90::forward::Instance> hopper_forward_bf16();
std::span<const sm90::forward::Instance> hopper_forward_fp16();

}  // namespace tessera::cuda

namespace tessera::cuda::sm90::forward {

// How one problem is run.
struct Decision {
  const Instance* instance = nullptr;
  Schedule schedule{};    // the order of its tiles
  std::int64_t grid = 0;  // thread blocks
  bool speculate = true;  // guess each row's maximum (TESSERA_LAZY_MAXIMUM: do not)

  // 0 where all tiles are equal.
  [[nodiscard]] std::size_t workspace_bytes() const;
};

// The instance for a problem that is within the kernel's limits: a pure function.
const Instance& choose_instance(std::span<const Instance> instances, const core::Problem& p);

// How an instance runs a problem on a GPU with `multiprocessors`.
Decision decide(const Instance& instance, const core::Problem& p, int multiprocessors);

// Enqueues the decision on a stream. `report`: for instances with bounded waits, four words that
// the host can read.
void enqueue(const Decision& decision, const core::Problem& p, std::byte* workspace, void* stream,
             std::uint32_t* report = nullptr);

std::optional<core::Choice> choose(const core::Problem& p, int workers, core::Reason reason);
std::string details(const core::Problem& p, const core::Choice& choice);
void run(const core::Problem& p, const core::Choice& choice, const core::Resources& resources);

}  // namespace tessera::cuda::sm90::forward
