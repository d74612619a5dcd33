#include "core/block_mask.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "core/base/out_of_memory.h"
#include "core/base/refuse.h"
#include "core/base/text.h"
#include "tessera/error.h"

namespace tessera {
namespace {

using core::refuse;

constexpr std::int64_t kMaxInt64 = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();

void require_positive(const char* name, std::int64_t value) {
  if (value >= 1) return;
  refuse("BlockMask: ", name, " is ", value, "; it must be at least 1");
}

// Block indices are kept in 32 bits.
std::int64_t block_count(const char* name, std::int64_t length, std::int64_t block) {
  const std::int64_t blocks = (length - 1) / block + 1;
  if (blocks > kMaxInt32) {
    refuse("BlockMask: ", name, " is ", length, ", which gives ", blocks, " blocks of ", block, "; at most ",
           kMaxInt32, " are allowed");
  }
  return blocks;
}

// Whether a * b * c, all positive, can be represented.
bool product_fits(std::int64_t a, std::int64_t b, std::int64_t c) {
  return a <= kMaxInt64 / b && a * b <= kMaxInt64 / c;
}

// Refuses a mask whose indices exceed the memory of this machine.
void require_memory(const BlockLayout& layout, const core::BlockGrid& grid, std::size_t kept, double memory) {
  const double indices = 2.0 * sizeof(std::int32_t) * static_cast<double>(kept);  // columns and rows
  const double offsets = 1.0 * sizeof(std::int64_t) * static_cast<double>(layout.heads) *
                         static_cast<double>(grid.q_blocks + grid.k_blocks);
  const double needed = indices + offsets;
  if (needed <= memory) return;
  constexpr double kGiB = 1 << 30;
  core::fail(ErrorCode::out_of_memory, "BlockMask: no memory for a mask of ", layout.heads, " x ",
             grid.q_blocks, " x ", grid.k_blocks, " blocks: its indices take at least ",
             std::llround(needed / kGiB), " GiB, and this machine has ", std::llround(memory / kGiB), " GiB");
}

// The same kept blocks, by columns: a counting sort, which keeps the rows of a column ascending.
void fill_columns(BlockMask::Data& data) {
  const std::int64_t heads = data.layout.heads;
  data.column_offsets.assign(static_cast<std::size_t>(heads * data.k_blocks + 1), 0);
  data.rows.resize(data.columns.size());
  auto for_each_block = [&data, heads](auto&& visit) {
    for (std::int64_t row = 0; row < heads * data.q_blocks; ++row) {
      const std::int64_t first_column = row / data.q_blocks * data.k_blocks;
      for (std::int64_t at = data.row_offsets[row]; at < data.row_offsets[row + 1]; ++at) {
        visit(row % data.q_blocks, first_column + data.columns[at]);
      }
    }
  };
  for_each_block([&](std::int64_t, std::int64_t column) { ++data.column_offsets[column + 1]; });
  for (std::int64_t column = 0; column < heads * data.k_blocks; ++column) {
    data.column_offsets[column + 1] += data.column_offsets[column];
  }
  std::vector<std::int64_t> next(data.column_offsets.begin(), data.column_offsets.end() - 1);
  for_each_block([&](std::int64_t q_block, std::int64_t column) {
    data.rows[next[column]++] = static_cast<std::int32_t>(q_block);
  });
}

const BlockMask::Data& require_data(const BlockMask& mask, const char* function) {
  if (mask.data() == nullptr) {
    refuse("BlockMask::", function, ": the mask is empty (it keeps everything) and has no blocks to list");
  }
  return *mask.data();
}

void require_index(const char* function, const char* name, std::int64_t value, std::int64_t count) {
  if (value >= 0 && value < count) return;
  refuse("BlockMask::", function, ": ", name, " is ", value, "; it must be in [0, ", count, ")");
}

void require_size(const char* function, const char* name, std::size_t size, std::int64_t wanted,
                  const char* meaning) {
  if (size == static_cast<std::size_t>(wanted)) return;
  refuse("BlockMask::", function, ": ", name, " has ", size, " entries; it must have ", wanted, " (", meaning,
         ")");
}

void check_csr(const BlockLayout& layout, std::span<const std::int64_t> offsets,
               std::span<const std::int32_t> columns) {
  const core::BlockGrid grid = core::block_grid(layout);
  const std::int64_t rows = layout.heads * grid.q_blocks;
  constexpr const char* prefix = "BlockMask::from_csr: ";
  require_size("from_csr", "row_offsets", offsets.size(), rows + 1, "heads * q_blocks + 1");
  if (offsets[0] != 0) refuse(prefix, "row_offsets[0] is ", offsets[0], "; it must be 0");
  for (std::int64_t row = 0; row < rows; ++row) {
    if (offsets[row + 1] < offsets[row]) {
      refuse(prefix, "row_offsets[", row + 1, "] is ", offsets[row + 1], ", below the entry before it, ",
             offsets[row], "; offsets must not descend");
    }
  }
  if (offsets[rows] != static_cast<std::int64_t>(columns.size())) {
    refuse(prefix, "row_offsets ends with ", offsets[rows], "; it must end with the number of columns, ",
           columns.size());
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t at = offsets[row]; at < offsets[row + 1]; ++at) {
      const bool in_range = columns[at] >= 0 && columns[at] < grid.k_blocks;
      if (in_range && (at == offsets[row] || columns[at] > columns[at - 1])) continue;
      const std::string found = core::concat(prefix, "columns[", at, "] is ", columns[at]);
      if (!in_range) refuse(found, "; it must be in [0, ", grid.k_blocks, ")");
      refuse(found, ", not above the entry before it, ", columns[at - 1],
             "; the columns of a row must be strictly ascending");
    }
  }
}

}  // namespace

