#include "core/base/out_of_memory.h"

#include <unistd.h>

#include <limits>

#include "core/base/checked.h"
#include "core/base/lazy.h"

namespace tessera::core {
namespace {

constinit Lazy<const Error> error;

// Copies share the text, so that throwing one takes nothing from the heap.
const Error& prepared_error() {
  return error.get([] { return Error(ErrorCode::out_of_memory, "the host is out of memory"); });
}

[[maybe_unused]] const Error& prepared_at_load = prepared_error();

}  // namespace

void throw_out_of_memory() { throw Error(prepared_error()); }

std::size_t physical_memory() noexcept {
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page <= 0) return std::numeric_limits<std::size_t>::max();
  return static_cast<std::size_t>(pages) * static_cast<std::size_t>(page);
}

void throw_workspace_too_large() {
  fail(ErrorCode::out_of_memory, "the call needs more than 2^63 - 1 bytes of workspace; use smaller sizes");
}

}  // namespace tessera::core
