// The studies that the lab repeats, figure by figure: each study's experiments at its own settings,
// beside the lab's experiments, whose sizes suit the machine. To add one, add an entry to
// studies.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lab/experiments/experiment.h"

namespace tessera::lab {

struct Study {
  std::string name;      // as --study takes it: "t4"
  std::string origin;    // one of lab/experiments/origins.h
  std::string settings;  // what its experiments share, in words
  std::vector<Experiment> experiments;
  std::vector<std::string> commands{};  // programs that measure the rest of it
};

// All of them.
const std::vector<Study>& studies();

// Those of these names, in the order of `studies`. Throws UsageError for an unknown one.
std::vector<const Study*> find_studies(const std::vector<std::string>& names);

// Their experiments of these names, or all. Throws UsageError for a name that they do not have.
std::vector<const Experiment*> experiments_of(const std::vector<const Study*>& chosen,
                                              const std::vector<std::string>& names);

// The lab's experiments and those of all studies.
std::vector<const Experiment*> all_experiments();

// On a CPU every length of a study (sequences, and the blocks of block masks) is divided by this.
// Batches, heads, widths, tiles and everything else stay as they are.
inline constexpr std::int64_t kCpuFactor = 4;

// What the lengths of a study are divided by on a device: 1 on a GPU.
std::int64_t study_factor(Device device);

// The text of `--list` about a study.
std::string describe(const Study& study);

}  // namespace tessera::lab
