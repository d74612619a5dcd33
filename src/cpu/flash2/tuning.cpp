#include "cpu/flash2/tuning.h"

#include <charconv>
#include <optional>
#include <string>

#include "core/base/environment.h"
#include "core/base/refuse.h"
#include "cpu/machine/cpu_info.h"

namespace tessera::cpu {
namespace {

std::int64_t forced_block_k() {
  constexpr std::int64_t kMost = 8192;
  const std::optional<std::string>& given = core::environment().block_k;
  if (!given) return 0;
  std::int64_t keys = 0;
  const char* end = given->data() + given->size();
  const auto [stopped, error] = std::from_chars(given->data(), end, keys);
  if (error != std::errc() || stopped != end || keys < 1 || keys > kMost) {
    core::refuse("TESSERA_BLOCK_K is '", *given, "'; it must be a number of keys, 1 to ", kMost);
  }
  return keys;
}

}  // namespace

Tuning tuning() {
  return {.l1_bytes = static_cast<std::int64_t>(caches().l1),
          .l2_bytes = static_cast<std::int64_t>(caches().l2),
          .has_two_avx512_units = has_two_avx512_units(),
          .forced_block_k = forced_block_k()};
}

}  // namespace tessera::cpu
