#include "cpu/target.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/refuse.h"

namespace tessera::cpu {

const char* name(Target target) noexcept {
  switch (target) {
    case Target::portable: return "portable";
    case Target::sse4: return "sse4";
    case Target::avx2: return "avx2";
    case Target::avx512: return "avx512";
    case Target::neon: return "neon";
  }
  return "unknown";
}

std::vector<Target> available_targets() {
  std::vector<Target> result;
#if defined(__x86_64__)
  // What Highway's targets of these names may use; __builtin_cpu_supports also asks the operating system.
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    result.push_back(Target::avx512);
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) {
    result.push_back(Target::avx2);
  }
  if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt")) result.push_back(Target::sse4);
#elif defined(__aarch64__)
  result.push_back(Target::neon);
#endif
  result.push_back(Target::portable);
  return result;
}

Target active_target() {
  const std::vector<Target> targets = available_targets();
  const char* asked = std::getenv("TESSERA_TARGET");
  if (asked == nullptr) return targets.front();
  const auto found = std::find_if(targets.begin(), targets.end(),
                                  [&](Target target) { return std::string_view(name(target)) == asked; });
  if (found != targets.end()) return *found;
  std::string names;
  for (const Target target : targets) names += (names.empty() ? "" : ", ") + std::string(name(target));
  core::refuse("TESSERA_TARGET is '", asked, "'; on this CPU it must be one of: ", names);
}

}  // namespace tessera::cpu
