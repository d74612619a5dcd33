// Which machine code, or PTX, of this library a GPU runs. Known from the build,
// without asking a GPU.
#pragma once

#include <string>
#include <string_view>

namespace tessera::cuda {

// The most shared memory that a thread block can have before compute capability 9.0. Kernels
// that take more are compiled for newer GPUs alone; code for an older one stops with a trap.
inline constexpr int kSharedMemoryBefore90 = 163 * 1024;

// GPU code by the suffix or the folder of its .cu file, which says for which GPUs it is compiled
// (src/CMakeLists.txt).
enum class Code : int { any, sm75, from80, sm90 };
inline constexpr int kCodes = 4;

// What a GPU loads: machine code for a compute capability (10 * major + minor), or
// PTX for one, which its driver compiles.
struct Image {
  int capability = 0;  // 0: there is nothing that this GPU can run
  bool ptx = false;
};

// CUDA's rule, for a list of architectures as CMake has it ("80-real;90-real;90-virtual"):
// the machine code of the same major version with the highest minor version that is not above
// the GPU's; else the newest PTX that is not newer than the GPU. "90a-real" is for 9.0 alone.
Image image_for(std::string_view architectures, int capability);

// The list of this build.
std::string_view architectures_of(Code code);

}  // namespace tessera::cuda
