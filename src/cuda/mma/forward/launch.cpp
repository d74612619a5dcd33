#include "cuda/mma/forward/launch.h"

#include <algorithm>

#include "core/base/environment.h"
#include "core/base/text.h"
#include "core/task_order.h"
#include "core/visibility.h"
#include "cuda/common/step_cursor.h"

namespace tessera::cuda {
namespace {

constexpr int kPlainBlock = 64;          // the plain kernels' steps divide it
constexpr int kReservedPerBlock = 1024;  // shared memory that the system takes for each thread block

// Whether every row begins on a 16-byte boundary and is whole 16-byte chunks.
bool aligned(const core::View& view, std::int64_t columns) {
  constexpr std::int64_t kNumbers = 8;
  return reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 && view.batch_stride % kNumbers == 0 &&
         view.head_stride % kNumbers == 0 && view.row_stride % kNumbers == 0 && columns % kNumbers == 0;
}

// Columns by which the steps are shifted so that a call of the random generator never straddles two of them.
int column_shift(const core::Problem& p) {
  constexpr std::int64_t kGroup = core::kDropoutGroup;
  return forward_variant(p) == Variant::dropout
             ? static_cast<int>((p.origin.column % kGroup + kGroup) % kGroup)
             : 0;
}

bool bias_can_be_staged(const core::Problem& p) {
  return p.has_bias && p.bias_dtype == p.dtype && column_shift(p) == 0 && aligned(p.bias, p.k_length);
}

// With the bias when it fits.
int shared_memory(const mma::forward::Config& c, const core::Problem& p, const DeviceLimits& device) {
  const int with_bias = c.tile_bytes() + c.bias_bytes();
  return bias_can_be_staged(p) && with_bias + mma::forward::kStaticBytes <= device.shared_memory
             ? with_bias
             : c.tile_bytes();
}

// The instances for one kind of GPU, and the code that they are in.
struct Path {
  std::span<const mma::forward::Instance> instances;
  int capability;
  Code code;

