#include "cuda/fp32/launch.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "core/base/text.h"
#include "core/task_order.h"
#include "core/visibility.h"
#include "cuda/common/host/launch.h"
#include "cuda/common/host/limits.h"
#include "cuda/common/step_cursor.h"

namespace tessera::cuda::fp32 {
namespace {

using Order = core::BasicTaskOrder<std::uint32_t>;

constexpr Kernels kernels_of(Multiply multiply) {
  if (multiply == Multiply::halves) return {halves_forward, halves_backward, halves_bias_gradient};
  return {fma_forward, fma_backward, fma_bias_gradient};
}

constexpr const char* name_of(Multiply multiply) {
  return multiply == Multiply::halves ? "three fp16 products for one" : "fp32 multiply-adds";
}

constexpr Code code_of(Multiply multiply) { return multiply == Multiply::halves ? Code::from80 : Code::sm75; }

int head_dim_of(const core::Problem& p) {
  const std::int64_t wanted = std::max(p.qk_dim, p.v_dim);
  return *std::find_if(std::begin(kHeadDims), std::end(kHeadDims) - 1,
                       [&](int dim) { return wanted <= dim; });
}

// Whether all rows begin on 16-byte boundaries. Their lengths need not be multiples of 16 bytes.
bool all_aligned(const core::Problem& p) {
  auto rows = [](const core::View& view) { return aligned(view, DType::fp32); };
  if (!rows(p.q) || !rows(p.k) || !rows(p.v)) return false;
  if (p.direction == Direction::forward) return rows(p.out);
  return rows(p.grad_out) && rows(p.grad_q) && rows(p.grad_k) && rows(p.grad_v);
}

// The variant that a problem needs.
Variant variant_of(const core::Problem& p, bool rows_aligned) {
  const bool featured =
      p.softcap != 0 || p.has_bias || p.alibi_slopes != nullptr || p.dropout || !rows_aligned;
  return featured ? Variant::featured : Variant::plain;
}

// How the queries or keys of a sequence are cut into tiles.
core::Tiling tiling_of(const core::Problem& p, std::int64_t rows, bool keys) {
  return {keys ? p.k_length : p.q_length, rows, !p.blocks ? 0 : keys ? p.blocks.block_k : p.blocks.block_q};
}

// Thread blocks for tiles of `rows` queries or keys, counted without overflow.
std::int64_t grid_of(const core::Problem& p, std::int64_t rows, bool keys) {
  return product(p.batch, keys ? p.kv_heads : p.q_heads, tiling_of(p, rows, keys).count());
}

// The tiles of `rows` queries (or keys) of every head, in an order that ends with the short ones.
// Where tiles are unequal, as many heads advance together as fill the GPU twice: their keys and
// values then stay in its cache.
Order order_of(const core::Problem& p, const DeviceLimits& device, std::int64_t rows, bool keys) {
  const std::int64_t tiles = tiling_of(p, rows, keys).count();
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

bool fits(const DeviceLimits& device, std::size_t bytes) {
  return bytes <= static_cast<std::size_t>(device.shared_memory);
}

// The limits of both directions, of the GPU and of the sizes.
bool common_limits(const core::Problem& p, Multiply multiply, core::Reason reason) {
  const int capability = multiply == Multiply::halves ? 80 : 75;
  if (gpu_limit(p, {.least = capability}, code_of(multiply), reason) || length_limit(p, reason)) return true;
  return p.alibi_slopes != nullptr && !p.packed && p.batch > 0 &&
         std::abs(core::sequence(p, 0).band.diagonal) >= kLongestWalk &&
         reason.give("requires ALiBi's diagonal to be less than 2^29 away from the first query and key");
}

// ---- forward ------------------------------------------------------------------------------------

struct ForwardDecision {
  ForwardConfig config{};
  void (*kernel)(ForwardArguments) = nullptr;
  bool aligned = true;
  Order order{};
};

// From this many queries on a sequence gets large tiles. The instances sum in different orders, so
// neither batch nor heads may decide, although large tiles only pay off where every multiprocessor
// gets one: they then take 0.87 to 0.93 of the time of small ones, and up to 1.65 of it where half
// of the multiprocessors stay idle (16 heads of 512 queries on an H200, November 2026).
constexpr std::int64_t kManyQueries = 2048;

// Large tiles for long sequences, where they fit. The lengths of packed sequences are on the
// device; they always get them.
ForwardConfig config_of(Multiply multiply, const core::Problem& p, const DeviceLimits& device,
                        bool rows_aligned) {
  if (variant_of(p, rows_aligned) == Variant::featured) {
    return forward_config(multiply, head_dim_of(p), Variant::featured);
  }
  const ForwardConfig large = forward_config(multiply, head_dim_of(p), Variant::plain, true);
  const ForwardConfig small = forward_config(multiply, head_dim_of(p), Variant::plain);
  const bool few_queries = !p.packed && p.q_length < kManyQueries;
  const bool cut_by_blocks = p.blocks && p.blocks.block_q <= small.block_q();
  return !few_queries && !cut_by_blocks && fits(device, large.shared_memory()) ? large : small;
}

// ---- backward -----------------------------------------------------------------------------------

// One pass over the tiles of keys, or of queries.
struct Pass {
  Gradient gradient{};
  PassConfig config{};
  void (*kernel)(BackwardArguments) = nullptr;
  Order order{};

  [[nodiscard]] bool of_keys() const { return gradient != Gradient::queries; }
};

struct BackwardDecision {
  Multiply multiply{};
  bool aligned = true;
  Variant variant = Variant::plain;
  bool fused = false;  // all gradients in one pass over the keys, adding to dQ by atomics
  int head_dim = 0;
  Order fused_order{};
  int count = 0;
  std::array<Pass, 3> passes{};  // unless fused
  std::int64_t delta_rows = 0;
  std::int64_t bias_tiles = 0;
};

std::int64_t delta_rows_of(const core::Problem& p) {
  return product(p.q_heads, p.packed ? p.q_tokens : product(p.batch, p.q_length));
}

std::int64_t delta_grid(std::int64_t rows) { return ceil_div(rows, kDeltaThreads / 32); }

std::int64_t bias_tiles_of(const core::Problem& p, const BiasGradientConfig& c) {
  return product(p.bias_batch, p.bias_heads, p.bias_rows == 1 ? 1 : ceil_div(p.q_length, c.block_q()),
                 ceil_div(p.k_length, c.block_k));
}

// The passes of a call that is not fused.
void add_passes(BackwardDecision& d, const core::Problem& p, const DeviceLimits& device) {
  auto add = [&](Gradient gradient) {
    Pass pass{.gradient = gradient, .config = pass_config(d.multiply, gradient, d.head_dim, d.variant)};
    pass.kernel = kernel_for(kernels_of(d.multiply).backward(), pass.config);
    pass.order = order_of(p, device, pass.config.rows(), pass.of_keys());
    d.passes[static_cast<std::size_t>(d.count++)] = pass;
  };
  if (together(d.head_dim, d.variant)) {
    if (p.has_grad_k || p.has_grad_v) add(Gradient::keys_and_values);
  } else {
    if (p.has_grad_k) add(Gradient::keys);
    if (p.has_grad_v) add(Gradient::values);
  }
  if (p.has_grad_q) add(Gradient::queries);
}

}  // namespace

template <Multiply M>
std::optional<core::Choice> choose_forward(const core::Problem& p, int /*workers*/, core::Reason reason) {
  if (common_limits(p, M, reason)) return std::nullopt;
  const DeviceLimits& device = device_limits(p.device.index, code_of(M));
  ForwardDecision d{.aligned = all_aligned(p)};
  d.config = config_of(M, p, device, d.aligned);
  d.kernel = kernel_for(kernels_of(M).forward(), d.config);
  const std::size_t bytes = d.config.shared_memory();
  if (shared_memory_limit(p, code_of(M), static_cast<std::int64_t>(bytes), reason) ||
      grid_limit(grid_of(p, d.config.block_q(), false), reason)) {
    return std::nullopt;
  }
  d.order = order_of(p, device, d.config.block_q(), false);
  return core::Choice{.block_q = d.config.block_q(),
                      .block_k = d.config.block_k,
                      .shared_memory_bytes = bytes,
                      .traffic_cache_bytes = static_cast<double>(bytes),
                      .decision = d};
}

std::string forward_details(const core::Problem& /*p*/, const core::Choice& choice) {
  const auto d = choice.decision.as<ForwardDecision>();
  const ForwardConfig& c = d.config;
  return core::concat("instance: ", name_of(c.multiply), ", head_dim up to ", c.head_dim,
                      c.featured() ? ", featured" : ", plain", "\n", c.warps, " warps of ", 16 * c.m_tiles,
                      " rows, keys from the last to the first");
}

void run_forward(const core::Problem& p, const core::Choice& choice, const core::Resources& resources) {
  const auto d = choice.decision.as<ForwardDecision>();
  if (d.order.count() == 0) return;
  const DeviceScope scope(p.device.index);
  launch(d.kernel, "flash2 fp32 forward", d.order.count(), d.config.threads(), choice.shared_memory_bytes,
         resources.stream, ForwardArguments{p, Constants::of(p, d.aligned), d.order});
}

template <Multiply M>
std::optional<core::Choice> choose_backward(const core::Problem& p, int /*workers*/, core::Reason reason) {
  if (common_limits(p, M, reason)) return std::nullopt;
  if (gpu_limit(p, {.least = 75}, Code::any, reason)) return std::nullopt;  // delta's code
  const DeviceLimits& device = device_limits(p.device.index, code_of(M));
  BackwardDecision d{.multiply = M, .aligned = all_aligned(p), .head_dim = head_dim_of(p)};
  d.variant = variant_of(p, d.aligned);
  d.delta_rows = delta_rows_of(p);
  const FusedConfig fused = fused_config(d.head_dim);
  d.fused = M == Multiply::halves && !p.deterministic && d.variant == Variant::plain && p.has_grad_q &&
            p.has_grad_k && p.has_grad_v && fits(device, fused.shared_memory());
  std::size_t bytes = 0;
  std::int64_t blocks = delta_grid(d.delta_rows);  // of the largest grid
  auto needs = [&](std::size_t shared_memory, std::int64_t grid) {
    bytes = std::max(bytes, shared_memory);
    blocks = std::max(blocks, grid);
  };
  if (d.fused) {
    d.fused_order = order_of(p, device, fused.rows(), true);
    needs(fused.shared_memory(), grid_of(p, fused.rows(), true));
  } else {
    add_passes(d, p, device);
    for (int i = 0; i < d.count; ++i) {
      const Pass& pass = d.passes[static_cast<std::size_t>(i)];
      needs(pass.config.shared_memory(), grid_of(p, pass.config.rows(), pass.of_keys()));
    }
    if (p.has_grad_bias) {
      const BiasGradientConfig c = bias_gradient_config(M, d.head_dim);
      d.bias_tiles = bias_tiles_of(p, c);
      needs(c.shared_memory(), d.bias_tiles);
    }
  }
  if (shared_memory_limit(p, code_of(M), static_cast<std::int64_t>(bytes), reason) ||
      grid_limit(blocks, reason)) {
    return std::nullopt;
  }
  // A plan shows the pass over the keys, whether or not it is requested.
  const PassConfig keys = pass_config(
      M, together(d.head_dim, d.variant) ? Gradient::keys_and_values : Gradient::keys, d.head_dim, d.variant);
  const std::size_t shown = d.fused ? fused.shared_memory() : keys.shared_memory();
  return core::Choice{.block_q = d.fused ? FusedConfig::kBlock : keys.block,
                      .block_k = d.fused ? fused.rows() : keys.rows(),
                      .shared_memory_bytes = shown,
                      .workspace_bytes = static_cast<std::size_t>(d.delta_rows) * sizeof(float),
                      .traffic_cache_bytes = static_cast<double>(shown),
                      .decision = d};
}

std::string backward_details(const core::Problem& /*p*/, const core::Choice& choice) {
  const auto d = choice.decision.as<BackwardDecision>();
  std::string text = core::concat("instance: ", name_of(d.multiply), ", head_dim up to ", d.head_dim,
                                  d.variant == Variant::featured ? ", featured" : ", plain");
  if (d.fused) {
    const FusedConfig c = fused_config(d.head_dim);
    return text + core::concat("; all gradients in one pass, dQ by atomics: ", c.warps(), " warps, ",
                               FusedConfig::kBlock, " queries per step, ", c.shared_memory(),
                               " bytes of shared memory");
  }
  text += "; deterministic";
  for (int i = 0; i < d.count; ++i) {
    constexpr const char* kNames[] = {"keys and values", "keys", "values", "queries"};
    const Pass& pass = d.passes[static_cast<std::size_t>(i)];
    text += core::concat("\ngradient of ", kNames[static_cast<int>(pass.gradient)], ": ", pass.config.warps,
                         " warps of 16 rows, ", pass.config.block, " rows per step, ",
                         pass.config.shared_memory(), " bytes of shared memory");
  }
  return text;
}

void run_backward(const core::Problem& p, const core::Choice& choice, const core::Resources& resources) {
  const auto d = choice.decision.as<BackwardDecision>();
  const Constants constants = Constants::of(p, d.aligned);
  void* const stream = resources.stream;
  auto* delta = reinterpret_cast<float*>(resources.workspace);
  const DeviceScope scope(p.device.index);
  if (d.delta_rows > 0) {
    launch(delta_kernel(), "flash2 fp32 delta", delta_grid(d.delta_rows), kDeltaThreads, 0, stream,
           DeltaArguments{p, delta, d.fused});
  }
  if (d.fused) {
    const FusedConfig c = fused_config(d.head_dim);
    launch(kernel_for(halves_fused_backward(), c), "flash2 fp32 fused backward", d.fused_order.count(),
           c.threads(), c.shared_memory(), stream, BackwardArguments{p, constants, d.fused_order, delta});
    return;
  }
  for (int i = 0; i < d.count; ++i) {
    const Pass& pass = d.passes[static_cast<std::size_t>(i)];
    launch(pass.kernel, "flash2 fp32 backward", pass.order.count(), pass.config.threads(),
           pass.config.shared_memory(), stream, BackwardArguments{p, constants, pass.order, delta});
  }
  if (d.bias_tiles > 0) {
    const BiasGradientConfig c = bias_gradient_config(d.multiply, d.head_dim);
    launch(kernel_for(kernels_of(d.multiply).bias_gradient(), c), "flash2 fp32 gradient of the bias",
           d.bias_tiles, c.threads(), c.shared_memory(), stream, BiasGradientArguments{p, constants, delta});
  }
}

template std::optional<core::Choice> choose_forward<Multiply::halves>(const core::Problem&, int,
                                                                      core::Reason);
template std::optional<core::Choice> choose_forward<Multiply::fma>(const core::Problem&, int, core::Reason);
template std::optional<core::Choice> choose_backward<Multiply::halves>(const core::Problem&, int,
                                                                       core::Reason);
template std::optional<core::Choice> choose_backward<Multiply::fma>(const core::Problem&, int, core::Reason);

}  // namespace tessera::cuda::fp32
