// What the process's environment asks of the library: the only place that reads it.
#pragma once

#include <optional>
#include <string>

namespace tessera::core {

// The variables as they were when the library first looked, once a process: no call reads the environment, so calls are
// safe beside setenv, and a change has no effect after the first call. Values are checked where they are used: an
// invalid one fails the call that it concerns.
struct Environment {
  std::optional<std::string> kernel;  // TESSERA_KERNEL: the kernel to use, by name; empty: any
  std::optional<std::string>
      target;  // TESSERA_TARGET: the CPU kernels' instruction set (cpu/machine/target.h)
  std::optional<std::string> block_k;  // TESSERA_BLOCK_K: keys per step of cpu.flash2
  std::optional<std::string>
      lazy_maximum;  // TESSERA_LAZY_MAXIMUM: GPU forward without the speculative maximum

  friend bool operator==(const Environment&, const Environment&) = default;
};

// What is in force now. Does not throw after the first call, which may run out of memory. Lives as long as the process,
// also when another takes its place.
const Environment& environment();

// One variable, for this process and a scope: for tests and the lab, which compare kernels. Every thread sees it. It may
// begin and end beside calls of other threads only where these do not mind which value they find, or a mixture: a call
// looks more than once. Overrides end in the opposite order of their beginning.
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
