#include "lab/measure/machine/surroundings.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <regex>

#include "cpu/baselines/standard/blas.h"
#include "cpu/machine/cores.h"
#include "cuda/common/host/gpus.h"

namespace tessera::lab {
namespace {

std::string text_of(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string first_word(const char* path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

Surroundings find(bool gpu) {
  Surroundings found;
  found.governor = first_word("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  found.usable_cpus = cpu::available_cores();
  if (gpu) {
    found.driver = driver_version(text_of("/proc/driver/nvidia/version"));
    found.cuda = cuda::status();
  } else {
    found.libraries = cpu::blas_description();
  }
  return found;
}

}  // namespace

const Surroundings& surroundings(Device device) {
  if (device.type == DeviceType::cpu) {
    static const Surroundings kCpu = find(false);
    return kCpu;
  }
  static const Surroundings kGpu = find(true);
  return kGpu;
}

std::optional<double> load_average() {
  double minute = 0;
  if (getloadavg(&minute, 1) != 1) return {};
  return minute;
}

std::string driver_version(const std::string& text) {
  std::smatch found;
  return std::regex_search(text, found, std::regex(R"(\b(\d+\.\d+(\.\d+)?)\b)")) ? found[1].str() : "";
}

}  // namespace tessera::lab
