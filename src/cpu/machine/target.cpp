#include "cpu/machine/target.h"

#include <algorithm>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif

#include "core/base/environment.h"
#include "core/base/lazy.h"
#include "core/base/refuse.h"

namespace tessera::cpu {

const char* name(Target target) noexcept {
  switch (target) {
    case Target::portable: return "portable";
    case Target::sse4: return "sse4";
    case Target::avx2: return "avx2";
    case Target::avx512: return "avx512";
    case Target::avx512_bf16: return "avx512_bf16";
    case Target::amx: return "amx";
    case Target::neon: return "neon";
    case Target::sve: return "sve";
  }
  return "unknown";
}

#if defined(__x86_64__)
namespace {

// Whether the CPU has AMX-BF16 and the operating system lets this process use the tiles: a process
// must request that once.
bool may_use_amx() {
  unsigned int a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned int kBf16 = 1U << 22, kTile = 1U << 24;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kBf16) == 0 || (d & kTile) == 0) return false;
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

}  // namespace
#endif

#if defined(__aarch64__)
namespace {

// Bytes of an SVE vector; 0 without SVE.
int sve_bytes() {
#if defined(__linux__)
  constexpr unsigned long kSve = 1UL << 22;                   // HWCAP_SVE
  constexpr int kGetVectorLength = 51, kLengthMask = 0xFFFF;  // PR_SVE_GET_VL
  if ((getauxval(AT_HWCAP) & kSve) == 0) return 0;
  const int answer = prctl(kGetVectorLength);
  return answer < 0 ? 0 : answer & kLengthMask;
#else
  return 0;
#endif
}

}  // namespace
#endif

namespace {

std::vector<Target> find_targets() {
  std::vector<Target> result;
#if defined(__x86_64__)
  // The features that Highway's targets of these names use. __builtin_cpu_supports also asks the
  // operating system.
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    if (__builtin_cpu_supports("avx512bf16")) {
      if (may_use_amx()) result.push_back(Target::amx);
      result.push_back(Target::avx512_bf16);
    }
    result.push_back(Target::avx512);
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) {
    result.push_back(Target::avx2);
  }
  if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt")) result.push_back(Target::sse4);
#elif defined(__aarch64__)
  const int sve = sve_bytes();
  if (sve > 16) result.push_back(Target::sve);
  result.push_back(Target::neon);
  if (sve == 16) result.push_back(Target::sve);  // no wider than NEON: nothing to gain
#endif
  result.push_back(Target::portable);
  return result;
}

}  // namespace

const std::vector<Target>& available_targets() {
  static constinit core::Lazy<const std::vector<Target>> targets;  // a call needs them several times
  return targets.get(find_targets);
}

Target active_target() {
  const std::vector<Target>& targets = available_targets();
  const std::optional<std::string>& asked = core::environment().target;
  if (!asked) return targets.front();
  const auto found =
      std::find_if(targets.begin(), targets.end(), [&](Target target) { return name(target) == *asked; });
  if (found != targets.end()) return *found;
  std::string names;
  for (const Target target : targets) names += (names.empty() ? "" : ", ") + std::string(name(target));
  core::refuse("TESSERA_TARGET is '", *asked, "'; on this CPU it must be one of: ", names);
}

Target target_for_type(Target target, DType dtype) noexcept {
  const bool more = target == Target::avx512_bf16 || target == Target::amx;
  return more && dtype != DType::bf16 ? Target::avx512 : target;
}

}  // namespace tessera::cpu
