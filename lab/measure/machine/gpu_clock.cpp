#include "lab/measure/machine/gpu_clock.h"

#include <dlfcn.h>

namespace tessera::lab {
namespace {

constexpr int kClockSm = 1;  // NVML_CLOCK_SM

}  // namespace

GpuClock::GpuClock(const std::string& pci_address) {
  library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) return;
  auto find = [&]<typename Function>(const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(dlsym(library_, name));
    return function != nullptr;
  };
  int (*start)() = nullptr;
  int (*handle)(const char* address, void** device) = nullptr;
  const bool complete = find("nvmlInit_v2", start) && find("nvmlShutdown", shutdown_) &&
                        find("nvmlDeviceGetHandleByPciBusId_v2", handle) &&
                        find("nvmlDeviceGetClockInfo", clock_info_);
  if (!complete || start() != 0) {
    shutdown_ = nullptr;
    return;
  }
  if (handle(pci_address.c_str(), &device_) != 0) device_ = nullptr;
}

GpuClock::~GpuClock() {
  if (shutdown_ != nullptr) shutdown_();
  if (library_ != nullptr) dlclose(library_);
}

double GpuClock::sm_mhz() const {
  unsigned mhz = 0;
  if (device_ == nullptr || clock_info_(device_, kClockSm, &mhz) != 0) return 0;
  return mhz;
}

}  // namespace tessera::lab