  const DeviceLimits& device(const core::Problem& p) const { return device_limits(p.device.index, code); }
};

Path newest(const core::Problem& p) {
  return {p.dtype == DType::bf16 ? flash2_forward_bf16() : flash2_forward_fp16(), 80, Code::from80};
}

Path sm75() { return {flash2_sm75_forward_fp16(), 75, Code::sm75}; }

// Pairs of warps start slowly: with few keys per query the other kernel is faster (measured on an H200: 256 keys, 199
// against 184 TFLOP/s; 512 keys, 239 against 272). The sequences of a packed batch must not decide about each other.
bool worth_pairs(const core::Problem& p) {
  constexpr double kFewestKeys = 384;
  return p.packed || core::visible_pairs(core::sequence(p, 0).band, p.q_length, p.k_length) >=
                         kFewestKeys * static_cast<double>(p.q_length);
}

// Heads side by side: at least two waves of tiles, and as many as keep their keys and values in 2/5 of L2 (24 MB on an H200).
std::int64_t heads_together(const core::Problem& p, const DeviceLimits& device, std::int64_t tiles) {
  const std::int64_t heads = p.batch * p.q_heads;
  if (heads == 0 || tiles == 0) return 0;
  const std::int64_t bytes = std::max<std::int64_t>(p.k_length * (p.qk_dim + p.v_dim) * 2 / p.group(), 1);
  const std::int64_t wave = (2 * device.multiprocessors + tiles - 1) / tiles;
  const auto cached = static_cast<std::int64_t>(device.l2_bytes * 2 / 5) / bytes;
  const std::int64_t together = std::clamp(std::max(wave, cached), std::int64_t{1}, heads);
  const std::int64_t groups = (heads + together - 1) / together;
  return (heads + groups - 1) / groups;  // of equal size
}

// Tile by tile over the heads that stand together, those that see most first. Also where all see the same: thread blocks
// that run side by side then read the keys of many heads, not all the same lines.
core::TileOrder order_of(const core::Problem& p) {
  const core::Band band =
      p.packed ? core::Band{p.left, p.right, p.k_length - p.q_length} : core::sequence(p, 0).band;
  const core::TileOrder order = core::tile_order(band, p.q_length, p.k_length);
  return order == core::TileOrder::plain ? core::TileOrder::descending : order;
}

const mma::forward::Instance* choose(const Path& path, const core::Problem& p) {
  return choose_forward(path.instances, path.device(p), p);
}

registry::Configuration configuration_of(const Path& path, const core::Problem& p) {
  const mma::forward::Instance* instance = choose(path, p);
  if (instance == nullptr) return {};
  const int bytes = shared_memory(instance->config, p, path.device(p));
  return {.block_q = instance->config.block_q(),
          .block_k = instance->config.block_k,
          .shared_memory_bytes = static_cast<std::size_t>(bytes),
          .fast_memory_bytes = static_cast<double>(bytes)};
}

std::string details_of(const Path& path, const core::Problem& p) {
  const mma::forward::Instance* instance = choose(path, p);
  if (instance == nullptr) return {};
  const mma::forward::Config& c = instance->config;
  constexpr const char* kVariants[] = {"plain", "with softcap, bias, ALiBi, any scale and alignment",
                                       "with features and dropout"};
  return core::concat("instance: head_dim up to ", c.head_dim, ", ", kVariants[static_cast<int>(c.variant)],
                      "\n", c.warps, " warps of ", 16 * c.m_tiles, " rows, scores ", c.chunk,
                      " columns at a time, ", c.stages, c.stages == 1 ? " stage" : " stages", ", ",
                      c.blocks_per_sm, " thread blocks per SM\n", "keys from the last to the first, ",
                      heads_together(p, path.device(p), (p.q_length + c.block_q() - 1) / c.block_q()),
                      " heads together");
}

void run(const Path& path, const core::Problem& p, void* stream) {
  const mma::forward::Instance* instance = choose(path, p);
  const DeviceLimits& device = path.device(p);
  const mma::forward::Config& c = instance->config;
  const core::Tiling tiling{p.q_length, c.block_q(), p.blocks.block_q};
  mma::forward::Arguments a{
      .p = p,
      .order = core::GridOrder({.sequences = p.batch,
                                .heads = p.q_heads,
                                .tiles = tiling.count(),
                                .order = order_of(p),
                                .together = heads_together(p, device, tiling.count())}),
      .diagonals = core::diagonal_rule(p),
      .features = ScoreFeatures::of(p),
      .origin_row = static_cast<std::uint32_t>(p.origin.row),
      .origin_group = static_cast<std::uint32_t>((p.origin.column - column_shift(p)) / core::kDropoutGroup),
      .group = core::Divider(static_cast<std::uint32_t>(p.group())),
      .k_row_bytes = static_cast<int>(p.k.row_stride * 2),
      .v_row_bytes = static_cast<int>(p.v.row_stride * 2),
      .column_shift = column_shift(p),
      .q_aligned = aligned(p.q, p.qk_dim),
      .k_aligned = aligned(p.k, p.qk_dim),
      .v_aligned = aligned(p.v, p.v_dim),
      .out_aligned = aligned(p.out, p.v_dim),
      .bias_staged = false,
      .speculate = !core::environment().lazy_maximum};
  const int bytes = shared_memory(c, p, device);
  a.bias_staged = bytes > c.tile_bytes();
  const DeviceScope scope(p.device.index);
  launch(instance->kernel, "flash2 forward", p.batch * p.q_heads * tiling.count(), c.threads(),
         static_cast<std::size_t>(bytes), stream, a);
}

bool limits_of(const Path& path, const core::Problem& p, core::Reason reason) {
  const DeviceLimits& device = path.device(p);
  const DeviceLimits& own = device_limits(p.device.index);
  if (!own.failure.empty()) return reason.give(own.failure);
  if (own.capability < path.capability) {
    return reason.give("needs compute capability ", path.capability / 10, ".", path.capability % 10,
                       ", cuda:", p.device.index, " has ", own.capability / 10, ".", own.capability % 10);
  }
  if (!device.failure.empty()) return reason.give(device.failure);
  const mma::forward::Instance* instance = choose_forward(path.instances, device, p, reason);
  return instance == nullptr || size_limits(p, instance->config.block_q(), reason);
}

}  // namespace

Variant forward_variant(const core::Problem& p) {
  if (p.dropout && p.dropout_threshold > 0) return Variant::dropout;
  const bool all_aligned =
      aligned(p.q, p.qk_dim) && aligned(p.k, p.qk_dim) && aligned(p.v, p.v_dim) && aligned(p.out, p.v_dim);
  // The plain kernels copy whole steps of keys by 32-bit strides.
  const bool whole_steps = (!p.blocks || p.blocks.block_k % kPlainBlock == 0) &&
                           std::max(p.k.row_stride, p.v.row_stride) < (std::int64_t{1} << 26);
  const bool plain = p.scale > 0 && p.softcap == 0 && !p.has_bias && p.alibi_slopes == nullptr && !p.dropout;
  return plain && whole_steps && all_aligned ? Variant::plain : Variant::featured;
}

const mma::forward::Instance* choose_forward(std::span<const mma::forward::Instance> instances,
                                             const DeviceLimits& device, const core::Problem& p,
                                             core::Reason reason) {
  const Variant variant = forward_variant(p);
  for (const bool side_by_side : {true, false}) {  // as many per multiprocessor as the instance is meant for
    for (const mma::forward::Instance& instance : instances) {
      const mma::forward::Config& c = instance.config;
      if (p.has_bias && !c.bias) continue;
      const int blocks = side_by_side ? c.blocks_per_sm : 1;
      const int bytes =
          (side_by_side ? shared_memory(c, p, device) : c.tile_bytes()) + mma::forward::kStaticBytes;
      const bool fits = bytes <= device.shared_memory &&
                        blocks * (bytes + kReservedPerBlock) <= device.shared_memory_multiprocessor;
      if (c.variant == variant && std::max(p.qk_dim, p.v_dim) <= c.head_dim && fits &&
          (!c.pairs || worth_pairs(p))) {
        return &instance;
      }
    }
  }
  reason.give("no instance for head_dim ", std::max(p.qk_dim, p.v_dim), " fits into ", device.shared_memory,
              " bytes of shared memory");
  return nullptr;
}

bool flash2_forward_limits(const core::Problem& p, core::Reason reason) {
  return limits_of(newest(p), p, reason);
}

registry::Configuration flash2_forward_configuration(const core::Problem& p, int /*workers*/) {
  return configuration_of(newest(p), p);
}

std::string flash2_forward_details(const core::Problem& p, const registry::Configuration& /*configuration*/) {
  return details_of(newest(p), p);
}

void flash2_forward(const core::Problem& p, const registry::Configuration& /*configuration*/,
                    const registry::Resources& resources) {
  run(newest(p), p, resources.stream);
}

bool flash2_sm75_forward_limits(const core::Problem& p, core::Reason reason) {
  return limits_of(sm75(), p, reason);
}

registry::Configuration flash2_sm75_forward_configuration(const core::Problem& p, int /*workers*/) {
  return configuration_of(sm75(), p);
}

std::string flash2_sm75_forward_details(const core::Problem& p,
                                        const registry::Configuration& /*configuration*/) {
  return details_of(sm75(), p);
}

void flash2_sm75_forward(const core::Problem& p, const registry::Configuration& /*configuration*/,
                         const registry::Resources& resources) {
  run(sm75(), p, resources.stream);
}

}  // namespace tessera::cuda
