// The environment variables of the library: the only place that reads them.
#pragma once

#include <optional>
#include <string>

namespace tessera::core {

// The variables when the library was loaded. Calls do not read the environment, so they are safe
// beside setenv, and a later change has no effect.
// Values are checked where they are used: an invalid one fails the call that it concerns.
struct Environment {
  std::optional<std::string> kernel;  // TESSERA_KERNEL: the kernel to use, by name; empty: any
  std::optional<std::string>
      target;  // TESSERA_TARGET: the CPU kernels' instruction set (cpu/machine/target.h)
  std::optional<std::string> block_k;  // TESSERA_BLOCK_K: keys per step of cpu.flash2
  std::optional<std::string>
      decode_prefetch;  // TESSERA_DECODE_PREFETCH: how cpu.decode fetches (cpu/machine/reading.h)
  std::optional<std::string>
      lazy_maximum;  // TESSERA_LAZY_MAXIMUM: GPU forward without the speculative maximum

  friend bool operator==(const Environment&, const Environment&) = default;
};

// The settings in force. Does not throw once the library is loaded. The reference stays valid for
// the life of the process, also when an override replaces the settings.
const Environment& environment();

// Overrides one variable for a scope: for tests and the lab, which compare kernels. Every thread
// sees it. A call reads the settings more than once, so an override may begin or end beside calls
// of other threads only where any mixture of both values is right. Overrides end in the reverse
// order of their beginning.
class EnvironmentOverride {
 public:
  using Variable = std::optional<std::string> Environment::*;

  EnvironmentOverride(Variable variable, std::optional<std::string> value);
  ~EnvironmentOverride();
  EnvironmentOverride(const EnvironmentOverride&) = delete;
  EnvironmentOverride& operator=(const EnvironmentOverride&) = delete;

 private:
  const Environment* before_;
};

}  // namespace tessera::core
