// What a call runs with: its executor, its number of workers, its workspace.
#pragma once

#include <cstddef>

#include "tessera/execution.h"
#include "tessera/tensor.h"

namespace tessera::api {

// The caller's executor, or the library's pool.
Executor& executor_of(const Execution& execution);

// How many workers to use. Throws Error (invalid_argument) for impossible counts.
int workers_of(const Execution& execution, const Executor& executor);

// Workspace for the time of one call: what the caller lends, or memory from the allocator. Throws Error:
// invalid_argument when the lent workspace does not do, out_of_memory when there is none.
class WorkspaceLease {
 public:
  WorkspaceLease(const Execution& execution, std::size_t bytes, Device device);
  WorkspaceLease(const WorkspaceLease&) = delete;
  WorkspaceLease& operator=(const WorkspaceLease&) = delete;
  // Gives the memory back as well, after a failure: that one counts, whatever the allocator throws
  // then.
  ~WorkspaceLease();

  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(data_); }

  // Ends the lease. Passes on what the allocator throws.
  void give_back();

 private:
  const Execution& execution_;
  Device device_;
  std::size_t bytes_;
  void* data_ = nullptr;
  bool owned_ = false;
};

}  // namespace tessera::api