namespace core {

BlockView view(const BlockMask& mask) noexcept {
  if (mask.data() == nullptr) return {};
  const BlockMask::Data& data = *mask.data();
  // A block of kMaxPosition holds every position; the ends of blocks then fit 63 bits.
  return {std::min(data.layout.block_q, kMaxPosition),
          std::min(data.layout.block_k, kMaxPosition),
          data.q_blocks,
          data.k_blocks,
          data.layout.heads,
          data.row_offsets.data(),
          data.columns.data(),
          data.column_offsets.data(),
          data.rows.data()};
}

BlockGrid block_grid(const BlockLayout& layout) {
  require_positive("q_length", layout.q_length);
  require_positive("k_length", layout.k_length);
  require_positive("block_q", layout.block_q);
  require_positive("block_k", layout.block_k);
  require_positive("heads", layout.heads);
  if (layout.heads > kMaxInt32) {
    refuse("BlockMask: heads is ", layout.heads, "; at most ", kMaxInt32, " are allowed");
  }
  const BlockGrid grid{block_count("q_length", layout.q_length, layout.block_q),
                       block_count("k_length", layout.k_length, layout.block_k)};
  if (!product_fits(layout.heads, grid.q_blocks, grid.k_blocks)) {
    refuse("BlockMask: heads is ", layout.heads, ", which with ", grid.q_blocks, " x ", grid.k_blocks,
           " blocks gives more than 2^63 - 1 blocks");
  }
  return grid;
}

std::int64_t diagonal_block(const BlockLayout& layout, std::int64_t q_block) {
  // Counted from the end, where the last query meets the last key: no product can overflow.
  const bool last_block = q_block == (layout.q_length - 1) / layout.block_q;
  const std::int64_t distance =  // of the block's last query from the last query of all
      last_block ? 0 : layout.q_length - (q_block + 1) * layout.block_q;
  return std::max<std::int64_t>(layout.k_length - 1 - distance, 0) / layout.block_k;
}

std::shared_ptr<const BlockMask::Data> build_block_mask(const BlockLayout& layout,
                                                        const AppendRow& append_row, std::int64_t kept) {
  const BlockGrid grid = block_grid(layout);
  const auto memory = static_cast<double>(physical_memory());
  require_memory(layout, grid, static_cast<std::size_t>(kept), memory);
  auto build = [&] {
    auto data = std::make_shared<BlockMask::Data>();
    data->layout = layout;
    data->q_blocks = grid.q_blocks;
    data->k_blocks = grid.k_blocks;
    data->row_offsets.reserve(static_cast<std::size_t>(layout.heads * grid.q_blocks + 1));
    data->row_offsets.push_back(0);
    data->columns.reserve(static_cast<std::size_t>(kept));
    for (std::int64_t head = 0; head < layout.heads; ++head) {
      for (std::int64_t q_block = 0; q_block < grid.q_blocks; ++q_block) {
        append_row(head, q_block, data->columns);
        require_memory(layout, grid, data->columns.size(), memory);
        data->row_offsets.push_back(static_cast<std::int64_t>(data->columns.size()));
      }
    }
    data->columns.shrink_to_fit();
    fill_columns(*data);
    return std::shared_ptr<const BlockMask::Data>(std::move(data));
  };
  return guarded(build, "BlockMask: no memory for a mask of ", layout.heads, " x ", grid.q_blocks, " x ",
                 grid.k_blocks, " blocks");
}

}  // namespace core

BlockMask BlockMask::from_csr(const BlockLayout& layout, std::span<const std::int64_t> row_offsets,
                              std::span<const std::int32_t> columns) {
  check_csr(layout, row_offsets, columns);
  const std::int64_t q_blocks = core::block_grid(layout).q_blocks;
  return BlockMask(core::build_block_mask(
      layout, [&](std::int64_t head, std::int64_t q_block, std::vector<std::int32_t>& kept) {
        const std::int64_t row = head * q_blocks + q_block;
        kept.insert(kept.end(), columns.begin() + row_offsets[row], columns.begin() + row_offsets[row + 1]);
      }));
}

