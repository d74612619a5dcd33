// Methods that the library does not have, for comparison: each as fast as one page of code allows.
// Each is a file in this folder and an entry in baseline.cpp.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "lab/problem/operation.h"
#include "lab/problem/tensors.h"
#include "tessera/execution.h"
#include "tessera/plan.h"

namespace tessera::lab {

class Baseline {
 public:
  virtual ~Baseline() = default;

  // What it would do and cost. Throws Error (unsupported) for problems that it does not support.
  [[nodiscard]] virtual Plan plan(const Operation& operation, const Tensors& tensors, Direction direction,
                                  const Execution& execution) const = 0;

  // Computes; backward comes after forward. Workspace comes from execution.allocator, which
  // outlives the baseline.
  virtual void run(const Operation& operation, const Tensors& tensors, Direction direction,
                   const Execution& execution) = 0;

  // Whether it computes attention and no approximation: only then its error is measured.
  [[nodiscard]] virtual bool exact() const = 0;
};

// "linformer", "minimal", "unfused". `stage` is the part of it that calls after the first compute,
// one of kStages of "unfused"; empty: all. Throws UsageError for any other name.
std::unique_ptr<Baseline> make_baseline(const std::string& name, const std::string& stage = "");

// What standard attention does one after the other.
inline constexpr std::array<const char*, 5> kStages = {"matmul QK^T", "mask", "softmax", "dropout",
                                                       "matmul PV"};

// For baselines of plain attention: throws Error (unsupported) for masks, biases, grouped heads and
// other options.
void require_plain(const std::string& name, const Operation& operation);

// For code that supports only fp32 on the CPU: throws Error (unsupported) for anything else.
void require_fp32_on_cpu(const std::string& name, const Operation& operation, const Tensors& tensors);

std::unique_ptr<Baseline> make_linformer();
std::unique_ptr<Baseline> make_minimal();
std::unique_ptr<Baseline> make_unfused(const std::string& stage);

}  // namespace tessera::lab
