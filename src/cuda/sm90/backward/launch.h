// cuda.hopper, backward: what the registry calls, and the choices behind it. For 16-bit types on
// GPUs of compute capability 9.0.
#pragma once

#include <span>
#include <string>

#include "core/kernel.h"
#include "core/problem.h"
#include "cuda/sm90/backward/config.h"

namespace tessera::cuda {

// The compiled instances of an element type, in the order of kConfigs.
std::span<const sm90::backward::Instance> hopper_backward_bf16();
std::span<const sm90::backward::Instance> hopper_backward_fp16();

}  // namespace tessera::cuda

namespace tessera::cuda::sm90::backward {

// How one problem is run.
struct Decision {
  const Instance* instance = nullptr;
  core::BasicTaskOrder<std::uint32_t> blocks{};  // the blocks of queries, before and after the tiles of keys
  core::BasicTaskOrder<std::uint32_t> tiles{};   // the tiles of keys
  std::int64_t grid = 0;                         // thread blocks of the tiles
  std::size_t workspace_bytes = 0;
};

// The instance for a problem; null: none supports it. A pure function.
const Instance* choose_instance(std::span<const Instance> instances, const core::Problem& p);

// How an instance runs a problem on its GPU.
Decision decide(const Instance& instance, const core::Problem& p);

// Enqueues the decision on a stream, with the kernels before and after it. `report`: for instances
// with bounded waits, four words that the host can read.
void enqueue(const Decision& decision, const core::Problem& p, std::byte* workspace, void* stream,
             std::uint32_t* report = nullptr);

std::optional<core::Choice> choose(const core::Problem& p, int workers, core::Reason reason);
std::string details(const core::Problem& p, const core::Choice& choice);
void run(const core::Problem& p, const core::Choice& choice, const core::Resources& resources);

}  // namespace tessera::cuda::sm90::backward
