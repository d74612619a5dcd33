#include "core/base/environment.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <utility>

#include "core/base/immortal.h"
#include "core/base/lazy.h"

namespace tessera::core {
namespace {

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

Environment read() {
  return {.kernel = variable("TESSERA_KERNEL"),
          .target = variable("TESSERA_TARGET"),
          .block_k = variable("TESSERA_BLOCK_K"),
          .decode_prefetch = variable("TESSERA_DECODE_PREFETCH"),
          .lazy_maximum = variable("TESSERA_LAZY_MAXIMUM")};
}

constinit Lazy<const Environment> at_load;

// A call from an initialiser of static data may come before this one; it then reads them itself.
[[maybe_unused]] const Environment& read_at_load = at_load.get(read);

constinit std::atomic<const Environment*> overriding{nullptr};

// Every set of settings that was ever in force, never freed: a call may still read an old one.
const Environment& kept(Environment setting) {
  static std::mutex mutex;
  static auto& all = immortal([] { return std::deque<Environment>(); });
  const std::scoped_lock lock(mutex);
  const auto found = std::find(all.begin(), all.end(), setting);
  return found != all.end() ? *found : all.emplace_back(std::move(setting));
}

}  // namespace

const Environment& environment() {
  const Environment* const other = overriding.load(std::memory_order_acquire);
  return other != nullptr ? *other : at_load.get(read);
}

EnvironmentOverride::EnvironmentOverride(Variable variable, std::optional<std::string> value)
    : before_(&environment()) {
  Environment changed = *before_;
  changed.*variable = std::move(value);
  overriding.store(&kept(std::move(changed)), std::memory_order_release);
}

EnvironmentOverride::~EnvironmentOverride() { overriding.store(before_, std::memory_order_release); }

}  // namespace tessera::core
