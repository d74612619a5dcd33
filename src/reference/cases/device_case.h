// A call with copies of all its tensors on a GPU: how the reference and the tests run kernels
// there.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "cuda/common/host/memory.h"
#include "tessera/attention.h"

namespace tessera::reference {

// A copy of a host tensor's memory on a GPU, gaps between elements included, between guard bands.
// Addresses keep their distance from a multiple of 256 bytes.
class DeviceTensor {
 public:
  // Throws Error: unsupported without such a GPU, out_of_memory, device_failure.
  DeviceTensor(const Tensor& host, Device device);

  [[nodiscard]] const Tensor& host() const { return host_; }
  [[nodiscard]] const Tensor& view() const { return view_; }

  // Copies the elements back into the host tensor. Returns whether gaps and guard bands are
  // unchanged.
  bool fetch();
  // Whether all of it is unchanged.
  [[nodiscard]] bool unchanged() const;

 private:
  [[nodiscard]] std::vector<std::byte> download() const;

  Tensor host_, view_;
  std::size_t first_ = 0;  // where element (0, 0, 0, 0) lies in the buffer
  std::vector<std::byte> uploaded_;
  cuda::DeviceBuffer buffer_;
};

// The options and tensors of a forward and a backward call. The host tensors must outlive it.
class DeviceCase {
 public:
  DeviceCase(const Attention& attention, const ForwardTensors& forward, const BackwardTensors& backward,
             Device device);
  DeviceCase(const DeviceCase&) = delete;
  DeviceCase& operator=(const DeviceCase&) = delete;

  Attention attention;
  ForwardTensors forward;
  BackwardTensors backward;

  // Waits and copies all results into the host tensors. Returns a description of every wrong write;
  // empty: none. Throws Error (device_failure) when something failed on the device.
  std::string fetch();

 private:
  struct Entry {
    const char* name;
    bool written;
    DeviceTensor tensor;
  };
  Tensor copy(const char* name, bool written, const Tensor& host);
  template <typename T>
  const T* copy(const T* data, std::int64_t count);

  Device device_;
  std::deque<Entry> tensors_;  // elements stay where they are
  std::vector<cuda::DeviceBuffer> arrays_;
};

}  // namespace tessera::reference
