/// \file
/// Which keys each query may attend to: causal, window, block-sparse and packed sequences, and how
/// they combine.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/export.h"
#include "tessera/tensor.h"

namespace tessera {

/// Where the diagonal lies when there are more or fewer keys than queries. Row i meets the diagonal
/// at column i + d; causal masks, windows and ALiBi distances count from it.
enum class Align : std::uint8_t {
  bottom_right,  ///< The last query meets the last key: d = Nk - Nq. The default.
  top_left,      ///< The first query meets the first key: d = 0 (PyTorch's `is_causal`).
};

/// Returns the name of an alignment, "bottom_right" or "top_left". Never null.
[[nodiscard]] TESSERA_API const char* name(Align align) noexcept;

/// Writes the name.
TESSERA_API std::ostream& operator<<(std::ostream& stream, Align align);

/// The sizes of a block mask: the problem that it belongs to, and its blocks.
struct BlockLayout {
  std::int64_t q_length = 0;   ///< Number of queries (of the longest sequence when sequences are packed).
  std::int64_t k_length = 0;   ///< Number of keys (likewise).
  std::int64_t block_q = 128;  ///< Queries per block; the last block may be shorter.
  std::int64_t block_k = 128;  ///< Keys per block; the last block may be shorter.
  std::int64_t heads = 1;      ///< 1: all heads share the mask; else the number of query heads.
};

/// A block-sparse mask: for each block of queries, the blocks of keys that it keeps. A mask is
/// immutable. Copies share one data set (indexed by rows and by columns), including its copies on
/// GPUs. An empty BlockMask keeps everything.
///
/// The functions that make a mask throw Error: invalid_argument when a size is not positive or an
/// index is out of range, unsorted or repeated; out_of_memory.
class TESSERA_API BlockMask {
 public:
  /// Keeps everything.
  BlockMask() = default;

  /// Makes a mask from compressed rows. `row_offsets` has heads * q_blocks + 1 entries and starts
  /// at 0. Block row r = head * q_blocks + q_block keeps the key blocks columns[row_offsets[r] ..
  /// row_offsets[r + 1]), strictly ascending. The function copies both arrays.
  [[nodiscard]] static BlockMask from_csr(const BlockLayout& layout,
                                          std::span<const std::int64_t> row_offsets,
                                          std::span<const std::int32_t> columns);
  /// Makes a mask from one flag per block: kept[(head * q_blocks + q_block) * k_blocks + k_block].
  [[nodiscard]] static BlockMask from_blocks(const BlockLayout& layout, std::span<const std::uint8_t> kept);
  /// Makes a mask from one flag per element, visible[(head * q_length + i) * k_length + j]. A block
  /// is kept when all its elements are visible. Throws Error (invalid_argument) when a block is
  /// only partly visible, because no block mask can say that; choose smaller blocks or use a bias.
  [[nodiscard]] static BlockMask from_dense(const BlockLayout& layout, std::span<const std::uint8_t> visible);

  /// Keeps the blocks at most `radius` blocks away from the diagonal block.
  [[nodiscard]] static BlockMask local(const BlockLayout& layout, std::int64_t radius);
  /// Sparse Transformer, strided: keeps the blocks fewer than `stride` blocks away from the
  /// diagonal block and those a multiple of `stride` blocks away.
  [[nodiscard]] static BlockMask strided(const BlockLayout& layout, std::int64_t stride);
  /// Sparse Transformer, fixed: keeps the group of `stride` blocks that holds the diagonal block,
  /// and the last `summary` blocks of every group.
  [[nodiscard]] static BlockMask fixed(const BlockLayout& layout, std::int64_t stride,
                                       std::int64_t summary = 1);
  /// BigBird: keeps `local(radius)`, the first `global` block rows and columns, and `random`
  /// further blocks per row, chosen by `seed`.
  [[nodiscard]] static BlockMask big_bird(const BlockLayout& layout, std::int64_t radius, std::int64_t global,
                                          std::int64_t random, std::uint64_t seed = 0);
  /// Butterfly: keeps the diagonal block and the blocks whose index differs from its index in one
  /// bit.
  [[nodiscard]] static BlockMask butterfly(const BlockLayout& layout);
  /// Keeps a share `density` in (0, 1] of all blocks, spread evenly over the rows; each head has
  /// its own blocks, chosen by `seed`.
  [[nodiscard]] static BlockMask random(const BlockLayout& layout, double density, std::uint64_t seed = 0);

  /// True unless the mask is empty (keeps everything).
  explicit operator bool() const noexcept { return data_ != nullptr; }

