// cuda.flash2 backward for 16-bit types: the entries for the registry, and the choices behind them.
#pragma once

#include <string>

#include "core/kernel.h"
#include "core/problem.h"
#include "cuda/common/host/device.h"
#include "cuda/mma/backward/arguments.h"

namespace tessera::cuda {

// Which kernels serve a problem on a device: a pure function of both.
struct BackwardChoice {
  const flash2::BackwardKernel* keys =
      nullptr;  // null: neither dK nor dV nor a dQ by reductions is asked for
  const flash2::BackwardKernel* queries = nullptr;  // null: dQ is not asked for, or comes with the keys
  const flash2::BackwardKernel* bias = nullptr;     // null: no gradient of a bias is asked for
  int head_dim = 0;                                 // of the sums of dQ; 0: none
  bool in_turns = false;                            // the sums are added in a fixed order
  bool bias_staged = false;                         // for `keys` the bias comes through shared memory
  bool complete = true;                             // false: something is missing, for the reason given
};

BackwardChoice choose_backward(const flash2::BackwardFamily& family, const DeviceLimits& device,
                               const core::Problem& p, core::Reason reason = {});

// The order of the blocks of queries, for what comes before and after the tiles; and of tiles of `tile` keys.
core::BasicTaskOrder<std::uint32_t> query_block_order(const core::Problem& p);
core::BasicTaskOrder<std::uint32_t> key_tile_order(const core::Problem& p, std::int64_t tile,
                                                   const DeviceLimits& device);

// For GPUs from sm_80 on.
bool flash2_backward_limits(const core::Problem& p, core::Reason reason);
registry::Configuration flash2_backward_configuration(const core::Problem& p, int workers);
std::string flash2_backward_details(const core::Problem& p, const registry::Configuration& configuration);
void flash2_backward(const core::Problem& p, const registry::Configuration& configuration,
                     const registry::Resources& resources);

// The path for Turing; it runs on newer GPUs too.
bool flash2_sm75_backward_limits(const core::Problem& p, core::Reason reason);
registry::Configuration flash2_sm75_backward_configuration(const core::Problem& p, int workers);
std::string flash2_sm75_backward_details(const core::Problem& p,
                                         const registry::Configuration& configuration);
void flash2_sm75_backward(const core::Problem& p, const registry::Configuration& configuration,
                          const registry::Resources& resources);

}  // namespace tessera::cuda
