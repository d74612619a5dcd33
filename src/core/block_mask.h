// The data that copies of the public BlockMask share, and how the functions that make a mask build
// it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/problem.h"
#include "tessera/mask.h"

namespace tessera {
namespace core {

// A copy of a mask in the memory of a device. Its engine makes it and knows how to free it.
class DeviceBlocks {
 public:
  explicit DeviceBlocks(const BlockView& blocks) : view(blocks) {}
  virtual ~DeviceBlocks() = default;

  BlockView view;
};

// The device copies of one mask: at most one for each device, made when first needed, never
// changed, freed with the mask. Safe from several threads.
class DeviceCopies {
 public:
  // The copy on a device. The first call makes it by make(), which returns a
  // std::unique_ptr<DeviceBlocks>.
  template <typename Make>
  BlockView on(Device device, Make&& make) {
    const std::lock_guard lock(mutex_);
    for (const auto& [where, copy] : copies_) {
      if (where == device) return copy->view;
    }
    copies_.emplace_back(device, make());
    return copies_.back().second->view;
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<Device, std::unique_ptr<DeviceBlocks>>> copies_;
};

}  // namespace core

// Kept blocks in both directions: by rows for forward and dQ, by columns for dK and dV. Block row
// head * q_blocks + q_block keeps columns[row_offsets[row] .. row_offsets[row + 1]), ascending;
// block column head * k_blocks + k_block is kept by rows[column_offsets[column] ..
// column_offsets[column + 1]), ascending.
struct BlockMask::Data {
  BlockLayout layout{};
  std::int64_t q_blocks = 0, k_blocks = 0;
  std::vector<std::int64_t> row_offsets;
  std::vector<std::int32_t> columns;
  std::vector<std::int64_t> column_offsets;
  std::vector<std::int32_t> rows;
  mutable core::DeviceCopies copies;
};

namespace core {

// The mask as kernels on the host read it; no blocks for an empty mask. Valid as long as a copy of
// the mask lives.
BlockView view(const BlockMask& mask) noexcept;

// Number of blocks in both directions.
struct BlockGrid {
  std::int64_t q_blocks = 0, k_blocks = 0;
};

// The grid of a layout. Throws invalid_argument unless every size is positive and every product of
// sizes that is formed later can be represented.
BlockGrid block_grid(const BlockLayout& layout);

// The diagonal block of the presets: the key block with the key that the last query of a block
// meets on the bottom-right diagonal, clamped to the keys there are.
std::int64_t diagonal_block(const BlockLayout& layout, std::int64_t q_block);

// Appends the key blocks that one block row keeps, in ascending order. A reference to the caller's
// function, which must outlive it: unlike std::function it takes no memory.
class AppendRow {
 public:
  template <typename F>
  AppendRow(const F& function)  // NOLINT: a lambda converts implicitly
      : function_(&function),
        call_([](const void* f, std::int64_t head, std::int64_t q_block, Columns& columns) {
          (*static_cast<const F*>(f))(head, q_block, columns);
        }) {}

  void operator()(std::int64_t head, std::int64_t q_block, std::vector<std::int32_t>& columns) const {
    call_(function_, head, q_block, columns);
  }

 private:
  using Columns = std::vector<std::int32_t>;
  const void* function_;
  void (*call_)(const void* f, std::int64_t head, std::int64_t q_block, Columns& columns);
};

// Builds the data of a mask row by row. Throws invalid_argument for a wrong layout, out_of_memory
// when the mask does not fit into the memory of this machine. `kept` is the number of blocks in the
// mask where the caller knows it: a mask that is too large is then refused before it takes memory,
// also on a system that grants more than it has.
std::shared_ptr<const BlockMask::Data> build_block_mask(const BlockLayout& layout,
                                                        const AppendRow& append_row, std::int64_t kept = 0);

}  // namespace core
}  // namespace tessera
