#include "cuda/mma/forward/launch.h"

#include <algorithm>

#include "core/base/environment.h"
#include "core/base/text.h"
#include "core/task_order.h"
#include "core/visibility.h"
#include "cuda/common/host/launch.h"
#include "cuda/common/host/limits.h"
#include "cuda/common/step_cursor.h"

namespace tessera::cuda::mma::forward {
namespace {

constexpr int kPlainBlock = 64;  // the plain kernels' steps divide it

// How one problem is run.
struct Decision {
  InstanceChoice chosen{};
  int column_shift = 0;
  core::TaskOrder order{};
  bool speculate = true;
};

// By how many columns the steps are shifted, so that no call of the random generator straddles two
// of them.
int column_shift_of(const core::Problem& p) {
  constexpr std::int64_t kGroup = core::kDropoutGroup;
  return variant_of(p) == Variant::dropout ? static_cast<int>((p.origin.column % kGroup + kGroup) % kGroup)
                                           : 0;
}

bool bias_can_be_staged(const core::Problem& p) {
  return p.has_bias && p.bias_dtype == p.dtype && column_shift_of(p) == 0 &&
         aligned(p.bias, p.k_length, p.dtype);
}

// With a tile of the bias in shared memory when it fits.
InstanceChoice with_bias(const Instance& instance, const core::Problem& p, const DeviceLimits& device) {
  const Config& c = instance.config;
  const int bytes = c.tile_bytes() + c.bias_bytes();
  const bool staged = bias_can_be_staged(p) && bytes + kStaticBytes <= device.shared_memory;
  return {&instance, staged ? bytes : c.tile_bytes(), staged && c.bias_bytes() > 0};
}

// Pairs of warps start slowly: with few keys per query the other instance is faster (measured on an
// H200: 256 keys, 199 against 184 TFLOP/s; 512 keys, 239 against 272). The lengths of a packed
// batch must not decide: a row would depend on other sequences.
bool worth_pairs(const core::Problem& p) {
  constexpr double kFewestKeys = 384;
  return p.packed || core::visible_pairs(core::sequence(p, 0).band, p.q_length, p.k_length) >=
                         kFewestKeys * static_cast<double>(p.q_length);
}

// Tile by tile over the heads that advance together, the tiles that see most keys first. Also where
// all tiles see the same: thread blocks that run at the same time then read the keys of many heads,
// and not all the same lines.
core::TileOrder tile_order_of(const core::Problem& p) {
  const core::Band band =
      p.packed ? core::Band{p.left, p.right, p.k_length - p.q_length} : core::sequence(p, 0).band;
  const core::TileOrder order = core::tile_order(band, p.q_length, p.k_length);
  return order == core::TileOrder::plain ? core::TileOrder::descending : order;
}

// The keys and values of the heads that advance together take at most 2/5 of L2 (24 MB on an H200).
core::TaskOrder order_of(const Config& c, const core::Problem& p, const DeviceLimits& device) {
  const std::int64_t tiles = core::Tiling{p.q_length, c.block_q(), p.blocks.block_q}.count();
  const std::int64_t heads = p.batch * p.q_heads;
  const std::int64_t head_bytes = heads == 0 ? 0
                                             : p.k_length * (p.qk_dim + p.v_dim) *
                                                   static_cast<std::int64_t>(size_of(p.dtype)) / p.group();
  return {
      .sequences = p.batch,
      .heads = p.q_heads,
      .tiles = tiles,
      .order = tile_order_of(p),
      .together = heads_together(heads, tiles, head_bytes, device.l2_bytes * 2 / 5, device.multiprocessors)};
}

std::optional<core::Choice> choose(std::span<const Instance> instances, int capability, Code code,
                                   const core::Problem& p, core::Reason reason) {
  if (gpu_limit(p, {.least = capability}, code, reason)) return std::nullopt;
  const DeviceLimits& device = device_limits(p.device.index, code);
  const std::optional<InstanceChoice> chosen = choose_instance(instances, device, p, reason);
  if (!chosen) return std::nullopt;
  const Config& c = chosen->instance->config;
  if (size_limits(p, c.block_q(), reason)) return std::nullopt;
  return core::Choice{.block_q = c.block_q(),
                      .block_k = c.block_k,
                      .shared_memory_bytes = static_cast<std::size_t>(chosen->shared_memory),
                      .traffic_cache_bytes = static_cast<double>(chosen->shared_memory),
                      .decision = Decision{.chosen = *chosen,
                                           .column_shift = column_shift_of(p),
                                           .order = order_of(c, p, device),
                                           .speculate = !core::environment().lazy_maximum}};
}

}  // namespace

Variant variant_of(const core::Problem& p) {
  if (p.dropout && p.dropout_threshold > 0) return Variant::dropout;
  const bool all_aligned = aligned(p.q, p.qk_dim, p.dtype) && aligned(p.k, p.qk_dim, p.dtype) &&
                           aligned(p.v, p.v_dim, p.dtype) && aligned(p.out, p.v_dim, p.dtype);
  // The plain kernels copy whole steps of keys by 32-bit strides.
  const bool whole_steps = (!p.blocks || p.blocks.block_k % kPlainBlock == 0) &&
                           std::max(p.k.row_stride, p.v.row_stride) < (std::int64_t{1} << 26);
  const bool plain = p.scale > 0 && p.softcap == 0 && !p.has_bias && p.alibi_slopes == nullptr && !p.dropout;
  return plain && whole_steps && all_aligned ? Variant::plain : Variant::featured;
}

std::optional<InstanceChoice> choose_instance(std::span<const Instance> instances, const DeviceLimits& device,
                                              const core::Problem& p, core::Reason reason) {
  const Variant variant = variant_of(p);
  // First with as many thread blocks per multiprocessor as the instance is meant for, then with
  // one.
  for (const bool side_by_side : {true, false}) {
    for (const Instance& instance : instances) {
      const Config& c = instance.config;
      if (p.has_bias && !c.bias) continue;
      const InstanceChoice choice = with_bias(instance, p, device);
      const int blocks = side_by_side ? c.thread_blocks : 1;
      const int bytes = (side_by_side ? choice.shared_memory : c.tile_bytes()) + kStaticBytes;
      const bool fits = bytes <= device.shared_memory &&
                        blocks * (bytes + kReservedPerBlock) <= device.shared_memory_multiprocessor;
      if (c.variant == variant && std::max(p.qk_dim, p.v_dim) <= c.head_dim && fits &&
          (!c.pairs || worth_pairs(p))) {
        return choice;
      }
    }
  }
  return reason.decline("has no instance for head_dim ", std::max(p.qk_dim, p.v_dim), " that fits into ",
                        device.shared_memory, " bytes of shared memory");
}

std::optional<core::Choice> choose_from80(const core::Problem& p, int /*workers*/, core::Reason reason) {
  return choose(p.dtype == DType::bf16 ? flash2_forward_bf16() : flash2_forward_fp16(), 80, Code::from80, p,
                reason);
}

std::optional<core::Choice> choose_sm75(const core::Problem& p, int /*workers*/, core::Reason reason) {
  return choose(flash2_sm75_forward_fp16(), 75, Code::sm75, p, reason);
}

std::string details(const core::Problem& /*p*/, const core::Choice& choice) {
  constexpr const char* kVariants[] = {"plain", "with softcap, bias, ALiBi, any scale and alignment",
                                       "with features and dropout"};
  const auto d = choice.decision.as<Decision>();
  const Config& c = d.chosen.instance->config;
  return core::concat("instance: head_dim up to ", c.head_dim, ", ", kVariants[static_cast<int>(c.variant)],
                      "\n", c.warps, " warps of ", 16 * c.m_tiles, " rows, scores ", c.chunk,
                      " columns at a time, ", c.stages, c.stages == 1 ? " stage" : " stages", ", ",
                      c.thread_blocks, " thread blocks per SM\n", "keys from the last to the first, ",
                      d.order.together, " heads together");
}

void run(const core::Problem& p, const core::Choice& choice, const core::Resources& resources) {
  const auto d = choice.decision.as<Decision>();
  const Instance& instance = *d.chosen.instance;
  const auto row_bytes = [&](const core::View& view) {
    return static_cast<int>(view.row_stride * static_cast<std::int64_t>(size_of(p.dtype)));
  };
  const Arguments a{
      .p = p,
      .order = GridOrder(d.order),
      .diagonals = diagonal_rule(p),
      .features = ScoreFeatures::of(p),
      .origin_row = static_cast<std::uint32_t>(p.origin.row),
      .origin_group = static_cast<std::uint32_t>((p.origin.column - d.column_shift) / core::kDropoutGroup),
      .group = Divider(static_cast<std::uint32_t>(p.group())),
      .k_row_bytes = row_bytes(p.k),
      .v_row_bytes = row_bytes(p.v),
      .column_shift = d.column_shift,
      .q_aligned = aligned(p.q, p.qk_dim, p.dtype),
      .k_aligned = aligned(p.k, p.qk_dim, p.dtype),
      .v_aligned = aligned(p.v, p.v_dim, p.dtype),
      .out_aligned = aligned(p.out, p.v_dim, p.dtype),
      .bias_staged = d.chosen.bias_staged,
      .speculate = d.speculate};
  const DeviceScope scope(p.device.index);
  launch(instance.kernel, "flash2 forward", d.order.sequences * d.order.heads * d.order.tiles,
         instance.config.threads(), static_cast<std::size_t>(d.chosen.shared_memory), resources.stream, a);
}

}  // namespace tessera::cuda::mma::forward
