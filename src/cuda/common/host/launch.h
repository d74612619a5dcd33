// The launch of a kernel that takes one argument structure.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::cuda {

// When a kernel may begin: when its predecessors in the stream have ended, or (capability 9.0 on)
// as soon as they let go of their multiprocessors. Then it has to wait by itself, before it touches
// memory: ptx::await_predecessors.
enum class Begin { after_predecessors, beside_predecessors };

// A kernel and its arguments. `call` runs one thread of the kernel as a function of this machine.
// Only the model of a GPU uses it (tests/gpu_model), which links a `launch` of its own.
struct KernelCall {
  const void* kernel = nullptr;
  void* arguments = nullptr;
  std::size_t argument_bytes = 0;
  void (*call)(const void* kernel, const void* arguments) = nullptr;
};

// Throws Error (device_failure) when the launch is refused, also for more than kMostBlocks
// (limits.h) thread blocks: the kernel should have declined the problem. Unsupported in builds
// without CUDA.
void launch(const KernelCall& call, const char* name, std::int64_t grid, int threads,
            std::size_t shared_memory, void* stream, Begin begin = Begin::after_predecessors);

template <typename Arguments>
void launch(void (*kernel)(Arguments), const char* name, std::int64_t grid, int threads,
            std::size_t shared_memory, void* stream, Arguments arguments,
            Begin begin = Begin::after_predecessors) {
  if (grid == 0) return;
  const KernelCall call{.kernel = reinterpret_cast<const void*>(kernel),
                        .arguments = &arguments,
                        .argument_bytes = sizeof arguments,
                        .call = [](const void* function, const void* own) {
                          reinterpret_cast<void (*)(Arguments)>(const_cast<void*>(function))(
                              *static_cast<const Arguments*>(own));
                        }};
  launch(call, name, grid, threads, shared_memory, stream, begin);
}

}  // namespace tessera::cuda
