// The tensors of a problem, on the device or on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/common/host/memory.h"
#include "tessera/attention.h"
#include "tessera/plan.h"

namespace tessera::lab {

// The tensors of one call. They begin without memory, so that a plan can say what the call will
// need; `allocate` then adds memory and random contents that depend on the seed alone.
class Tensors {
 public:
  Tensors(const Shapes& shapes, Direction direction, Device device);

  // Bytes that `allocate` takes.
  [[nodiscard]] std::size_t bytes() const;

  // Allocates, and fills the inputs and the bias with normally distributed numbers. A boolean mask
  // hides the last quarter of the keys. Throws std::bad_alloc, or Error (out_of_memory) on a GPU.
  void allocate(std::uint64_t seed);

  [[nodiscard]] ForwardTensors forward() const;
  [[nodiscard]] BackwardTensors backward() const;

  // Fills the gradients, and with `output` the output, with NaN: a call that does not write them is
  // seen.
  void poison(bool output);

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  void take(Tensor& tensor);
  void fill(const Tensor& tensor, std::uint64_t seed);
  static void hide_last_quarter(const Tensor& mask);
  std::vector<Tensor*> all();

  Tensor q_{}, k_{}, v_{}, bias_{}, visible_{}, out_{}, lse_{};
  Tensor grad_out_{}, grad_q_{}, grad_k_{}, grad_v_{}, grad_bias_{};
  std::vector<std::unique_ptr<std::byte, Free>> buffers_;
  std::vector<cuda::DeviceBuffer> device_buffers_;
};

// The tensors of a forward call in host memory: the same ones, or copies of those on a GPU.
class HostCopy {
 public:
  explicit HostCopy(const ForwardTensors& tensors);

  // Copies the output from the device again; does nothing for tensors of the host.
  void refresh_output();
  [[nodiscard]] const ForwardTensors& tensors() const { return host_; }

 private:
  Tensor fetch(const Tensor& tensor);
  ForwardTensors device_, host_;
  std::vector<std::vector<std::byte>> memory_;
};

// Numbers that are close to normally distributed (mean 0, deviation 1): elements [first, first +
// count) of an endless array that depends on the seed alone.
void fill_random(DType dtype, void* data, std::int64_t first, std::int64_t count, std::uint64_t seed);

}  // namespace tessera::lab
