#include "cpu/machine/reading.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>

#include "core/base/environment.h"
#include "core/base/refuse.h"
#include "cpu/machine/cpu_info.h"

namespace tessera::cpu {
namespace {

// Where it was measured: AMD's cores with two 512-bit multipliers.
bool lines_should_pass() {
#if defined(__x86_64__)
  return __builtin_cpu_is("amd") != 0 && has_two_avx512_units();
#else
  return false;
#endif
}

}  // namespace

Reading reading() {
  const std::optional<std::string>& given = core::environment().decode_prefetch;
  if (given && *given != "keep" && *given != "pass") {
    core::refuse("TESSERA_DECODE_PREFETCH is '", *given, "'; it must be 'keep' or 'pass'");
  }
  // A core reaches one of the third-level caches; some systems give the size of all together.
  constexpr std::size_t kLargestCache = 32 << 20;
  return {.cached_bytes = static_cast<std::int64_t>(std::min(caches().l3, kLargestCache)),
          .passing = given ? *given == "pass" : lines_should_pass()};
}

}  // namespace tessera::cpu
