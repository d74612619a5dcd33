/// \file
/// How calls fail: one exception type with a code. The library never prints, exits or aborts.
#pragma once

#include <stdexcept>
#include <string>

#include "tessera/export.h"

namespace tessera {

/// Why a call failed.
enum class ErrorCode {
  invalid_argument = 1,  ///< An argument is wrong: the message names it, its value and what is allowed.
  unsupported = 2,       ///< No kernel serves the call: the message lists what each one lacks.
  out_of_memory = 3,     ///< Memory could not be had; nothing was leaked, the library stays usable.
  device_failure = 4,    ///< The device or its driver failed; the message carries its own words.
};

/// The name of a code, as in "invalid_argument". Never null.
TESSERA_API const char* name(ErrorCode code) noexcept;

/// What every function of the library throws, and nothing else. A call passes on exceptions of
/// another kind only from the caller's own Executor or Allocator (execution.h); the C interface
/// turns those into a status, too.
class TESSERA_API Error : public std::runtime_error {
 public:
  /// An error with its code and the text that `what()` returns.
  Error(ErrorCode code, const std::string& message);

  /// Why the call failed.
  [[nodiscard]] ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace tessera
