// Ceilings: the highest arithmetic and memory throughput that this machine reaches.
#pragma once

#include <array>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lab/measure/interleave.h"

namespace tessera::lab {

// The names of all ceilings, in the order in which they are measured.
inline constexpr std::array<std::string_view, 7> kCeilings = {"fp32_fma", "bf16_dot", "bf16_amx",   "l1_read",
                                                              "l2_read",  "l3_read",  "memory_read"};

// A ceiling at one number of threads.
struct Peak {
  std::string name;          // one of kCeilings
  std::string instructions;  // what it was measured with
  std::string unit;          // "GFLOP/s" or "GB/s"
  int threads = 1;
  std::size_t bytes = 0;  // of a level of memory: its size; 0: arithmetic
  Summary rate{};         // in that unit, over the repetitions
  std::string missing{};  // why it could not be measured; empty: it was
};

struct PeakOptions {
  std::vector<int> threads;  // ascending
  std::vector<std::string_view> ceilings{kCeilings.begin(), kCeilings.end()};
  int repetitions = 9;
  double call_seconds = 0.05;  // what one repetition takes at least
};

// Measures the requested ceilings with every number of threads; those with the same number are
// interleaved. `proceed` as in `interleave`; when it stops the measuring, the ceilings so far are
// returned.
std::vector<Peak> measure_peaks(const PeakOptions& options, const std::function<bool(double share)>& proceed);

nlohmann::ordered_json to_json(const Peak& peak);

}  // namespace tessera::lab
