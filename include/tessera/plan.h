/// \file
/// Plan: what would run for given shapes, as data; and what this build of the library has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "tessera/attention.h"
#include "tessera/export.h"

namespace tessera {

/// The sizes of a problem, when there are no tensors yet. Each is at most 2^32. Tensors are taken as contiguous.
struct Shapes {
  std::int64_t batch = 1;     ///< Batch entries, or packed sequences if the mask has lengths.
  std::int64_t q_length = 0;  ///< Queries (of the longest sequence).
  std::int64_t k_length = 0;  ///< Keys (of the longest sequence).
  std::int64_t q_heads = 1;   ///< Query heads.
  std::int64_t kv_heads = 0;  ///< Key/value heads; 0: as many as query heads.
  std::int64_t qk_dim = 64;   ///< head_dim of q and k.
  std::int64_t v_dim = 0;     ///< head_dim of v; 0: as qk_dim.
  DType dtype = DType::fp32;  ///< Type of the elements.
  bool lse = true;            ///< Whether forward writes the LSE.
  bool bias = false;          ///< Whether there is a bias (shared by batch and heads, q_length x k_length).
};

/// A kernel that was not chosen, and why.
struct Rejection {
  std::string kernel;  ///< Its name.
  std::string reason;  ///< What it lacks, or which kernel comes before it.
};

/// What would run, and what it costs. A plain value; `to_string` prints it.
struct Plan {
  std::string kernel;                          ///< Name of the kernel, as TESSERA_KERNEL takes it.
  Algorithm algorithm = Algorithm::automatic;  ///< What it implements.
  Direction direction = Direction::forward;    ///< Forward or backward.
  Device device{};                             ///< Where it runs.
  int threads = 0;                             ///< CPU threads it would use.
  std::int64_t block_q = 0;                    ///< Queries per tile.
  std::int64_t block_k = 0;                    ///< Keys per tile.
  std::size_t shared_memory_bytes = 0;         ///< Shared memory per thread block (GPU).
  std::size_t workspace_bytes = 0;             ///< Memory the call takes besides its tensors.
  std::string details;                         ///< Further facts about the kernel, one per line.
  double flops = 0;                            ///< Floating-point operations, FlashAttention's convention.
  double visible_pairs = 0;                    ///< (query, key) pairs that the mask lets through.
  double minimum_bytes = 0;                    ///< Every tensor once: no algorithm moves less.
  double traffic_bytes = 0;                    ///< Predicted memory traffic of this kernel.
  double standard_traffic_bytes = 0;           ///< Predicted memory traffic of `standard`.
  double standard_workspace_bytes = 0;         ///< Memory that `standard` would take besides the tensors.
  std::vector<Rejection> rejected;             ///< Every other kernel for this direction, with the reason.
};

/// The decision that `forward` or `backward` would take for contiguous tensors of these shapes.
/// A mask with lengths needs `max_q` and `max_k` (its pointers may be null here).
/// Throws Error (invalid_argument) for impossible shapes, and unsupported when no kernel serves them.
TESSERA_API Plan plan(const Attention& attention, const Shapes& shapes, Device device = Device::cpu(),
                      Direction direction = Direction::forward, const Execution& execution = {});

/// The decision that `forward` takes for these tensors. Data pointers may be null: nothing is touched.
TESSERA_API Plan plan(const Attention& attention, const ForwardTensors& tensors,
                      const Execution& execution = {});

/// The decision that `backward` takes for these tensors. Data pointers may be null: nothing is touched.
TESSERA_API Plan plan(const Attention& attention, const BackwardTensors& tensors,
                      const Execution& execution = {});

/// The plan as text, one fact per line.
TESSERA_API std::string to_string(const Plan& plan);

/// Writes the plan as text.
TESSERA_API std::ostream& operator<<(std::ostream& stream, const Plan& plan);

/// A kernel in this build of the library.
struct KernelInfo {
  std::string name;                            ///< As TESSERA_KERNEL takes it.
  Algorithm algorithm = Algorithm::automatic;  ///< What it implements.
  Direction direction = Direction::forward;    ///< Forward or backward.
  DeviceType device = DeviceType::cpu;         ///< Where it runs.
  std::vector<std::string> features;           ///< What it supports, by name.
  std::vector<std::string> missing;            ///< Features of the contract it does not support.
};

/// Every kernel in this build, fastest first.
TESSERA_API std::vector<KernelInfo> kernels();

/// A device of this machine.
struct DeviceInfo {
  Device device{};          ///< Which one.
  std::string name;         ///< As the maker calls it.
  std::string description;  ///< Cores and instruction sets, or compute capability and memory.
};

/// The devices of this machine that this build can use; the CPU comes first.
TESSERA_API std::vector<DeviceInfo> devices();

/// How the library was built (compiler, options) and, where a backend is missing, why; one fact per line.
TESSERA_API std::string build_info();

}  // namespace tessera
