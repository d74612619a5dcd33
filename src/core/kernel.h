// What a kernel declares (its name, features, priority) and what it decides for one problem (a
// Choice). Every kernel, on every device, enters the library through a table of `Kernel`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iosfwd>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/base/reason.h"
#include "core/problem.h"
#include "tessera/execution.h"

namespace tessera::core {

// The features of the contract. A kernel declares those that it supports, a problem requires some
// of them.
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
  visible = 1U << 18,
};

inline constexpr int kFeatureCount = 19;

class Features {
 public:
  constexpr Features() = default;
  constexpr Features(Feature feature) : bits_(static_cast<std::uint32_t>(feature)) {}  // NOLINT

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

// The names of the features, as users read them, in the order of the bits.
std::vector<std::string> names(Features features);

// Those names, separated by commas.
std::ostream& operator<<(std::ostream& stream, Features features);

// The features that mean something in a direction.
Features relevant(Direction direction);

// The features that a problem requires of a kernel.
Features required(const Problem& problem);

// What a kernel decides for itself, such as the instance to launch, its plan or the layout of its
// workspace: a value of a type of its own, which only this kernel reads. The type must be trivially
// copyable. It must not point into the Problem: between `choose` and `run` the caller may move the
// problem and replaces its block mask by a copy on the device.
class Decision {
 public:
  Decision() = default;

  template <typename T>
    requires(!std::is_same_v<T, Decision>)
  Decision(const T& value)
      : type_(&kTypeOf<T>) {  // NOLINT(google-explicit-constructor): a field is given its value
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kBytes);
    std::memcpy(bytes_, &value, sizeof(T));
  }

  // The value. Throws std::logic_error when it is of another type, that is, when it comes from
  // another kernel.
  template <typename T>
  [[nodiscard]] T as() const {
    if (type_ != &kTypeOf<T>) throw std::logic_error("a kernel got the decision of another one");
    T value;
    std::memcpy(static_cast<void*>(&value), bytes_, sizeof(T));
    return value;
  }

 private:
  static constexpr std::size_t kBytes = 320;
  template <typename T>
  static constexpr char kTypeOf = 0;  // its address stands for the type

  const char* type_ = nullptr;
  std::byte bytes_[kBytes] = {};
};

// How a kernel would run a problem. `plan` shows the numbers, the caller provides workspace and
// workers, and `run` obeys the decision.
struct Choice {
  std::int64_t block_q = 0;  // queries and keys of a tile
  std::int64_t block_k = 0;
  std::size_t shared_memory_bytes = 0;  // GPU: of a thread block
  std::size_t workspace_bytes = 0;
  int workers = 1;                 // CPU: how many have something to do, at most those offered
  double traffic_cache_bytes = 0;  // the cache or shared memory that the traffic prediction assumes
  Decision decision{};
};

// What a kernel may use while it runs: the workspace and the number of workers that its Choice
// names.
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
  // What it requires, for messages: "a GPU of compute capability 8.0 or newer".
  std::string_view hardware;
  // Of the kernels that support a problem, the one with the highest priority runs it.
  int priority;
  Features features;

  // Decides, once a call, how to run a problem that requires none but the kernel's features.
  // Nothing, and the reason, when sizes, alignment or hardware do not allow it. Allocates nothing
  // unless somebody reads the reason. Throws Error: out_of_memory when the workspace exceeds what
  // 64 bits address, invalid_argument for a bad environment variable.
  std::optional<Choice> (*choose)(const Problem& problem, int workers, Reason reason);

  // Further facts for `plan`, one per line.
  std::string (*details)(const Problem& problem, const Choice& choice);

  // Computes the problem as chosen. On the CPU it does not throw; on a GPU it enqueues the work and
  // throws Error (device_failure) when a launch fails.
  void (*run)(const Problem& problem, const Choice& choice, const Resources& resources);

  // Whether, and why, a kernel of lower priority is the better one for a problem that this kernel
  // supports. Ignored when this kernel is forced by name. Null: never.
  bool (*prefers_another)(const Problem& problem, Reason reason) = nullptr;
};

}  // namespace tessera::core
