/// \file
/// How calls fail: one exception type with a code. The library never prints, exits or aborts.
#pragma once

#include <iosfwd>
#include <stdexcept>
#include <string>

#include "tessera/export.h"

namespace tessera {

/// Why a call failed.
enum class ErrorCode {
  invalid_argument = 1,  ///< An argument is wrong; the message names it, its value and what is allowed.
  unsupported = 2,       ///< No kernel supports the call; the message says what each one requires.
  out_of_memory = 3,     ///< Out of memory. Nothing is leaked, and the library stays usable.
  device_failure = 4,    ///< The device or its driver failed; the message quotes the driver's error.
};

/// Returns the name of a code, as in "invalid_argument". Never null.
[[nodiscard]] TESSERA_API const char* name(ErrorCode code) noexcept;

/// Writes the name.
TESSERA_API std::ostream& operator<<(std::ostream& stream, ErrorCode code);

/// The only exception type that the library throws. Other exceptions leave a call only when the
/// caller's own Executor or Allocator throws them (execution.h); the C interface turns those into a
/// status, too.
class TESSERA_API Error : public std::runtime_error {
 public:
  /// Makes an error with its code and the text that `what()` returns.
  Error(ErrorCode code, const std::string& message);

  /// Why the call failed.
  [[nodiscard]] ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace tessera
