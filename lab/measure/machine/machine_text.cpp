#include "lab/measure/machine/machine_text.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <optional>
#include <thread>

#include "lab/measure/machine/gpu_timer.h"
#include "tessera/plan.h"

namespace tessera::lab {
namespace {

std::optional<std::uint64_t> number_in_file(const char* path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  if (file >> value) return value;
  return {};
}

}  // namespace

std::string machine_text() {
  const std::vector<DeviceInfo> all = devices();
  const std::string processor = all.empty() ? "unknown CPU" : all.front().name;
  utsname system{};
  uname(&system);
  return fmt::format("{}, {} CPUs, {} {} {}", processor, std::thread::hardware_concurrency(), system.sysname,
                     system.release, system.machine);
}

std::size_t memory_bytes() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGE_SIZE));
}

std::size_t available_memory() {
  std::uint64_t available = std::numeric_limits<std::int64_t>::max();
  std::ifstream meminfo("/proc/meminfo");
  for (std::string key; meminfo >> key;) {
    std::uint64_t kibibytes = 0;
    if (key == "MemAvailable:" && meminfo >> kibibytes) available = kibibytes * 1024;
    meminfo.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  // No number in memory.max ("max") means no limit.
  const auto limit = number_in_file("/sys/fs/cgroup/memory.max");
  const auto used = number_in_file("/sys/fs/cgroup/memory.current");
  if (limit && used) available = std::min(available, *limit > *used ? *limit - *used : 0);
  return static_cast<std::size_t>(available);
}

std::string machine_text(Device device) {
  if (device.type == DeviceType::cpu) return machine_text();
  const std::string gpu = gpu_name(device.index);
  return gpu.empty() ? machine_text() : gpu + " in " + machine_text();
}

std::size_t available_memory(Device device) {
  return device.type == DeviceType::cpu ? available_memory() : gpu_available_memory(device.index);
}

}  // namespace tessera::lab
