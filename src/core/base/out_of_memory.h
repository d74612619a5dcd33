// Out of host memory: the library reports it as Error (out_of_memory), also when the error itself
// cannot be allocated.
#pragma once

#include <cstddef>
#include <new>
#include <stdexcept>

#include "core/base/text.h"
#include "tessera/error.h"

namespace tessera::core {

// Throws out_of_memory. Needs no memory: the error is made when the library is loaded.
[[noreturn]] void throw_out_of_memory();

// The memory of this machine in bytes; the largest number where the system does not say.
std::size_t physical_memory() noexcept;

template <typename... Parts>
[[noreturn]] void fail(ErrorCode code, const Parts&... parts);

// Runs f. std::bad_alloc and std::length_error become Error (out_of_memory), with the parts as its
// message if there are any.
template <typename F, typename... Parts>
auto guarded(F&& f, const Parts&... parts) {
  auto out_of_memory = [&] {
    if constexpr (sizeof...(parts) > 0) fail(ErrorCode::out_of_memory, parts...);
    throw_out_of_memory();
  };
  try {
    return f();
  } catch (const std::bad_alloc&) {
    out_of_memory();
    throw;
  } catch (const std::length_error&) {
    out_of_memory();
    throw;
  }
}

// Throws an error with the parts as its message, or out_of_memory when even the message cannot be
// allocated.
template <typename... Parts>
[[noreturn]] void fail(ErrorCode code, const Parts&... parts) {
  throw guarded([&] { return Error(code, concat(parts...)); });
}

}  // namespace tessera::core
