#include "cuda/sm90/backward/launch.h"

#include <algorithm>
#include <array>

#include "core/base/text.h"
#include "cuda/common/host/arena.h"
#include "cuda/common/host/tensor_map.h"
#include "cuda/mma/backward/launch.h"

namespace tessera::cuda {
namespace {

using hopper::BackwardConfig;
using hopper::BackwardInstance;

constexpr int kHopper = 90;  // its code runs on no other capability

std::span<const BackwardInstance> instances_of(const core::Problem& p) {
  return p.dtype == DType::bf16 ? hopper_backward_bf16() : hopper_backward_fp16();
}

bool drops(const core::Problem& p) { return p.dropout && p.dropout_threshold > 0; }

struct Operand {
  const char* name;
  const core::View& view;
  RowExtents extents;
  int box_rows;
};

// As the copy engine sees them, in the order of hopper::BackwardArguments.
std::array<Operand, 6> operands(const BackwardConfig& c, const core::Problem& p) {
  const std::int64_t batch = p.packed ? 1 : p.batch;
  const std::int64_t q_rows = p.packed ? p.q_tokens : p.q_length, k_rows = p.packed ? p.k_tokens : p.k_length;
  return {Operand{"q", p.q, {p.qk_dim, q_rows, p.q_heads, batch}, c.block_q},
          Operand{"k", p.k, {p.qk_dim, k_rows, p.kv_heads, batch}, c.block_k()},
          Operand{"v", p.v, {p.v_dim, k_rows, p.kv_heads, batch}, c.block_k()},
          Operand{"grad_out", p.grad_out, {p.v_dim, q_rows, p.q_heads, batch}, c.block_q},
          Operand{"grad_k", p.grad_k, {p.qk_dim, k_rows, p.kv_heads, batch}, 16},
          Operand{"grad_v", p.grad_v, {p.v_dim, k_rows, p.kv_heads, batch}, 16}};
}

// Workspace, counted or cut.
struct Workspace {
  float *statistics, *sums;
  std::uint32_t* ticket;
  std::size_t bytes;