  /// The sizes of the mask; all zero for an empty mask.
  [[nodiscard]] const BlockLayout& layout() const noexcept;
  /// Number of blocks of queries.
  [[nodiscard]] std::int64_t q_blocks() const noexcept;
  /// Number of blocks of keys.
  [[nodiscard]] std::int64_t k_blocks() const noexcept;
  /// Number of kept blocks, over all heads of the mask.
  [[nodiscard]] std::int64_t kept() const noexcept;
  /// Kept blocks as a share of all; 1 for an empty mask.
  [[nodiscard]] double density() const noexcept;
  /// The key blocks that block row `q_block` keeps, ascending. `head` is below layout().heads.
  /// Throws Error (invalid_argument) for an index out of range or an empty mask.
  [[nodiscard]] std::span<const std::int32_t> row(std::int64_t head, std::int64_t q_block) const;
  /// The query blocks that keep `k_block`, ascending. Throws as `row` does.
  [[nodiscard]] std::span<const std::int32_t> column(std::int64_t head, std::int64_t k_block) const;
  /// Draws the mask of one head: per block row one line of '#' (kept) and '.'; "" for an empty
  /// mask. Throws as `row` does.
  [[nodiscard]] std::string draw(std::int64_t head = 0) const;

  /// Copies the mask to a GPU now; otherwise the first call on that GPU does. A mask is copied once
  /// to each GPU that uses it, and the copy lives as long as the mask: keep the mask while a
  /// captured CUDA graph is replayed. Does nothing for the CPU or an empty mask. Throws Error:
  /// invalid_argument for an impossible device, unsupported when the machine has no such GPU,
  /// out_of_memory, device_failure.
  void prepare(Device device) const;

  /// Shared state; internal.
  struct Data;
  /// The shared state, null for an empty mask; internal.
  [[nodiscard]] const Data* data() const noexcept { return data_.get(); }

 private:
  explicit BlockMask(std::shared_ptr<const Data> data) noexcept : data_(std::move(data)) {}
  std::shared_ptr<const Data> data_;
};

/// Packed sequences (varlen): sequence s owns the queries q[s] .. q[s + 1] and the keys k[s] .. k[s
/// + 1] of tensors whose batch is 1. Sequences may be empty.
///
/// On the CPU the call checks the lengths. On a GPU they are stored in its memory, and the call
/// cannot read them without waiting. They must ascend from 0 to at most the lengths of the tensors,
/// and no sequence may be longer than `max_q` and `max_k`. Otherwise rows of the results may stay
/// unwritten, and the kernel may read and write memory outside the tensors and the workspace.
struct Lengths {
  const std::int32_t* q = nullptr;  ///< count + 1 cumulative lengths from 0, on the device of the data.
  const std::int32_t* k = nullptr;  ///< Likewise for the keys.
  std::int64_t count = 0;           ///< Number of sequences; 0: a plain batch.
  std::int64_t max_q = 0;           ///< At least the longest query sequence; 0: read `q` (CPU only).
  std::int64_t max_k = 0;           ///< At least the longest key sequence; 0: read `k` (CPU only).
};

/// Which keys each query may attend to. Column j is visible to row i when three conditions hold: i
/// + d - left <= j <= i + d + right, where -1 means no bound; the block of (i, j) is kept; both
/// belong to the same packed sequence. The diagonal d is from -2^48 to 2^48. A row without visible
/// keys gives 0.
struct Mask {
  std::int64_t left = -1;                  ///< Visible keys before the diagonal; -1: all.
  std::int64_t right = -1;                 ///< Visible keys after the diagonal; -1: all; 0: causal.
  Align align = Align::bottom_right;       ///< Where the diagonal lies.
  std::optional<std::int64_t> diagonal{};  ///< An explicit d in global positions; replaces `align`.
  BlockMask blocks{};                      ///< Kept blocks; empty: all.
  Lengths lengths{};                       ///< Packed sequences; count 0: none.
};

/// Causal: a query attends only to keys at or before its own position.
[[nodiscard]] inline Mask causal(Align align = Align::bottom_right) { return {.right = 0, .align = align}; }

/// Causal along an explicit diagonal: row i attends to columns j <= i + diagonal, in global
/// positions.
[[nodiscard]] inline Mask causal_at(std::int64_t diagonal) { return {.right = 0, .diagonal = diagonal}; }

/// Sliding window: a query attends to keys at most `left` before and `right` after the diagonal,
/// inclusive; -1: no bound.
[[nodiscard]] inline Mask window(std::int64_t left, std::int64_t right, Align align = Align::bottom_right) {
  return {.left = left, .right = right, .align = align};
}

/// Block-sparse: only the blocks that the mask keeps are visible.
[[nodiscard]] inline Mask block_sparse(BlockMask blocks) { return {.blocks = std::move(blocks)}; }

/// Packed sequences: a query attends only to keys of its own sequence.
[[nodiscard]] inline Mask packed(const Lengths& lengths) { return {.lengths = lengths}; }

/// The intersection of two masks: `causal() & window(512, -1) & block_sparse(blocks)`. Throws Error
/// (invalid_argument) when both bound the band but around different diagonals, when both have a
/// block mask, or when both have lengths.
[[nodiscard]] TESSERA_API Mask operator&(const Mask& a, const Mask& b);

}  // namespace tessera
