// What a kernel tells the registry about itself. Every kernel, on every device, enters through this table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/reason.h"
#include "core/problem.h"
#include "tessera/execution.h"

namespace tessera::registry {

// The features of the contract, as bits. A kernel declares those it supports, a problem requires some.
enum class Feature : std::uint32_t {
  fp64 = 1U << 0,
  fp32 = 1U << 1,
  fp16 = 1U << 2,
  bf16 = 1U << 3,
  causal = 1U << 4,
  window = 1U << 5,
  block_sparse = 1U << 6,
  packed = 1U << 7,
  gqa = 1U << 8,
  value_dim = 1U << 9,
  bias = 1U << 10,
  bias_gradient = 1U << 11,
  alibi = 1U << 12,
  softcap = 1U << 13,
  dropout = 1U << 14,
  lse_gradient = 1U << 15,
  shard = 1U << 16,
  deterministic = 1U << 17,
};

inline constexpr int kFeatureCount = 18;

class Features {
 public:
  constexpr Features() = default;
  constexpr Features(Feature feature) : bits_(static_cast<std::uint32_t>(feature)) {}  // NOLINT: implicit

  static constexpr Features all() { return Features((1U << kFeatureCount) - 1); }

  constexpr bool contains(Features other) const { return (other.bits_ & ~bits_) == 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr Features operator|(Features other) const { return Features(bits_ | other.bits_); }
  constexpr Features without(Features other) const { return Features(bits_ & ~other.bits_); }
  constexpr Features& operator|=(Features other) { return *this = *this | other; }

 private:
  explicit constexpr Features(std::uint32_t bits) : bits_(bits) {}
  std::uint32_t bits_ = 0;
};

constexpr Features operator|(Feature a, Feature b) { return Features(a) | Features(b); }

// The features' names for people, in the order of the bits.
std::vector<std::string> names(Features features);

// Those names, with commas between them.
std::ostream& operator<<(std::ostream& stream, Features features);

// The features that mean something in a direction.
Features relevant(Direction direction);

// What a problem asks of a kernel.
Features required(const core::Problem& problem);

// How a kernel would serve a problem with so many workers.
struct Configuration {
  std::int64_t block_q = 0;
  std::int64_t block_k = 0;
  std::size_t shared_memory_bytes = 0;
  std::size_t workspace_bytes = 0;
  int workers = 1;
  double fast_memory_bytes = 0;  // cache or shared memory the traffic prediction counts with
};

// What a kernel may use while it runs: exactly the workspace it asked for, and workers.
struct Resources {
  std::byte* workspace = nullptr;  // aligned to kWorkspaceAlignment
  Executor* executor = nullptr;    // CPU
  void* stream = nullptr;          // CUDA
};

inline constexpr std::size_t kWorkspaceAlignment = 256;

struct Kernel {
  std::string_view name;
  Algorithm algorithm;
  Direction direction;
  DeviceType device;
  int priority;  // `automatic` takes the highest that serves the problem
  Features features;
  // Whether the kernel lacks something for this problem beyond features (sizes, alignment, hardware), and what.
  // Null: no such limits.
  bool (*limits)(const core::Problem& problem, core::Reason reason);
  Configuration (*configure)(const core::Problem& problem, int workers);
  // Further facts for `explain`, one per line; null: none.
  std::string (*details)(const core::Problem& problem, const Configuration& configuration);
  // Does not throw on the CPU; on a device throws Error (device_failure) for a failed launch.
  void (*run)(const core::Problem& problem, const Configuration& configuration, const Resources& resources);
  // Whether the kernels that come after it are the better choice for a problem that it supports, and why.
  // Ignored when the kernel is asked for by name. Null: never.
  bool (*yields)(const core::Problem& problem, core::Reason reason) = nullptr;
};

}  // namespace tessera::registry
