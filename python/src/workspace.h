// Workspace from the library that owns the arrays of a call. Its counters include
// it, and both share free memory.
#pragma once

#include <cstddef>
#include <string>

#include "dlpack_abi.h"
#include "tessera/execution.h"

namespace tessera::python {

// Takes workspace as a tensor of another library, through the allocator in DLPack's
// exchange table, which needs neither Python nor the GIL. The memory belongs to that
// library's current stream, so the call must run on that stream: memory freed while the
// GPU still works is reused only by later work of the stream. One object serves one call.
class LibraryWorkspace final : public Allocator {
 public:
  // `exchange` has an allocator; `device` is that of the call's arrays.
  LibraryWorkspace(const dlpack::Exchange& exchange, dlpack::Device device)
      : exchange_(exchange), device_(device) {}
  ~LibraryWorkspace() override;
  LibraryWorkspace(const LibraryWorkspace&) = delete;
  LibraryWorkspace& operator=(const LibraryWorkspace&) = delete;

  // Null when the library refuses; refusal() says why.
  void* allocate(std::size_t bytes, std::size_t alignment, void* stream) override;
  void deallocate(void* data, std::size_t bytes, std::size_t alignment, void* stream) override;

  // The first line of the library's error; empty without one.
  [[nodiscard]] const std::string& refusal() const { return refusal_; }

 private:
  void release();

  const dlpack::Exchange& exchange_;
  dlpack::Device device_;
  dlpack::ManagedVersioned* held_ = nullptr;
  std::string refusal_;
};

}  // namespace tessera::python
