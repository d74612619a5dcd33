// Ways to attend that the library does not have, for comparison: small, and as fast as they can honestly be made in a
// page. Each is a file in this folder and an entry in baseline.cpp.
#pragma once

#include <memory>
#include <string>

#include "lab/problem/workload.h"
#include "tessera/execution.h"
#include "tessera/plan.h"

namespace tessera::lab {

class Baseline {
 public:
  virtual ~Baseline() = default;

  // What it would do and cost. Throws Error (unsupported) for what it cannot do.
  [[nodiscard]] virtual Plan plan(const Workload& workload, const Tensors& tensors, Direction direction,
                                  const Execution& execution) const = 0;

  // Computes. Backward comes after forward. Workspace comes from execution.allocator, which outlives the baseline.
  virtual void run(const Workload& workload, const Tensors& tensors, Direction direction,
                   const Execution& execution) = 0;

  // Whether it computes attention itself, and not something else in its place: only then is its error measured.
  [[nodiscard]] virtual bool exact() const = 0;
};

// "linformer", "minimal". Throws UsageError for any other name.
std::unique_ptr<Baseline> make_baseline(const std::string& name);

// For baselines that know nothing but plain attention: throws Error (unsupported) for a mask, bias, grouped heads, ...
void require_plain(const std::string& name, const Workload& workload);

// For baselines, or parts of them, that compute in fp32 on the CPU alone: throws Error (unsupported) for anything else.
void require_fp32_on_cpu(const std::string& name, const Workload& workload, const Tensors& tensors);

std::unique_ptr<Baseline> make_linformer();
std::unique_ptr<Baseline> make_minimal();

}  // namespace tessera::lab
