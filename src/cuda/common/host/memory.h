// Memory of a GPU. Compiled in every build; without CUDA, taking memory throws Error (unsupported).
#pragma once

#include <cstddef>

#include "tessera/execution.h"

namespace tessera::cuda {

// Workspace from a stream-ordered pool of the GPU: taking and giving back are work of
// the call's stream, so that nothing waits and a CUDA graph can capture it. The pool
// is the library's own and keeps up to a 64th of the GPU's memory between calls.
class StreamAllocator final : public Allocator {
 public:
  explicit StreamAllocator(int device) : device_(device) {}
  ~StreamAllocator() override;

  // Null when the GPU has no such memory; throws Error (device_failure) for any other failure.
  void* allocate(std::size_t bytes, std::size_t alignment, void* stream) override;
  void deallocate(void* data, std::size_t bytes, std::size_t alignment, void* stream) override;

 private:
  int device_;
};

// While it lives, this thread's StreamAllocators work as on a GPU without memory pools: for tests.
class WithoutMemoryPools {
 public:
  WithoutMemoryPools();
  ~WithoutMemoryPools();
  WithoutMemoryPools(const WithoutMemoryPools&) = delete;
  WithoutMemoryPools& operator=(const WithoutMemoryPools&) = delete;
};

// Memory for tests and measurements, never within a call: its functions wait for
// all work of the device.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  // Throws Error: out_of_memory, device_failure.
  DeviceBuffer(int device, std::size_t bytes);
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

  // From and to host memory. Throw Error (device_failure), also for what failed on
  // the device before.
  void upload(const void* host, std::size_t bytes, std::size_t offset = 0);
  void download(void* host, std::size_t bytes, std::size_t offset = 0) const;

 private:
  int device_ = 0;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Copies device memory to the host after all work of the device. Throws Error (device_failure).
void download(int device, const void* data, void* host, std::size_t bytes);

// Waits until a GPU has finished all its work. Throws Error (device_failure) when some of it
// failed.
void synchronize(int device);

}  // namespace tessera::cuda