BlockMask BlockMask::from_blocks(const BlockLayout& layout, std::span<const std::uint8_t> kept) {
  const core::BlockGrid grid = core::block_grid(layout);
  require_size("from_blocks", "kept", kept.size(), layout.heads * grid.q_blocks * grid.k_blocks,
               "heads * q_blocks * k_blocks");
  return BlockMask(core::build_block_mask(
      layout, [&](std::int64_t head, std::int64_t q_block, std::vector<std::int32_t>& columns) {
        const std::int64_t first = (head * grid.q_blocks + q_block) * grid.k_blocks;
        for (std::int64_t column = 0; column < grid.k_blocks; ++column) {
          if (kept[first + column] != 0) columns.push_back(static_cast<std::int32_t>(column));
        }
      }));
}

BlockMask BlockMask::from_dense(const BlockLayout& layout, std::span<const std::uint8_t> visible) {
  const core::BlockGrid grid = core::block_grid(layout);
  if (!product_fits(layout.heads, layout.q_length, layout.k_length)) {
    refuse("BlockMask::from_dense: heads is ", layout.heads, ", which with ", layout.q_length, " x ",
           layout.k_length, " gives more than 2^63 - 1 elements");
  }
  require_size("from_dense", "visible", visible.size(), layout.heads * layout.q_length * layout.k_length,
               "heads * q_length * k_length");
  auto append_row = [&](std::int64_t head, std::int64_t q_block, std::vector<std::int32_t>& columns) {
    const std::int64_t row_begin = q_block * layout.block_q;
    const std::int64_t row_end = row_begin + std::min(layout.block_q, layout.q_length - row_begin);
    for (std::int64_t k_block = 0; k_block < grid.k_blocks; ++k_block) {
      const std::int64_t begin = k_block * layout.block_k;
      const std::int64_t width = std::min(layout.block_k, layout.k_length - begin);
      std::int64_t count = 0;
      for (std::int64_t row = row_begin; row < row_end; ++row) {
        const auto flags = visible.begin() + (head * layout.q_length + row) * layout.k_length + begin;
        count += width - std::count(flags, flags + width, std::uint8_t{0});
      }
      if (count == 0) continue;
      const std::int64_t elements = (row_end - row_begin) * width;
      if (count != elements) {
        refuse("BlockMask::from_dense: of the block at head ", head, ", query block ", q_block,
               ", key block ", k_block, " only ", count, " of ", elements,
               " elements are visible; blocks must be visible as a whole or not at all: ",
               "choose smaller blocks or use a bias");
      }
      columns.push_back(static_cast<std::int32_t>(k_block));
    }
  };
  return BlockMask(core::build_block_mask(layout, append_row));
}

const BlockLayout& BlockMask::layout() const noexcept {
  static constexpr BlockLayout kNone{0, 0, 0, 0, 0};
  return data_ == nullptr ? kNone : data_->layout;
}

std::int64_t BlockMask::q_blocks() const noexcept { return data_ == nullptr ? 0 : data_->q_blocks; }

std::int64_t BlockMask::k_blocks() const noexcept { return data_ == nullptr ? 0 : data_->k_blocks; }

std::int64_t BlockMask::kept() const noexcept {
  return data_ == nullptr ? 0 : static_cast<std::int64_t>(data_->columns.size());
}

double BlockMask::density() const noexcept {
  if (data_ == nullptr) return 1;
  return static_cast<double>(kept()) /
         static_cast<double>(data_->layout.heads * data_->q_blocks * data_->k_blocks);
}

std::span<const std::int32_t> BlockMask::row(std::int64_t head, std::int64_t q_block) const {
  const Data& data = require_data(*this, "row");
  require_index("row", "head", head, data.layout.heads);
  require_index("row", "q_block", q_block, data.q_blocks);
  const std::int64_t* offsets = data.row_offsets.data() + head * data.q_blocks + q_block;
  return {data.columns.data() + offsets[0], static_cast<std::size_t>(offsets[1] - offsets[0])};
}

std::span<const std::int32_t> BlockMask::column(std::int64_t head, std::int64_t k_block) const {
  const Data& data = require_data(*this, "column");
  require_index("column", "head", head, data.layout.heads);
  require_index("column", "k_block", k_block, data.k_blocks);
  const std::int64_t* offsets = data.column_offsets.data() + head * data.k_blocks + k_block;
  return {data.rows.data() + offsets[0], static_cast<std::size_t>(offsets[1] - offsets[0])};
}

std::string BlockMask::draw(std::int64_t head) const {
  if (data_ == nullptr) return {};
  require_index("draw", "head", head, data_->layout.heads);
  return core::guarded([&] {
    const auto width = static_cast<std::size_t>(data_->k_blocks) + 1;  // with the line's end
    std::string picture(static_cast<std::size_t>(data_->q_blocks) * width, '.');
    for (std::int64_t q_block = 0; q_block < data_->q_blocks; ++q_block) {
      char* line = picture.data() + static_cast<std::size_t>(q_block) * width;
      for (const std::int32_t k_block : row(head, q_block)) line[k_block] = '#';
      line[width - 1] = '\n';
    }
    return picture;
  });
}

}  // namespace tessera
