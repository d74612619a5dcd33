// A point of a sweep made real: the description of the operation, its shapes, and its tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lab/options.h"
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

  // The operation with an algorithm filled in.
  [[nodiscard]] Attention attention(Algorithm algorithm) const;
  [[nodiscard]] const Shapes& shapes() const { return shapes_; }
  [[nodiscard]] const Point& point() const { return point_; }

 private:
  Point point_;
  Shapes shapes_;
  Attention attention_;
  std::vector<float> slopes_;
};

// The tensors of a workload for one direction. Made without memory first, so that a plan can say what the
// call will need; then with memory and random contents that depend on the seed alone.
class Tensors {
 public:
  Tensors(const Shapes& shapes, Direction direction, Device device);

  // Bytes that `allocate` takes.
  [[nodiscard]] std::size_t bytes() const;

  // Takes memory and fills the inputs: normally distributed, the bias likewise. Throws std::bad_alloc.
  void allocate(std::uint64_t seed);

  [[nodiscard]] ForwardTensors forward() const;
  [[nodiscard]] BackwardTensors backward() const;

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  void take(Tensor& tensor);
  std::vector<Tensor*> all();

  Tensor q_{}, k_{}, v_{}, bias_{}, out_{}, lse_{};
  Tensor grad_out_{}, grad_q_{}, grad_k_{}, grad_v_{}, grad_bias_{};
  std::vector<std::unique_ptr<std::byte, Free>> buffers_;
};

// Fills a tensor without gaps with numbers that are close to normally distributed (mean 0, deviation 1).
void fill_random(const Tensor& tensor, std::uint64_t seed);

}  // namespace tessera::lab
