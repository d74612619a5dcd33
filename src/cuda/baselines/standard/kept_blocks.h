// Which keys of a row a block mask keeps, for host and device.
#pragma once

#include <cstdint>

#include "core/base/host_device.h"
#include "core/problem.h"
#include "cuda/common/step_cursor.h"

namespace tessera::cuda::standard {

// The blocks of a block mask that a row keeps.
class KeptBlocks {
 public:
  // Of query `i` of a head.
  TESSERA_HD KeptBlocks(const core::BlockView& blocks, int head, int i) {
    if (!blocks) return;
    block_ = static_cast<unsigned>(walk_block(blocks.block_k));
    const std::int64_t row = blocks.block_row(head, i);
    columns_ = blocks.columns + blocks.row_offsets[row];
    count_ = static_cast<int>(blocks.row_offsets[row + 1] - blocks.row_offsets[row]);
  }

  // There is no block mask.
  [[nodiscard]] TESSERA_HD bool all() const { return block_ == 0; }

  // Whether key `j` lies in one of them.
  TESSERA_HD bool contain(int j) {
    if (all()) return true;
    const int wanted = static_cast<int>(static_cast<unsigned>(j) / block_);
    if (wanted == known_) return kept_;
    int low = 0, high = count_;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (columns_[middle] < wanted) low = middle + 1;
      else high = middle;
    }
    known_ = wanted;
    return kept_ = low < count_ && columns_[low] == wanted;
  }

 private:
  const std::int32_t* columns_ = nullptr;
  int count_ = 0;
  unsigned block_ = 0;
  int known_ = -1;
  bool kept_ = false;
};

}  // namespace tessera::cuda::standard
