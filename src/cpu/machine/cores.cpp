#include "cpu/machine/cores.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <fstream>
#include <locale>
#include <sstream>
#include <string_view>
#include <thread>

namespace tessera::cpu {
namespace {

// More CPUs than any machine has: a larger quota is no quota.
constexpr std::int64_t kMany = 1 << 16;

std::optional<int> fewer(std::optional<int> a, std::optional<int> b) {
  return a && b ? std::min(*a, *b) : a ? a : b;
}

// Running out of memory must not look like the end of the text.
std::istringstream stream_of(const std::string& text) {
  std::istringstream stream(text);
  stream.imbue(std::locale::classic());
  stream.exceptions(std::ios::badbit);
  return stream;
}

// The CPUs of a quota of microseconds in each period. Text that is not a number ("max", "-1", an
// empty file) is no quota.
std::optional<int> cpus_of(const std::string& quota_and_period) {
  std::int64_t quota = 0, period = 0;
  std::istringstream words = stream_of(quota_and_period);
  if (!(words >> quota >> period) || quota <= 0 || period <= 0 || quota / period >= kMany) return {};
  return static_cast<int>((quota + period - 1) / period);
}

// The smallest quota of a group and of the groups around it, up to the mounted root.
template <typename QuotaOf>
std::optional<int> smallest_quota(std::string group, const QuotaOf& quota_of) {
  std::optional<int> least;
  while (true) {
    while (group.ends_with('/')) group.pop_back();
    least = fewer(least, quota_of(group));
    if (group.empty()) return least;
    group.erase(group.rfind('/'));
  }
}

bool has_cpu(std::string_view controllers) {
  return ("," + std::string(controllers) + ",").find(",cpu,") != std::string::npos;
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text.exceptions(std::ios::badbit);
  text << file.rdbuf();
  return text.str();
}

int allowed_cpus() {
  cpu_set_t cpus;  // of 1024: on larger machines the system refuses, and all CPUs count
  if (sched_getaffinity(0, sizeof cpus, &cpus) == 0) return CPU_COUNT(&cpus);
  return static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

std::optional<int> cgroup_cpus(const ReadFile& read) {
  const std::string root = "/sys/fs/cgroup";
  std::optional<int> least;
  std::istringstream lines = stream_of(read("/proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {  // hierarchy:controllers:group
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1),
                      group = line.substr(second + 1);
    if (!group.starts_with('/')) continue;
    if (controllers.empty()) {  // v2
      least = fewer(least, smallest_quota(group, [&](const std::string& at) {
                      return cpus_of(read(root + at + "/cpu.max"));
                    }));
    } else if (has_cpu(controllers)) {
      least = fewer(
          least, smallest_quota(group, [&](const std::string& at) {
            const std::string folder = root + "/" + controllers + at;
            return cpus_of(read(folder + "/cpu.cfs_quota_us") + " " + read(folder + "/cpu.cfs_period_us"));
          }));
    }
  }
  return least;
}

int available_cores() {
  static constinit std::atomic<int> found{0};  // no static local of a function: see core/base/lazy.h
  int cores = found.load(std::memory_order_relaxed);
  if (cores == 0) {
    cores = std::max(1, *fewer(allowed_cpus(), cgroup_cpus(text_of)));
    found.store(cores, std::memory_order_relaxed);
  }
  return cores;
}

}  // namespace tessera::cpu
