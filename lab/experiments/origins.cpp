#include "lab/experiments/origins.h"

namespace tessera::lab {

const std::vector<Origin>& origins() {
  static const std::vector<Origin> kAll = {
      {origin::kT4, "against plain PyTorch attention, in twelve figures, with 15 GB of memory"},
      {origin::kSweeps, "time, speed and peak memory over width, heads and sequence length"},
      {origin::kMinimal,
       "a forward kernel of one page (fp32, tiles of 32 x 32, a thread per row), and transformers of "
       "sequence 2048 to "
       "16384, width 1024 to 4096 and depth 4 to 24, with standard and with flash attention: time, memory, "
       "and whether "
       "they fit"},
      {origin::kTables,
       "batch, sequence, heads, width and mask varied alone, against PyTorch; running out of memory is a "
       "result"},
      {origin::kPaper,
       "FlashAttention-1, -2 and -3, dense and block-sparse, with dropout; correctness tests; a set-up for "
       "training "
       "GPT"},
  };
  return kAll;
}

}  // namespace tessera::lab
