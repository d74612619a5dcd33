// Linformer (Wang et al., 2020): keys and values are projected along the sequence from N to 256 rows, and attention over
// those is exact. Linear in N, and an approximation: its output is not attention's.
//
// One projection for keys and one for values, shared by all heads, random and fixed: their own gradients are not
// computed. Projecting is a product with OpenBLAS; attending is the library's best kernel.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <new>

#include "cpu/blas.h"
#include "lab/baselines/baseline.h"
#include "lab/theory.h"
#include "tessera/attention.h"
#include "tessera/error.h"

namespace tessera::lab {
namespace {

constexpr std::int64_t kRank = 256;
constexpr std::size_t kAlignment = 64;

std::int64_t rank_of(const Shapes& s) { return std::min(kRank, s.k_length); }

// Memory of the allocator that measures the call.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Allocator* allocator, std::size_t floats) : allocator_(allocator), bytes_(floats * sizeof(float)) {
    data_ = static_cast<float*>(allocator->allocate(bytes_, kAlignment, nullptr));
    if (data_ == nullptr) throw std::bad_alloc();
  }
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(allocator_, other.allocator_);
    std::swap(bytes_, other.bytes_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~Buffer() {
    if (data_ != nullptr) allocator_->deallocate(data_, bytes_, kAlignment, nullptr);
  }
  [[nodiscard]] float* data() const { return data_; }

 private:
  Allocator* allocator_ = nullptr;
  std::size_t bytes_ = 0;
  float* data_ = nullptr;
};

class Linformer final : public Baseline {
 public:
  Plan plan(const Workload& workload, const Tensors& tensors, Direction direction,
            const Execution& execution) const override {
    require_plain_fp32("linformer", workload, tensors);
    if (const std::string missing = cpu::blas_missing(); !missing.empty())
      throw Error(ErrorCode::unsupported, missing);
    const Shapes& s = workload.shapes();
    Shapes projected = s;
    projected.k_length = rank_of(s);
    Plan plan = tessera::plan(workload.attention(Algorithm::automatic), projected, Device::cpu(), direction,
                              execution);
    plan.kernel = "lab.linformer+" + plan.kernel;
    const core::Cost standard = cost_of(workload, direction, Algorithm::standard, 0, 0, 0);
    plan.standard_traffic_bytes = standard.traffic_bytes;
    plan.standard_workspace_bytes = standard.extra_bytes;
    const Sizes sizes(s);
    // K and V through their projections; backward dK and dV back through them.
    plan.flops += 2 * 2 * static_cast<double>(sizes.projection) * static_cast<double>(s.batch * sizes.width);
    const double longer =
        static_cast<double>(s.batch) * 2 * static_cast<double>((s.k_length - rank_of(s)) * sizes.width);
    const double moved = (longer + 2 * static_cast<double>(sizes.projection)) * sizeof(float);
    plan.minimum_bytes += moved;
    plan.traffic_bytes += moved;
    const std::size_t kept =
        2 * sizes.projection + (direction == Direction::forward ? 2 : 4) * sizes.projected;
    plan.workspace_bytes += kept * sizeof(float);
    return plan;
  }

  void run(const Workload& workload, const Tensors& tensors, Direction direction,
           const Execution& execution) override {
    const Sizes sizes(workload.shapes());
    if (k_projection_.data() == nullptr) prepare(sizes, execution);
    if (direction == Direction::forward) forward(workload, tensors, sizes, execution);
    else backward(workload, tensors, sizes, execution);
  }

  bool exact() const override { return false; }

 private:
  struct Sizes {
    explicit Sizes(const Shapes& s)
        : batch(s.batch),
          rank(rank_of(s)),
          length(s.k_length),
          width(s.q_heads * s.qk_dim),
          projection(static_cast<std::size_t>(rank * length)),
          projected(static_cast<std::size_t>(s.batch * rank * width)) {}
    std::int64_t batch, rank, length, width;
    std::size_t projection, projected;  // elements
  };

  void prepare(const Sizes& sizes, const Execution& execution) {
    k_projection_ = Buffer(execution.allocator, sizes.projection);
    v_projection_ = Buffer(execution.allocator, sizes.projection);
    k_ = Buffer(execution.allocator, sizes.projected);
    v_ = Buffer(execution.allocator, sizes.projected);
    const float scale = 1 / std::sqrt(static_cast<float>(sizes.length));
    std::uint64_t seed = 0;
    for (const Buffer* projection : {&k_projection_, &v_projection_}) {
      fill_random(DType::fp32, projection->data(), 0, static_cast<std::int64_t>(sizes.projection), ++seed);
      for (std::size_t i = 0; i < sizes.projection; ++i) projection->data()[i] *= scale;
    }
  }

  // All heads at once: (rank x length) times (length x heads * dim).
  static void project(const Buffer& projection, const Tensor& from, const Buffer& to, const Sizes& n) {
    for (std::int64_t b = 0; b < n.batch; ++b) {
      cpu::gemm(cpu::Transpose::no, cpu::Transpose::no, n.rank, n.width, n.length, 1.0F, projection.data(),
                n.length, static_cast<const float*>(from.data) + b * n.length * n.width, n.width, 0.0F,
                to.data() + b * n.rank * n.width, n.width);
    }
  }

  // The transposed product: gradients of the projected rows to those of all rows.
  static void project_back(const Buffer& projection, const Buffer& from, const Tensor& to, const Sizes& n) {
    for (std::int64_t b = 0; b < n.batch; ++b) {
      cpu::gemm(cpu::Transpose::yes, cpu::Transpose::no, n.length, n.width, n.rank, 1.0F, projection.data(),
                n.length, from.data() + b * n.rank * n.width, n.width, 0.0F,
                static_cast<float*>(to.data) + b * n.length * n.width, n.width);
    }
  }

  static Tensor projected(const Buffer& buffer, const Tensor& like, const Sizes& sizes) {
    Extents shape = like.shape;
    shape[1] = sizes.rank;
    return tensor(static_cast<void*>(buffer.data()), DType::fp32, shape, Device::cpu());
  }

  void forward(const Workload& workload, const Tensors& tensors, const Sizes& sizes,
               const Execution& execution) {
    ForwardTensors t = tensors.forward();
    project(k_projection_, t.k, k_, sizes);
    project(v_projection_, t.v, v_, sizes);
    t.k = projected(k_, t.k, sizes);
    t.v = projected(v_, t.v, sizes);
    tessera::forward(workload.attention(Algorithm::automatic), t, execution);
  }

  void backward(const Workload& workload, const Tensors& tensors, const Sizes& sizes,
                const Execution& execution) {
    const BackwardTensors all = tensors.backward();
    const Buffer grad_k(execution.allocator, sizes.projected), grad_v(execution.allocator, sizes.projected);
    BackwardTensors t = all;
    t.k = projected(k_, all.k, sizes);
    t.v = projected(v_, all.v, sizes);
    t.grad_k = projected(grad_k, all.k, sizes);
    t.grad_v = projected(grad_v, all.v, sizes);
    tessera::backward(workload.attention(Algorithm::automatic), t, execution);
    project_back(k_projection_, grad_k, all.grad_k, sizes);
    project_back(v_projection_, grad_v, all.grad_v, sizes);
  }

  Buffer k_projection_, v_projection_, k_, v_;
};

}  // namespace

std::unique_ptr<Baseline> make_linformer() { return std::make_unique<Linformer>(); }

}  // namespace tessera::lab
