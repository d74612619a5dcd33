/// \file
/// Plan: the kernel that a call would run and its cost, as data; and what this build and machine
/// offer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "tessera/attention.h"
#include "tessera/export.h"

namespace tessera {

/// The sizes of a problem, before its tensors exist. Each is at most 2^32. The tensors count as
/// contiguous.
struct Shapes {
  std::int64_t batch = 1;     ///< Batch entries; packed sequences if the mask has lengths.
  std::int64_t q_length = 0;  ///< Queries (of the longest sequence).
  std::int64_t k_length = 0;  ///< Keys (of the longest sequence).
  std::int64_t q_heads = 1;   ///< Query heads.
  std::int64_t kv_heads = 0;  ///< Key/value heads; 0: equal to `q_heads`.
  std::int64_t qk_dim = 64;   ///< head_dim of q and k.
  std::int64_t v_dim = 0;     ///< head_dim of v; 0: equal to `qk_dim`.
  DType dtype = DType::fp32;  ///< Type of the elements.
  bool lse = true;            ///< Whether forward writes the LSE.
  bool bias = false;  ///< Whether the call has a bias, q_length x k_length, shared by batch and heads.
  /// Whether the call has `visible`, q_length x k_length, shared by batch and heads. The costs of a
  /// plan count as if every element were true: a plan reads no data.
  bool visible = false;
};

/// A kernel that was not chosen, with the reason.
struct Rejection {
  std::string kernel;  ///< Its name.
  std::string reason;  ///< What it requires, or which kernel is preferred.
};

/// The kernel that a call would run, and its cost. A plain value; `to_string` and `<<` print it.
struct Plan {
  std::string kernel;                          ///< Name of the kernel, as TESSERA_KERNEL expects it.
  Algorithm algorithm = Algorithm::automatic;  ///< The algorithm that it implements.
  Direction direction = Direction::forward;    ///< Forward or backward.
  Device device{};                             ///< The device that runs it.
  int threads = 0;                             ///< CPU threads that it would use.
  std::int64_t block_q = 0;                    ///< Queries per tile.
  std::int64_t block_k = 0;                    ///< Keys per tile.
  std::size_t shared_memory_bytes = 0;         ///< Shared memory per thread block (GPU).
  std::size_t workspace_bytes = 0;             ///< Temporary memory of the call.
  std::string details;                         ///< Further facts about the kernel, one per line.
  double flops = 0;                            ///< Floating-point operations, by FlashAttention's convention.
  double visible_pairs = 0;                    ///< (query, key) pairs that the mask leaves visible.
  double minimum_bytes = 0;                    ///< Size of all tensors: no algorithm moves less.
  double traffic_bytes = 0;                    ///< Predicted memory traffic of this kernel.
  double standard_traffic_bytes = 0;           ///< Predicted memory traffic of `standard`.
  double standard_workspace_bytes = 0;         ///< Temporary memory of `standard`.
  std::vector<Rejection> rejected;             ///< The other kernels for this direction, with reasons.
};

/// Returns the plan that `forward` or `backward` would follow for contiguous tensors of these
/// shapes. It runs nothing. A mask with lengths requires `max_q` and `max_k`; its pointers may be
/// null here. Throws Error: invalid_argument for impossible arguments, unsupported when no kernel
/// supports them.
[[nodiscard]] TESSERA_API Plan plan(const Attention& attention, const Shapes& shapes,
                                    Device device = Device::cpu(), Direction direction = Direction::forward,
                                    const Execution& execution = {});

/// Returns the plan that `forward` follows for these tensors. It reads no data, so pointers may be
/// null. Throws as above.
[[nodiscard]] TESSERA_API Plan plan(const Attention& attention, const ForwardTensors& tensors,
                                    const Execution& execution = {});

/// Returns the plan that `backward` follows for these tensors. It reads no data, so pointers may be
/// null. Throws as above.
[[nodiscard]] TESSERA_API Plan plan(const Attention& attention, const BackwardTensors& tensors,
                                    const Execution& execution = {});

/// Returns the plan as text, one fact per line.
[[nodiscard]] TESSERA_API std::string to_string(const Plan& plan);

/// Writes the plan as text.
TESSERA_API std::ostream& operator<<(std::ostream& stream, const Plan& plan);

/// A kernel of this build.
struct KernelInfo {
  std::string name;                            ///< As TESSERA_KERNEL expects it.
  Algorithm algorithm = Algorithm::automatic;  ///< The algorithm that it implements.
  Direction direction = Direction::forward;    ///< Forward or backward.
  DeviceType device = DeviceType::cpu;         ///< The kind of device that runs it.
  std::vector<std::string> features;           ///< The features that it supports, by name.
  std::vector<std::string> missing;            ///< The features that it does not support.
};

/// Returns all kernels of this build, in order of preference.
[[nodiscard]] TESSERA_API std::vector<KernelInfo> kernels();

/// A device of this machine.
struct DeviceInfo {
  Device device{};          ///< The device.
  std::string name;         ///< The product name.
  std::string description;  ///< Cores and instruction sets, or compute capability and memory.
};

/// Returns the devices of this machine that this build can use; the CPU comes first.
[[nodiscard]] TESSERA_API std::vector<DeviceInfo> devices();

/// Returns how the library was built (compiler, options) and why a missing backend is missing, one
/// fact per line.
[[nodiscard]] TESSERA_API std::string build_info();

}  // namespace tessera
