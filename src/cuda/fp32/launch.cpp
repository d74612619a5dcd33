#include "cuda/fp32/launch.h"

#include <algorithm>
#include <cstdlib>

#include "core/base/text.h"
#include "core/task_order.h"
#include "core/visibility.h"
#include "cuda/common/step_cursor.h"

namespace tessera::cuda {
namespace {

using fp32::BackwardConfig;
using fp32::BiasGradientConfig;
using fp32::ForwardConfig;
using fp32::FusedConfig;
using fp32::Gradient;
using fp32::Instance;
using fp32::Multiply;

constexpr fp32::Kernels kernels_of(Multiply multiply) {
  if (multiply == Multiply::halves)
    return {fp32::halves_forward, fp32::halves_backward, fp32::halves_bias_gradient};
  return {fp32::fma_forward, fp32::fma_backward, fp32::fma_bias_gradient};
}

// The limits of the GPU for the code that these kernels are in.
const DeviceLimits& device_of(Multiply multiply, const core::Problem& p) {
  return device_limits(p.device.index, multiply == Multiply::halves ? Code::from80 : Code::sm75);
}

int dim_of(const core::Problem& p) {
  const std::int64_t wanted = std::max(p.qk_dim, p.v_dim);
  return *std::find_if(std::begin(fp32::kDims), std::end(fp32::kDims) - 1,
                       [&](int dim) { return wanted <= dim; });
}

// Rows on 16-byte boundaries; sizes that are no multiple of four numbers do not matter.
bool aligned(const core::View& view) {
  return reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 && view.batch_stride % 4 == 0 &&
         view.head_stride % 4 == 0 && view.row_stride % 4 == 0;
}

bool all_aligned(const core::Problem& p) {
  if (!aligned(p.q) || !aligned(p.k) || !aligned(p.v)) return false;
  if (p.direction == Direction::forward) return aligned(p.out);
  return aligned(p.grad_out) && aligned(p.grad_q) && aligned(p.grad_k) && aligned(p.grad_v);
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// The tiles of `rows` queries (or keys) of every head, in an order that ends with the short ones. Where tiles are unequal,
// as many heads advance together as fill the GPU twice: their keys and values then stay in its cache.
core::BasicTaskOrder<std::uint32_t> order_of(const core::Problem& p, const DeviceLimits& device,
                                             std::int64_t rows, bool keys) {
  const core::Tiling tiling{keys ? p.k_length : p.q_length, rows,
                            !p.blocks ? 0
                            : keys    ? p.blocks.block_k
                                      : p.blocks.block_q};
  const std::int64_t tiles = tiling.count();
  const core::Band band{
      p.left, p.right,
      p.packed || p.batch == 0 ? p.k_length - p.q_length : core::sequence(p, 0).band.diagonal};
  return {.sequences = static_cast<std::uint32_t>(p.batch),
          .heads = static_cast<std::uint32_t>(keys ? p.kv_heads : p.q_heads),
          .tiles = static_cast<std::uint32_t>(tiles),
          .order = keys ? core::tile_order(band.transposed(), p.k_length, p.q_length)
                        : core::tile_order(band, p.q_length, p.k_length),
          .together = static_cast<std::uint32_t>(
              ceil_div(4 * device.multiprocessors, std::max<std::int64_t>(tiles, 1)))};
}

std::int64_t delta_rows(const core::Problem& p) {
  return product(p.q_heads, p.packed ? p.q_tokens : product(p.batch, p.q_length));
}

// The passes that a backward call takes.
template <typename Visit>
void for_each_gradient(const core::Problem& p, bool featured, Visit&& visit) {
  if (fp32::together(dim_of(p), featured)) {
    if (p.has_grad_k || p.has_grad_v) visit(Gradient::keys_and_values);
  } else {
    if (p.has_grad_k) visit(Gradient::keys);
    if (p.has_grad_v) visit(Gradient::values);
  }
  if (p.has_grad_q) visit(Gradient::queries);
}

bool fits(const DeviceLimits& device, std::size_t bytes) {
  return bytes <= static_cast<std::size_t>(device.shared_memory);
}

// Queries from which a sequence gets large tiles. The instances sum in different orders, so neither batch nor heads may
// decide, although large tiles only pay where every multiprocessor gets one: they then take 0.87 to 0.93 of the time of small
// ones, and up to 1.65 of it where half of the multiprocessors stay idle (16 heads of 512 queries on an H200, November 2026).
constexpr std::int64_t kManyQueries = 2048;

// Large tiles for long sequences, where they fit. The lengths of packed sequences are on the device; they always get them.
ForwardConfig forward_config_of(Multiply multiply, const core::Problem& p, const DeviceLimits& device,
                                Instance& instance) {
  instance = flash2_fp32_featured(p) ? Instance::featured : Instance::large;
  const ForwardConfig c = fp32::forward_config(multiply, dim_of(p), instance);
  if (instance == Instance::featured) return c;
  const ForwardConfig small = fp32::forward_config(multiply, dim_of(p), Instance::plain);
  const bool few_queries = !p.packed && p.q_length < kManyQueries;
  const bool cut_by_blocks = p.blocks && p.blocks.block_q <= small.block_q();
  if (!few_queries && !cut_by_blocks && fits(device, c.shared_memory())) return c;
  instance = Instance::plain;
  return small;
}

// Whether one pass gives all gradients, adding to dQ by atomics.
bool fused(Multiply multiply, const core::Problem& p, const DeviceLimits& device) {
  return multiply == Multiply::halves && !p.deterministic && !flash2_fp32_featured(p) && p.has_grad_q &&
         p.has_grad_k && p.has_grad_v && fits(device, fp32::fused_config(dim_of(p)).shared_memory());
}

const char* name_of(Multiply multiply) {
  return multiply == Multiply::halves ? "three fp16 products for one" : "fp32 multiply-adds";
}

void run_bias_gradient(Multiply multiply, const core::Problem& p, const float* delta, void* stream) {
  const BiasGradientConfig c = fp32::bias_gradient_config(multiply, dim_of(p));
  const std::int64_t q_tiles = p.bias_rows == 1 ? 1 : ceil_div(p.q_length, c.block_q());
  const std::int64_t tiles = p.bias_batch * p.bias_heads * q_tiles * ceil_div(p.k_length, c.block_k);
  if (tiles == 0) return;
  fp32::BiasGradientArguments a{p, fp32::Constants::of(p, all_aligned(p)), delta};
  launch(fp32::kernel_for(kernels_of(multiply).bias_gradient(), c), "flash2 fp32 gradient of the bias", tiles,
         c.threads(), c.shared_memory(), stream, a);
}

}  // namespace

bool flash2_fp32_featured(const core::Problem& p) {
  return p.softcap != 0 || p.has_bias || p.alibi_slopes != nullptr || p.dropout || !all_aligned(p);
}

bool flash2_fp32_limits(Multiply multiply, const DeviceLimits& device, const core::Problem& p,
                        core::Reason reason) {
  const DeviceLimits& own = device_limits(p.device.index);
  if (!own.failure.empty()) return reason.give(own.failure);
  const int capability = multiply == Multiply::halves ? 80 : 75;
  if (own.capability < capability) {
    return reason.give("needs compute capability ", capability / 10, ".", capability % 10,
                       ", cuda:", p.device.index, " has ", own.capability / 10, ".", own.capability % 10);
  }
  if (!device.failure.empty()) return reason.give(device.failure);
  if (p.direction == Direction::backward) {  // delta has a kernel for all GPUs
    const DeviceLimits& any = device_limits(p.device.index, Code::any);
    if (!any.failure.empty()) return reason.give(any.failure);
  }
  if (std::max(p.q_length, p.k_length) >= core::kLongestWalk) return size_limits(p, 1, reason);
  if (p.alibi_slopes != nullptr && !p.packed && p.batch > 0 &&
      std::abs(core::sequence(p, 0).band.diagonal) >= core::kLongestWalk) {
    return reason.give("ALiBi's diagonal must be less than 2^29 away from the first query and key");
  }
  const bool featured = flash2_fp32_featured(p);
  std::size_t bytes = 0;
  std::int64_t blocks = 0;  // of the largest grid
  auto needs = [&](std::size_t shared_memory, std::int64_t grid) {
    bytes = std::max(bytes, shared_memory);
    blocks = std::max(blocks, grid);
  };
  if (p.direction == Direction::forward) {
    Instance instance;
    const ForwardConfig c = forward_config_of(multiply, p, device, instance);
    const core::Tiling tiling{p.q_length, c.block_q(), p.blocks ? p.blocks.block_q : 0};
    needs(c.shared_memory(), product(p.batch, p.q_heads, tiling.count()));
  } else {
    for_each_gradient(p, featured, [&](Gradient gradient) {
      const BackwardConfig c = fp32::backward_config(multiply, gradient, dim_of(p), featured);
      const bool keys = gradient != Gradient::queries;
      const core::Tiling tiling{keys ? p.k_length : p.q_length, c.rows(),
                                !p.blocks ? 0
                                : keys    ? p.blocks.block_k
                                          : p.blocks.block_q};
      needs(c.shared_memory(), product(p.batch, keys ? p.kv_heads : p.q_heads, tiling.count()));
    });
    needs(0, ceil_div(delta_rows(p), fp32::kDeltaThreads / 32));
    if (p.has_grad_bias) {
      const BiasGradientConfig c = fp32::bias_gradient_config(multiply, dim_of(p));
      needs(c.shared_memory(),
            product(p.bias_batch, p.bias_heads, p.bias_rows == 1 ? 1 : ceil_div(p.q_length, c.block_q()),
                    ceil_div(p.k_length, c.block_k)));
    }
  }
  if (bytes > static_cast<std::size_t>(device.shared_memory)) {
    return reason.give("needs ", bytes, " bytes of shared memory, cuda:", p.device.index, " has ",
                       device.shared_memory);
  }
  return grid_limit(blocks, reason);
}

template <Multiply M>
bool Flash2Fp32<M>::limits(const core::Problem& p, core::Reason reason) {
  return flash2_fp32_limits(M, device_of(M, p), p, reason);
}

template <Multiply M>
registry::Configuration Flash2Fp32<M>::forward_configuration(const core::Problem& p, int /*workers*/) {
  Instance instance;
  const ForwardConfig c = forward_config_of(M, p, device_of(M, p), instance);
  return {.block_q = c.block_q(),
          .block_k = c.block_k,
          .shared_memory_bytes = c.shared_memory(),
          .fast_memory_bytes = static_cast<double>(c.shared_memory())};
}

template <Multiply M>
std::string Flash2Fp32<M>::forward_details(const core::Problem& p, const registry::Configuration&) {
  Instance instance;
  const ForwardConfig c = forward_config_of(M, p, device_of(M, p), instance);
  return core::concat("instance: ", name_of(M), ", head_dim up to ", c.dim,
                      c.featured ? ", featured" : ", plain", "\n", c.warps, " warps of ", 16 * c.m_tiles,
                      " rows, keys from the last to the first");
}

template <Multiply M>
void Flash2Fp32<M>::forward(const core::Problem& p, const registry::Configuration&,
                            const registry::Resources& resources) {
  const DeviceLimits& device = device_of(M, p);
  Instance instance;
  const ForwardConfig c = forward_config_of(M, p, device, instance);
  fp32::ForwardArguments a{p, fp32::Constants::of(p, all_aligned(p)),
                           order_of(p, device, c.block_q(), false)};
  if (a.order.count() == 0) return;
  const DeviceScope scope(p.device.index);
  launch(fp32::kernel_for(kernels_of(M).forward(), c), "flash2 fp32 forward", a.order.count(), c.threads(),
         c.shared_memory(), resources.stream, a);
}

template <Multiply M>
registry::Configuration Flash2Fp32<M>::backward_configuration(const core::Problem& p, int /*workers*/) {
  const bool featured = flash2_fp32_featured(p);
  const std::size_t workspace = static_cast<std::size_t>(delta_rows(p)) * sizeof(float);
  if (fused(M, p, device_of(M, p))) {
    const FusedConfig c = fp32::fused_config(dim_of(p));
    return {.block_q = FusedConfig::kBlock,
            .block_k = c.rows(),
            .shared_memory_bytes = c.shared_memory(),
            .workspace_bytes = workspace,
            .fast_memory_bytes = static_cast<double>(c.shared_memory())};
  }
  const Gradient first = fp32::together(dim_of(p), featured) ? Gradient::keys_and_values : Gradient::keys;
  const BackwardConfig c = fp32::backward_config(M, first, dim_of(p), featured);
  return {.block_q = c.block,
          .block_k = c.rows(),
          .shared_memory_bytes = c.shared_memory(),
          .workspace_bytes = workspace,
          .fast_memory_bytes = static_cast<double>(c.shared_memory())};
}

template <Multiply M>
std::string Flash2Fp32<M>::backward_details(const core::Problem& p, const registry::Configuration&) {
  const bool featured = flash2_fp32_featured(p);
  const int dim = dim_of(p);
  std::string text =
      core::concat("instance: ", name_of(M), ", head_dim up to ", dim, featured ? ", featured" : ", plain");
  if (fused(M, p, device_of(M, p))) {
    const FusedConfig c = fp32::fused_config(dim);
    return text + core::concat("; all gradients in one pass, dQ by atomics: ", c.warps(), " warps, ",
                               FusedConfig::kBlock, " queries per step, ", c.shared_memory(),
                               " bytes of shared memory");
  }
  text += "; deterministic";
  for_each_gradient(p, featured, [&](Gradient gradient) {
    constexpr const char* kNames[] = {"keys and values", "keys", "values", "queries"};
    const BackwardConfig c = fp32::backward_config(M, gradient, dim, featured);
    text += core::concat("\ngradient of ", kNames[static_cast<int>(gradient)], ": ", c.warps,
                         " warps of 16 rows, ", c.block, " rows per step, ", c.shared_memory(),
                         " bytes of shared memory");
  });
  return text;
}

template <Multiply M>
void Flash2Fp32<M>::backward(const core::Problem& p, const registry::Configuration&,
                             const registry::Resources& resources) {
  const bool featured = flash2_fp32_featured(p);
  const DeviceLimits& device = device_of(M, p);
  const DeviceScope scope(p.device.index);
  void* const stream = resources.stream;
  auto* delta = reinterpret_cast<float*>(resources.workspace);
  const bool at_once = fused(M, p, device);
  if (const std::int64_t rows = delta_rows(p); rows > 0) {
    fp32::DeltaArguments a{p, delta, at_once};
    launch(fp32::delta_kernel(), "flash2 fp32 delta", ceil_div(rows, fp32::kDeltaThreads / 32),
           fp32::kDeltaThreads, 0, stream, a);
  }
  if (at_once) {
    const FusedConfig c = fp32::fused_config(dim_of(p));
    fp32::BackwardArguments a{p, fp32::Constants::of(p, true), order_of(p, device, c.rows(), true), delta};
    if (a.order.count() == 0) return;
    launch(fp32::kernel_for(fp32::halves_fused_backward(), c), "flash2 fp32 fused backward", a.order.count(),
           c.threads(), c.shared_memory(), stream, a);
    return;
  }
  for_each_gradient(p, featured, [&](Gradient gradient) {
    const BackwardConfig c = fp32::backward_config(M, gradient, dim_of(p), featured);
    fp32::BackwardArguments a{p, fp32::Constants::of(p, all_aligned(p)),
                              order_of(p, device, c.rows(), gradient != Gradient::queries), delta};
    if (a.order.count() == 0) return;
    launch(fp32::kernel_for(kernels_of(M).backward(), c), "flash2 fp32 backward", a.order.count(),
           c.threads(), c.shared_memory(), stream, a);
  });
  if (p.has_grad_bias) run_bias_gradient(M, p, delta, resources.stream);
}

template struct Flash2Fp32<Multiply::halves>;
template struct Flash2Fp32<Multiply::fma>;

}  // namespace tessera::cuda
