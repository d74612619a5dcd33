// What surrounds a measurement and may explain a time: drivers, libraries, the CPUs that the
// process may use and how they are governed, and how busy the machine is.
#pragma once

#include <optional>
#include <string>

#include "tessera/tensor.h"

namespace tessera::lab {

// Found once per process. Texts are empty where there is nothing to tell.
struct Surroundings {
  std::string driver;     // of NVIDIA's GPUs: "550.54.15"
  std::string cuda;       // the runtime of this build, and the newest that the driver supports
  std::string libraries;  // what standard attention multiplies with
  std::string governor;   // of the CPU's clock: "performance"
  int usable_cpus = 1;    // by affinity and cgroup
};

// Those of a device: driver and CUDA belong to a GPU, OpenBLAS to the CPU.
const Surroundings& surroundings(Device device);

// The load average of the last minute; none where the system does not tell.
std::optional<double> load_average();

// "550.54.15" out of the text of /proc/driver/nvidia/version; empty without one.
std::string driver_version(const std::string& text);

}  // namespace tessera::lab
