// Origins: the studies of FlashAttention that the experiments repeat. An experiment names them by
// these words; the list of `tessera lab --list` and the report explain each once.
#pragma once

#include <string>
#include <vector>

namespace tessera::lab {

struct Origin {
  std::string name;  // as experiments write it
  std::string what;
};

namespace origin {
inline const std::string kT4 = "the benchmark of FlashAttention-1 on a T4";
inline const std::string kSweeps = "the sweeps of FlashAttention-2 against PyTorch";
inline const std::string kMinimal = "the minimal CUDA kernel and its training grid on an L4";
inline const std::string kTables = "the tables of FlashAttention-2, one parameter at a time";
inline const std::string kPaper = "the study of the FlashAttention paper";
}  // namespace origin

// All of them.
const std::vector<Origin>& origins();

// What they have in common, and how to compare our measurements with theirs.
inline const std::string kOriginsPreface =
    "The experiments repeat five small studies of FlashAttention on modest GPUs, and the figures of the "
    "paper behind "
    "them (Dao et al., 2022), with the kernels of this library. The machines differ, so compare the shapes "
    "of the "
    "curves, not their values.";

}  // namespace tessera::lab
