// A point of a sweep made real: the description of the operation, its shapes, and its tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/common/host/memory.h"
#include "lab/commands/options.h"
#include "tessera/attention.h"
#include "tessera/plan.h"

namespace tessera::lab {

// Description and sizes. Owns what the description points to, so it moves but does not copy.
class Workload {
 public:
  // Throws UsageError when the point cannot be: key/value heads that do not divide the query heads, a block
  // mask that the library refuses.
  explicit Workload(const Point& point);
  Workload(Workload&&) = default;
  Workload& operator=(Workload&&) = default;

  // The operation with an algorithm filled in. What it points to is in host memory, or where `place` put it.
  [[nodiscard]] Attention attention(Algorithm algorithm) const;
  // The same for the oracle: always in host memory.
  [[nodiscard]] Attention host_attention() const { return attention_; }
  // Copies what the description points to (slopes, block mask) to the device that will run it.
  void place(Device device);
  [[nodiscard]] const Shapes& shapes() const { return shapes_; }
  [[nodiscard]] const Point& point() const { return point_; }

 private:
  Point point_;
  Shapes shapes_;
  Attention attention_;
  std::vector<float> slopes_;
  cuda::DeviceBuffer device_slopes_;
};

// The tensors of a workload for one direction. Made without memory first, so that a plan can say what the
// call will need; then with memory and random contents that depend on the seed alone.
class Tensors {
 public:
  Tensors(const Shapes& shapes, Direction direction, Device device);

  // Bytes that `allocate` takes.
  [[nodiscard]] std::size_t bytes() const;

  // Takes memory and fills the inputs: normally distributed, the bias likewise. Throws std::bad_alloc, or Error
  // (out_of_memory) on a GPU.
  void allocate(std::uint64_t seed);

  [[nodiscard]] ForwardTensors forward() const;
  [[nodiscard]] BackwardTensors backward() const;

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  void take(Tensor& tensor);
  void fill(const Tensor& tensor, std::uint64_t seed);
  std::vector<Tensor*> all();

  Tensor q_{}, k_{}, v_{}, bias_{}, out_{}, lse_{};
  Tensor grad_out_{}, grad_q_{}, grad_k_{}, grad_v_{}, grad_bias_{};
  std::vector<std::unique_ptr<std::byte, Free>> buffers_;
  std::vector<cuda::DeviceBuffer> device_buffers_;
};

// The tensors of a forward call in host memory: the same ones, or copies of those on a GPU.
class HostCopy {
 public:
  explicit HostCopy(const ForwardTensors& tensors);

  // Fetches the output anew, where it is a copy.
  void refresh_output();
  [[nodiscard]] const ForwardTensors& tensors() const { return host_; }

 private:
  Tensor fetch(const Tensor& tensor);
  ForwardTensors device_, host_;
  std::vector<std::vector<std::byte>> memory_;
};

// Numbers that are close to normally distributed (mean 0, deviation 1): elements [first, first + count) of an endless
// array that depends on the seed alone.
void fill_random(DType dtype, void* data, std::int64_t first, std::int64_t count, std::uint64_t seed);

}  // namespace tessera::lab
