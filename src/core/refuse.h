// Refusing an argument: the message names it, its value and what is allowed.
#pragma once

#include "core/text.h"
#include "tessera/error.h"

namespace tessera::core {

// Throws invalid_argument with the parts as its message.
template <typename... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  throw Error(ErrorCode::invalid_argument, concat(parts...));
}

}  // namespace tessera::core
