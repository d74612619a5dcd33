// Settings that hold for a scope, as the environment variable of each would set
// them for the process.
#pragma once

#include <optional>
#include <string>

#include "core/base/environment.h"

namespace tessera::test {

// The CPU kernels' instruction set, as TESSERA_TARGET names it. Null leaves the choice alone.
class ForcedTarget {
 public:
  explicit ForcedTarget(const char* name) {
    if (name != nullptr) forced_.emplace(&core::Environment::target, name);
  }

 private:
  std::optional<core::EnvironmentOverride> forced_;
};

// The keys per step of cpu.flash2, as TESSERA_BLOCK_K gives them.
class ForcedKeysPerStep {
 public:
  explicit ForcedKeysPerStep(const std::string& keys) : forced_(&core::Environment::block_k, keys) {}

 private:
  core::EnvironmentOverride forced_;
};

}  // namespace tessera::test
