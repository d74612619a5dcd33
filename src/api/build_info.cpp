// What this build is, and what machine it finds itself on.
#include <new>
#include <thread>

#include "core/text.h"
#include "cpu/machine.h"
#include "cpu/thread_pool.h"
#include "cuda/host/devices.h"
#include "tessera/error.h"
#include "tessera/plan.h"
#include "tessera/version.h"

namespace tessera {

std::string build_info() {
  try {
    std::string text = core::concat("version   ", version(), "\ncompiler  ",
#if defined(__clang__)
                                    "clang ", __clang_version__,
#else
                                    "g++ ", __VERSION__,
#endif
#ifdef NDEBUG
                                    ", optimised",
#else
                                    ", with assertions",
#endif
                                    "\n");
#if TESSERA_HAVE_OPENBLAS
    text += "OpenBLAS  yes (the standard algorithm on the CPU)\n";
#else
    text += "OpenBLAS  no: libopenblas was not found or not wanted, so there is no cpu.standard\n";
#endif
    return text + "CUDA      " + cuda::status() + "\n";
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::out_of_memory, "the host is out of memory");
  }
}

std::vector<DeviceInfo> devices() {
  try {
    std::vector<DeviceInfo> result;
    const cpu::Caches caches = cpu::caches();
    result.push_back({Device::cpu(), cpu::model_name(),
                      core::concat(cpu::available_cores(), " cores, ", cpu::instruction_sets(), ", caches ",
                                   caches.l1 >> 10, " KiB / ", caches.l2 >> 10, " KiB / ",
                                   caches.l3 >> 10, " KiB")});
    for (DeviceInfo& gpu : cuda::devices()) result.push_back(std::move(gpu));
    return result;
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::out_of_memory, "the host is out of memory");
  }
}

}  // namespace tessera