  Workspace(const BackwardConfig& c, const core::Problem& p, std::byte* memory) {
    const std::int64_t blocks = p.q_heads * flash2::QueryBlocks::count(p);
    Arena arena(memory);
    statistics = arena.take<float>(blocks, 2 * flash2::kQueryBlock);
    sums = arena.take<float>(blocks, flash2::kQueryBlock, c.head_dim);
    ticket = arena.take<std::uint32_t>(1);
    bytes = arena.used();
  }
};

}  // namespace

const BackwardInstance* choose_hopper_backward(std::span<const BackwardInstance> instances,
                                               const core::Problem& p) {
  for (const BackwardInstance& instance : instances) {
    if (std::max(p.qk_dim, p.v_dim) <= instance.config.head_dim && instance.config.dropout == drops(p))
      return &instance;
  }
  return nullptr;
}

#if TESSERA_HAVE_CUDA

void launch_hopper_backward(const BackwardInstance& instance, const core::Problem& p, std::byte* memory,
                            void* stream, std::uint32_t* report) {
  const BackwardConfig& c = instance.config;
  const DeviceLimits& device = device_limits(p.device.index);
  const flash2::BackwardFamily family =
      p.dtype == DType::bf16 ? flash2::backward_family_bf16() : flash2::backward_family_fp16();
  const Workspace workspace(c, p, memory);
  const DeviceScope scope(p.device.index);
  flash2::BackwardArguments call{.problem = p,
                                 .order = query_block_order(p),
                                 .blocks = {flash2::QueryBlocks::count(p)},
                                 .features = ScoreFeatures::of(p),
                                 .statistics = workspace.statistics,
                                 .grad_q_sums = workspace.sums,
                                 .head_dim = c.head_dim,
                                 .ticket = workspace.ticket};
  launch(family.prepare, "hopper backward, prepare", call.order.count(), flash2::kPrepareThreads, 0, stream,
         call);
  hopper::BackwardArguments a{};
  CUtensorMap* const maps[6] = {&a.q, &a.k, &a.v, &a.grad_out, &a.grad_k, &a.grad_v};
  const std::array<Operand, 6> all = operands(c, p);
  for (std::size_t i = 0; i < all.size(); ++i) {
    *maps[i] = encode_tensor_map(tensor_map_spec(all[i].view, all[i].extents, all[i].box_rows),
                                 p.dtype == DType::bf16);
  }
  a.call = call;
  a.call.order = key_tile_order(p, c.block_k(), device);
  a.diagonals = core::diagonal_rule(p);
  a.report = report;
  const std::int64_t grid = std::min<std::int64_t>(a.call.order.count(), device.multiprocessors);
  launch(instance.kernel, "hopper backward", grid, c.threads(), static_cast<std::size_t>(c.shared_bytes()),
         stream, a);
  launch(family.finish_hopper, "hopper backward, finish", call.order.count(), flash2::kFinishThreads, 0,
         stream, call);
}

#else

void launch_hopper_backward(const BackwardInstance& /*instance*/, const core::Problem& /*p*/,
                            std::byte* /*memory*/, void* stream, std::uint32_t* /*report*/) {
  launch(nullptr, "hopper backward", 1, 1, 0, stream, nullptr);
}

#endif

bool hopper_backward_limits(const core::Problem& p, core::Reason reason) {
  const DeviceLimits& device = device_limits(p.device.index, Code::sm90);
  const DeviceLimits& own = device_limits(p.device.index);
  if (!own.failure.empty()) return reason.give(own.failure);
  if (own.capability != kHopper) {
    return reason.give("is compiled for compute capability 9.0 alone, cuda:", p.device.index, " has ",
                       own.capability / 10, ".", own.capability % 10);
  }
  if (!device.failure.empty()) return reason.give(device.failure);
  if (const DeviceLimits& others = device_limits(p.device.index, Code::from80); !others.failure.empty())
    return reason.give(others.failure);  // cuda.flash2's, before and after its own
  if (p.q_tokens == 0 || p.k_tokens == 0) return reason.give("needs a query and a key");
  if (!p.has_grad_q || !p.has_grad_k || !p.has_grad_v)
    return reason.give("computes the gradients of q, k and v together; not all are asked for");
  const BackwardInstance* instance = choose_hopper_backward(instances_of(p), p);
  if (instance == nullptr) {
    return reason.give("serves head_dim up to ", drops(p) ? "64 with dropout" : "128", "; it is ",
                       std::max(p.qk_dim, p.v_dim));
  }
  if (drops(p) && p.origin.column % core::kDropoutGroup != 0) {
    return reason.give("needs dropout columns from a multiple of ", core::kDropoutGroup,
                       " on; they begin at ", p.origin.column);
  }
  const BackwardConfig& c = instance->config;
  if (size_limits(p, flash2::kQueryBlock, reason)) return true;
  if (c.shared_bytes() > device.shared_memory) {
    return reason.give("takes ", c.shared_bytes(), " bytes of shared memory, the GPU has ",
                       device.shared_memory);
  }
  for (const Operand& operand : operands(c, p)) {
    if (tensor_map_obstacle(operand.name, operand.view, operand.extents, reason)) return true;
  }
  return false;
}

registry::Configuration hopper_backward_configuration(const core::Problem& p, int /*workers*/) {
  const BackwardConfig& c = choose_hopper_backward(instances_of(p), p)->config;
  return {.block_q = c.block_q,
          .block_k = c.block_k(),
          .shared_memory_bytes = static_cast<std::size_t>(c.shared_bytes()),
          .workspace_bytes = Workspace(c, p, nullptr).bytes,
          .fast_memory_bytes = static_cast<double>(c.shared_bytes())};
}

std::string hopper_backward_details(const core::Problem& p,
                                    const registry::Configuration& /*configuration*/) {
  const BackwardConfig& c = choose_hopper_backward(instances_of(p), p)->config;
  return core::concat("instance: head_dim up to ", c.head_dim, c.dropout ? ", with dropout\n" : "\n",
                      c.kGroups, " warp groups of 64 keys and one that loads, ", c.registers, " and ",
                      c.loader_registers, " registers\nstages: ", c.kKeyStages, " of K and V, ",
                      c.kQueryStages, " of Q and dO, ", c.kScoreStages,
                      " of dS\ndK, dV, and dQ by fp32 reductions; tiles of keys by an atomic counter");
}

void hopper_backward(const core::Problem& p, const registry::Configuration& /*configuration*/,
                     const registry::Resources& resources) {
  launch_hopper_backward(*choose_hopper_backward(instances_of(p), p), p, resources.workspace,
                         resources.stream);
}

}  // namespace tessera::cuda
