// Linformer (Wang et al., 2020): keys and values are projected along the sequence from N to 256
// rows, and attention over those is exact. Linear in N, and an approximation: its output is not
// attention's.
//
// One projection for keys and one for values, shared by all heads, random and fixed: their own
// gradients are not computed. Projecting is a product with OpenBLAS or cuBLAS; attending is the
// library's best kernel.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <new>
#include <utility>
#include <vector>

#include "lab/baselines/baseline.h"
#include "lab/baselines/buffer.h"
#include "lab/baselines/shared_product.h"
#include "lab/problem/theory.h"
#include "tessera/attention.h"
#include "tessera/error.h"

namespace tessera::lab {
namespace {

constexpr std::int64_t kRank = 256;

std::int64_t rank_of(const Shapes& s) { return std::min(kRank, s.k_length); }

class Linformer final : public Baseline {
 public:
  Plan plan(const Operation& operation, const Tensors& tensors, Direction direction,
            const Execution& execution) const override {
    require_plain("linformer", operation);
    const Device device = tensors.forward().q.device;
    if (device.type == DeviceType::cpu) require_fp32_on_cpu("linformer", operation, tensors);
    if (const std::string missing = products_missing(device); !missing.empty())
      throw Error(ErrorCode::unsupported, missing);
    const Shapes& s = operation.shapes();
    Shapes projected = s;
    projected.k_length = rank_of(s);
    Plan plan =
        tessera::plan(operation.attention(Algorithm::automatic), projected, device, direction, execution);
    plan.kernel = "lab.linformer+" + plan.kernel;
    const core::Cost standard = cost_of(operation, direction, Algorithm::standard, 0, 0, 0);
    plan.standard_traffic_bytes = standard.traffic_bytes;
    plan.standard_workspace_bytes = standard.extra_bytes;
    const Sizes sizes(s);
    const auto element = static_cast<double>(sizes.element);
    // K and V through their projections; backward dK and dV back through them.
    plan.flops +=
        2 * 2 * static_cast<double>(sizes.rank * sizes.length) * static_cast<double>(s.batch * sizes.width);
    const double longer =
        static_cast<double>(s.batch) * 2 * static_cast<double>((s.k_length - rank_of(s)) * sizes.width);
    const double moved = longer * element + 2 * static_cast<double>(sizes.projection);
    plan.minimum_bytes += moved;
    plan.traffic_bytes += moved;
    plan.workspace_bytes += 2 * sizes.projection +
                            (direction == Direction::forward ? 2 : 4) * sizes.projected +
                            product_workspace_bytes(device);
    return plan;
  }

  void run(const Operation& operation, const Tensors& tensors, Direction direction,
           const Execution& execution) override {
    const Sizes sizes(operation.shapes());
    device_ = tensors.forward().q.device;
    if (k_projection_.data() == nullptr) prepare(sizes, execution);
    if (direction == Direction::forward) forward(operation, tensors, sizes, execution);
    else backward(operation, tensors, sizes, execution);
  }

  bool exact() const override { return false; }

 private:
  struct Sizes {
    explicit Sizes(const Shapes& s)
        : batch(s.batch),
          rank(rank_of(s)),
          length(s.k_length),
          width(s.q_heads * s.qk_dim),
          dtype(s.dtype),
          element(size_of(s.dtype)),
          projection(static_cast<std::size_t>(rank * length) * element),
          projected(static_cast<std::size_t>(s.batch * rank * width) * element) {}
    std::int64_t batch, rank, length, width;
    DType dtype;
    std::size_t element, projection, projected;  // bytes
  };

  void prepare(const Sizes& sizes, const Execution& execution) {
    k_projection_ = Buffer(execution, sizes.projection);
    v_projection_ = Buffer(execution, sizes.projection);
    k_ = Buffer(execution, sizes.projected);
    v_ = Buffer(execution, sizes.projected);
    if (const std::size_t bytes = product_workspace_bytes(device_); bytes > 0)
      product_workspace_ = Buffer(execution, bytes);
    std::vector<std::byte> host(sizes.projection);
    std::uint64_t seed = 0;
    for (const Buffer* projection : {&k_projection_, &v_projection_}) {
      fill_random(sizes.dtype, host.data(), 0, sizes.rank * sizes.length, ++seed);
      copy_to(device_, execution, projection->data(), host.data(), host.size());
    }
  }

  // All heads at once: (rank x length) times (length x heads * dim), scaled so that projected rows
  // are as large as rows.
  void project(const Buffer& projection, const void* from, void* to, const Sizes& n,
               const Execution& execution) const {
    multiply({.matrix = projection.data(),
              .rows = n.rank,
              .columns = n.width,
              .depth = n.length,
              .batch = n.batch,
              .alpha = scale(n),
              .dtype = n.dtype,
              .from = from,
              .to = to},
             device_, execution, product_workspace_.data());
  }

  // The transposed product: gradients of the projected rows to those of all rows.
  void project_back(const Buffer& projection, const void* from, void* to, const Sizes& n,
                    const Execution& execution) const {
    multiply({.matrix = projection.data(),
              .transposed = true,
              .rows = n.length,
              .columns = n.width,
              .depth = n.rank,
              .batch = n.batch,
              .alpha = scale(n),
              .dtype = n.dtype,
              .from = from,
              .to = to},
             device_, execution, product_workspace_.data());
  }

  static float scale(const Sizes& n) { return 1 / std::sqrt(static_cast<float>(n.length)); }

  [[nodiscard]] Tensor projected(const Buffer& buffer, const Tensor& like, const Sizes& sizes) const {
    Extents shape = like.shape;
    shape[1] = sizes.rank;
    return tensor(buffer.data(), sizes.dtype, shape, device_);
  }

  void forward(const Operation& operation, const Tensors& tensors, const Sizes& sizes,
               const Execution& execution) {
    ForwardTensors t = tensors.forward();
    project(k_projection_, t.k.data, k_.data(), sizes, execution);
    project(v_projection_, t.v.data, v_.data(), sizes, execution);
    t.k = projected(k_, t.k, sizes);
    t.v = projected(v_, t.v, sizes);
    tessera::forward(operation.attention(Algorithm::automatic), t, execution);
  }

  void backward(const Operation& operation, const Tensors& tensors, const Sizes& sizes,
                const Execution& execution) {
    const BackwardTensors all = tensors.backward();
    const Buffer grad_k(execution, sizes.projected), grad_v(execution, sizes.projected);
    BackwardTensors t = all;
    t.k = projected(k_, all.k, sizes);
    t.v = projected(v_, all.v, sizes);
    t.grad_k = projected(grad_k, all.k, sizes);
    t.grad_v = projected(grad_v, all.v, sizes);
    tessera::backward(operation.attention(Algorithm::automatic), t, execution);
    project_back(k_projection_, grad_k.data(), all.grad_k.data, sizes, execution);
    project_back(v_projection_, grad_v.data(), all.grad_v.data, sizes, execution);
  }

  Device device_{};
  Buffer k_projection_, v_projection_, k_, v_, product_workspace_;
};

}  // namespace

std::unique_ptr<Baseline> make_linformer() { return std::make_unique<Linformer>(); }

}  // namespace tessera::lab
