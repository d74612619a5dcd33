#include "cuda/common/host/launch.h"

#include <mutex>
#include <string>

#include "core/base/refuse.h"
#include "core/base/text.h"
#include "cuda/common/host/limits.h"
#include "tessera/error.h"

#if TESSERA_HAVE_CUDA
#include "cuda/common/host/device.h"
#endif

namespace tessera::cuda {

#if TESSERA_HAVE_CUDA

namespace {

constexpr std::size_t kPlainSharedMemory = 47 * 1024;  // more must be asked for; 1 KB for static memory

// The limit belongs to the kernel, not to a call: it is only ever raised, or a thread that needs
// less (a call without a bias, say) would take it away from another one that is about to launch.
void allow_shared_memory(const void* kernel, const char* name, std::size_t bytes) {
  static std::mutex one_at_a_time;
  const std::scoped_lock lock(one_at_a_time);
  const OutsideCapture outside;  // asking may load the kernel
  cudaFuncAttributes now{};
  check(cudaFuncGetAttributes(&now, kernel), name);
  if (now.maxDynamicSharedSizeBytes >= static_cast<int>(bytes)) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        name);
}

}  // namespace

void launch(const KernelCall& call, const char* name, std::int64_t grid, int threads,
            std::size_t shared_memory, void* stream, Begin begin) {
  if (std::string why; grid_limit(grid, core::Reason(why)))
    core::fail(ErrorCode::device_failure, name, ": ", why);
  if (shared_memory > kPlainSharedMemory) allow_shared_memory(call.kernel, name, shared_memory);
  void* parameters[] = {call.arguments};
  cudaLaunchAttribute beside{};
  beside.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  beside.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t how{};
  how.gridDim = dim3(static_cast<unsigned>(grid));
  how.blockDim = dim3(static_cast<unsigned>(threads));
  how.dynamicSmemBytes = shared_memory;
  how.stream = static_cast<cudaStream_t>(stream);
  how.attrs = &beside;
  how.numAttrs = begin == Begin::beside_predecessors ? 1 : 0;
  check(cudaLaunchKernelExC(&how, call.kernel, parameters), name);
}

#else

void launch(const KernelCall& /*call*/, const char* name, std::int64_t /*grid*/, int /*threads*/,
            std::size_t /*shared_memory*/, void* /*stream*/, Begin /*begin*/) {
  core::fail(ErrorCode::unsupported, name, " cannot run: this build has no CUDA (build_info() says why)");
}

#endif

}  // namespace tessera::cuda
