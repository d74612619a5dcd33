// Runs kernels against the oracle over the reference's matrix of features, and shows what came out.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "reference/tolerance/check.h"
#include "tessera/execution.h"
#include "tessera/tensor.h"

namespace tessera::lab {

// Which part of the matrix to run.
struct Selection {
  std::vector<DType> dtypes{};
  std::vector<std::string> kernels{};
  std::vector<std::string> features{};  // empty: all
  std::vector<std::string> cases{};     // empty: all
  double tolerance = 1;                 // multiplies the tolerance
  Execution execution{};
  std::optional<Device> device{};  // where kernels of GPUs run; empty: cuda:0
};

enum class Outcome { passed, failed, unsupported };

const char* name(Outcome outcome);

// One case with one kernel.
struct CaseResult {
  reference::CaseSpec spec;
  std::string kernel;
  Outcome outcome = Outcome::passed;
  std::string reason{};  // why not passed, one line
  std::vector<reference::TensorError> tensors{};
  double worst = 0;  // largest share of the allowed error that was used
  double seconds = 0;
};

struct Verification {
  std::vector<CaseResult> results;
  bool complete = true;  // false: interrupted

  [[nodiscard]] int count(Outcome outcome) const;
};

// The kernels of this machine by name, fastest first, each once; of one kind of device alone if
// that is given.
std::vector<std::string> kernel_names(std::optional<DeviceType> type = {});

// The features of the matrix, in its order.
std::vector<std::string> feature_names();

// Runs the selected cases. `proceed` is called before every case with what comes next and the share
// that is done; when it says no, verifying stops.
Verification verify(const Selection& selection,
                    const std::function<bool(const std::string& what, double share)>& proceed);

// Judges one result again with another tolerance and notes the worst share.
void apply_tolerance(CaseResult& result, double tolerance);

// Features as rows, kernels and types as columns: a tick and the worst share of the allowed error,
// FAIL, or a dash for what the kernel does not support.
std::string verification_table(const Verification& verification, bool color);
std::string verification_markdown(const Verification& verification);
nlohmann::ordered_json verification_json(const Verification& verification);

// Which kernel does not support what, each reason once.
std::string unsupported_list(const Verification& verification);

// What failed, with numbers and the command that runs it again.
std::string failure_list(const Verification& verification, double tolerance);

}  // namespace tessera::lab
