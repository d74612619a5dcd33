// Refuses an argument: the message names it, its value and what is allowed.
#pragma once

#include "core/base/out_of_memory.h"
#include "tessera/error.h"

namespace tessera::core {

// Throws invalid_argument with the parts as its message.
template <typename... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  fail(ErrorCode::invalid_argument, parts...);
}

}  // namespace tessera::core
