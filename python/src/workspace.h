// Workspace from the library whose arrays a call works on: that library counts it, and both use the same free memory.
#pragma once

#include <cstddef>
#include <string>

#include "dlpack_abi.h"
#include "tessera/execution.h"

namespace tessera::python {

// Takes workspace as a tensor of another library, through the allocator in DLPack's exchange table: no Python is involved,
// and the GIL is not needed. The memory belongs to that library's current stream, so the call must run on it; what is given
// back while the GPU still works is used again by later work of the stream only. For one call, which takes workspace once.
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

  // The first line of what the library said; empty unless it refused.
  [[nodiscard]] const std::string& refusal() const { return refusal_; }

 private:
  void release();

  const dlpack::Exchange& exchange_;
  dlpack::Device device_;
  dlpack::ManagedVersioned* held_ = nullptr;
  std::string refusal_;
};

}  // namespace tessera::python
