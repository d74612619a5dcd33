// The Hopper backward kernel: dK, dV and, by fp32 reductions, dQ, in 16-bit types as an asynchronous pipeline of TMA and wgmma.
// Statistics come from flash2's prepare kernel and dQ leaves by its finish kernel.
#pragma once

#include <array>
#include <utility>

#include "cuda/hopper/backward_consumer.cuh"
#include "cuda/hopper/backward_finish.cuh"
#include "cuda/hopper/backward_loader.cuh"
#include "cuda/hopper/backward_scores.cuh"
#include "cuda/use.h"

namespace tessera::cuda::hopper {

template <typename Config>
__global__ void __launch_bounds__(Config::value.threads(), 1)
    hopper_backward_kernel(const __grid_constant__ BackwardArguments arguments) {
  constexpr auto C = Config::value;
  static_assert(sizeof(BackwardMemory<C>) <= C.shared_bytes());
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<BackwardMemory<C>*>(memory);
  const int warp = __shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) {
    if (ptx::shared_address(memory) % kSwizzleBytes != 0) asm volatile("trap;");
    shared.initialise();
  }
  __syncthreads();
  if (warp < 4) {
    ptx::give_registers<C.loader_registers>();
    if (warp == 0 && ptx::elect()) BackwardLoader<C>(arguments, shared).run();
  } else {
    ptx::take_registers<C.registers>();
    BackwardConsumer<C>(arguments, shared, warp / 4 - 1, warp % 4).run();
  }
}

template <const auto& Configs>
constexpr auto backward_instances() {
  return []<std::size_t... I>(std::index_sequence<I...>) {
    return std::array{BackwardInstance{Configs[I], hopper_backward_kernel<Use<Configs[I]>>}...};
  }
  (std::make_index_sequence<Configs.size()>());
}

}  // namespace tessera::cuda::hopper
