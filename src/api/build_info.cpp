// What this build is, and what machine it finds itself on.
#include "build_config.h"
#include "core/base/out_of_memory.h"
#include "core/base/text.h"
#include "cpu/baselines/standard/blas.h"
#include "cpu/machine/cores.h"
#include "cpu/machine/cpu_info.h"
#include "cpu/machine/reading.h"
#include "cuda/common/host/gpus.h"
#include "tessera/plan.h"
#include "tessera/version.h"

namespace tessera {

std::string build_info() {
  return core::guarded([&] {
    auto part = [](bool present, const std::string& text) { return (present ? "yes, " : "no, ") + text; };
    const std::string missing = cpu::blas_missing();
    const std::string sanitizers = TESSERA_SANITIZERS;
    return core::concat("version   ", version(), "\ncompiler  ", TESSERA_COMPILER, ", ", TESSERA_BUILD_TYPE,
                        sanitizers.empty() ? "" : ", sanitizers: " + sanitizers, "\nOpenBLAS  ",
                        part(missing.empty(), missing.empty() ? cpu::blas_description() : missing),
                        "\nCUDA      ", part(TESSERA_HAVE_CUDA, TESSERA_CUDA_REASON), "; ", cuda::status(),
                        "\n");
  });
}

std::vector<DeviceInfo> devices() {
  return core::guarded([&] {
    std::vector<DeviceInfo> result;
    const cpu::Caches caches = cpu::caches();
    result.push_back(
        {Device::cpu(), cpu::model_name(),
         core::concat(cpu::available_cores(), " cores, ", cpu::instruction_sets(), ", caches ",
                      caches.l1 >> 10, " KiB / ", caches.l2 >> 10, " KiB / ", caches.l3 >> 10,
                      " KiB; cpu.decode's prefetches ", cpu::reading().passing ? "pass" : "keep")});
    for (DeviceInfo& gpu : cuda::devices()) result.push_back(std::move(gpu));
    return result;
  });
}

}  // namespace tessera
