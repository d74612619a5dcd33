// How the Hopper kernels begin: one warp group loads, the others compute, and each takes the
// registers that it needs.
#pragma once

#include "cuda/common/ptx/async.cuh"
#include "cuda/common/ptx/shared_memory.cuh"
#include "cuda/sm90/common/layout.h"

namespace tessera::cuda::sm90 {

// The body of a kernel with config C. `Loader<...>(arguments, memory).run()` is called by one
// thread of the first warp group, `Consumer<...>(arguments, memory, group, warp).run()` by all
// threads of the others; `Memory` is the plan of shared memory.
template <auto C, typename Memory, typename Loader, typename Consumer, typename Arguments>
__device__ __forceinline__ void run_warp_groups(const Arguments& arguments) {
  static_assert(sizeof(Memory) <= C.shared_bytes());
  TESSERA_DYNAMIC_SHARED(unsigned char, kSwizzleBytes, memory);
  auto& shared = *reinterpret_cast<Memory*>(memory);
  const int warp = __shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) {
    if (ptx::shared_address(memory) % kSwizzleBytes != 0) ptx::trap();
    shared.initialise();
  }
  __syncthreads();
  if (warp < 4) {
    ptx::give_registers<C.loader_registers>();
    if (warp == 0 && ptx::elect()) Loader(arguments, shared).run();
  } else {
    ptx::take_registers<C.registers>();
    Consumer(arguments, shared, warp / 4 - 1, warp % 4).run();
  }
}

}  // namespace tessera::cuda::sm90
