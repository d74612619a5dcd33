// The studies of FlashAttention that the experiments repeat. Experiments name them by these words, so that an origin can
// be read without a key; what each of them was is told once, by `tessera lab --list` and by the report.
#pragma once

#include <string>
#include <vector>

namespace tessera::lab {

struct Study {
  std::string name;  // as origins say it
  std::string what;
};

namespace study {
inline const std::string kT4 = "the benchmark of FlashAttention-1 on a T4";
inline const std::string kSweeps = "the sweeps of FlashAttention-2 against PyTorch";
inline const std::string kMinimal = "the minimal CUDA kernel and its training grid on an L4";
inline const std::string kTables = "the tables of FlashAttention-2, one parameter at a time";
inline const std::string kPaper = "the study of the FlashAttention paper";
}  // namespace study

// All of them.
const std::vector<Study>& studies();

// What they have in common, and how a measurement of ours is to be read beside theirs.
inline const std::string kStudiesPreface =
    "The experiments repeat five small studies of FlashAttention on modest GPUs, and figures of the paper "
    "behind them "
    "(Dao et al., 2022), with the kernels of this library. The machines differ, so it is the shape of a "
    "curve that "
    "compares, not its values.";

}  // namespace tessera::lab
