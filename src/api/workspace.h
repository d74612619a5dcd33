// The workspace of one call.
#pragma once

#include <cstddef>

#include "core/problem.h"
#include "tessera/attention.h"
#include "tessera/execution.h"

namespace tessera::api {

// Workspace for the time of one call: memory that the caller lends, or memory from the allocator.
// Throws Error: invalid_argument when the lent memory is too small or misaligned, out_of_memory.
class CallWorkspace {
 public:
  CallWorkspace(const Execution& execution, std::size_t bytes, Device device);
  CallWorkspace(const CallWorkspace&) = delete;
  CallWorkspace& operator=(const CallWorkspace&) = delete;
  // Frees the memory after a failure, too. That failure counts; an exception of the allocator is
  // dropped.
  ~CallWorkspace();

  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(data_); }

  // Frees the memory after success. Passes on exceptions of the allocator.
  void release();

 private:
  const Execution& execution_;
  Device device_;
  std::size_t bytes_;
  void* data_ = nullptr;
  bool allocated_ = false;  // by this object, which must free it
};

// Throws Error (invalid_argument) when lent workspace shares memory with anything that the call
// reads or writes.
void check_workspace(const Workspace& lent, const core::Problem& problem, const ForwardTensors& tensors);
void check_workspace(const Workspace& lent, const core::Problem& problem, const BackwardTensors& tensors);

}  // namespace tessera::api
