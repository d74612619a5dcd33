// The clock of a GPU's multiprocessors, from NVML, which comes with the driver and is loaded at run
// time.
#pragma once

#include <string>

namespace tessera::lab {

class GpuClock {
 public:
  // By the GPU's PCI address. Without NVML there is no clock, which is no error.
  explicit GpuClock(const std::string& pci_address);
  ~GpuClock();
  GpuClock(const GpuClock&) = delete;
  GpuClock& operator=(const GpuClock&) = delete;

  // Now, in MHz; 0: not known.
  [[nodiscard]] double sm_mhz() const;

 private:
  void* library_ = nullptr;
  void* device_ = nullptr;
  int (*clock_info_)(void* device, int type, unsigned* mhz) = nullptr;
  int (*shutdown_)() = nullptr;
};

}  // namespace tessera::lab
