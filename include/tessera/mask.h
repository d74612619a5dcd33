/// \file
/// Which keys a query may see: causal, window, block-sparse and packed sequences, and how they combine.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/export.h"
#include "tessera/tensor.h"

namespace tessera {

/// Where the diagonal lies when there are more or fewer keys than queries. Row i meets the diagonal at
/// column i + d; causal masks, windows and ALiBi distances all count from it.
enum class Align : std::uint8_t {
  bottom_right,  ///< The last query meets the last key: d = Nk - Nq. The default.
  top_left,      ///< The first query meets the first key: d = 0 (PyTorch's `is_causal`).
};

/// The sizes a block mask is made for.
struct BlockLayout {
  std::int64_t q_length = 0;   ///< Number of queries (of the longest sequence when sequences are packed).
  std::int64_t k_length = 0;   ///< Number of keys (likewise).
  std::int64_t block_q = 128;  ///< Queries per block; the last block may be shorter.
  std::int64_t block_k = 128;  ///< Keys per block; the last block may be shorter.
  std::int64_t heads = 1;      ///< 1: all heads share the mask; else the number of query heads.
};

/// A block-sparse mask: for each block of queries, the blocks of keys that are kept. Immutable; copies share
/// the same data, in both directions (by rows and by columns), also on GPUs. An empty BlockMask keeps everything.
/// The functions that make one throw Error (invalid_argument) when sizes are not positive, indices are out
/// of range, unsorted or repeated.
class TESSERA_API BlockMask {
 public:
  /// Keeps everything.
  BlockMask() = default;

  /// From compressed rows. `row_offsets` has heads * q_blocks + 1 entries starting at 0; the kept key
  /// blocks of block row r (row r = head * q_blocks + q_block) are
  /// columns[row_offsets[r] .. row_offsets[r + 1]), strictly ascending.
  static BlockMask from_csr(const BlockLayout& layout, std::span<const std::int64_t> row_offsets,
                            std::span<const std::int32_t> columns);
  /// From one flag per block: kept[(head * q_blocks + q_block) * k_blocks + k_block].
  static BlockMask from_blocks(const BlockLayout& layout, std::span<const std::uint8_t> kept);
  /// From one flag per element, visible[(head * q_length + i) * k_length + j]: a block is kept when any of
  /// its elements is visible. Throws when a kept block is only partly visible, since the result would then
  /// not be the mask that was given; choose smaller blocks or use a bias.
  static BlockMask from_dense(const BlockLayout& layout, std::span<const std::uint8_t> visible);

  /// Blocks at most `radius` blocks away from the diagonal block.
  static BlockMask local(const BlockLayout& layout, std::int64_t radius);
  /// Sparse Transformer, strided: fewer than `stride` blocks away from the diagonal block, or a multiple of
  /// `stride` blocks away.
  static BlockMask strided(const BlockLayout& layout, std::int64_t stride);
  /// Sparse Transformer, fixed: the same group of `stride` blocks as the diagonal block, or one of the last
  /// `summary` blocks of any group.
  static BlockMask fixed(const BlockLayout& layout, std::int64_t stride, std::int64_t summary = 1);
  /// BigBird: local with `radius`, the first `global` block rows and columns, and `random` further blocks
  /// per row.
  static BlockMask big_bird(const BlockLayout& layout, std::int64_t radius, std::int64_t global,
                            std::int64_t random, std::uint64_t seed = 0);
  /// Butterfly: the diagonal block, and the blocks whose index differs from its index in exactly one bit.
  static BlockMask butterfly(const BlockLayout& layout);
  /// A share `density` in (0, 1] of all blocks, spread evenly over the rows, drawn anew for each head.
  static BlockMask random(const BlockLayout& layout, double density, std::uint64_t seed = 0);

  /// True unless the mask is empty (keeps everything).
  explicit operator bool() const noexcept { return data_ != nullptr; }

  /// The sizes it was made for; all zero for an empty mask.
  [[nodiscard]] const BlockLayout& layout() const noexcept;
  /// Number of blocks of queries.
  [[nodiscard]] std::int64_t q_blocks() const noexcept;
  /// Number of blocks of keys.
  [[nodiscard]] std::int64_t k_blocks() const noexcept;
  /// Number of kept blocks, over all heads of the mask.
  [[nodiscard]] std::int64_t kept() const noexcept;
  /// Kept blocks as a share of all; 1 for an empty mask.
  [[nodiscard]] double density() const noexcept;
  /// The key blocks that block row `q_block` keeps, ascending. `head` counts within layout().heads.
  [[nodiscard]] std::span<const std::int32_t> row(std::int64_t head, std::int64_t q_block) const;
  /// The query blocks that keep `k_block`, ascending.
  [[nodiscard]] std::span<const std::int32_t> column(std::int64_t head, std::int64_t k_block) const;
  /// One line of '#' (kept) and '.' per block row, for one head.
  [[nodiscard]] std::string draw(std::int64_t head = 0) const;

  /// Copies the mask to a GPU now, so that the first call there need not. A mask is copied once for each GPU that uses
  /// it, and the copy lives as long as the mask: keep the mask for as long as a captured CUDA graph is replayed.
  /// Does nothing for the CPU or an empty mask. Throws Error: unsupported when there is no such GPU, out_of_memory,
  /// device_failure.
  void prepare(Device device) const;

  /// What the object shares; internal.
  struct Data;
  /// The shared data, null for an empty mask; internal.
  [[nodiscard]] const Data* data() const noexcept { return data_.get(); }

 private:
  explicit BlockMask(std::shared_ptr<const Data> data) noexcept : data_(std::move(data)) {}
  std::shared_ptr<const Data> data_;
};

/// Packed sequences (varlen): sequence s owns the tokens q[s] .. q[s + 1] and the keys k[s] .. k[s + 1] of
/// tensors whose batch is 1. Sequences may be empty.
///
/// On the CPU all of this is checked. On a GPU the lengths lie in its memory, where a call cannot look without waiting: they
/// must ascend from 0 to at most the tensors' lengths, and no sequence may be longer than `max_q` and `max_k` say. Otherwise
/// rows of the results may stay unwritten, and memory beside the tensors and the workspace may be read and written.
struct Lengths {
  const std::int32_t* q = nullptr;  ///< count + 1 cumulative lengths from 0, where the data lives.
  const std::int32_t* k = nullptr;  ///< Likewise for the keys.
  std::int64_t count = 0;           ///< Number of sequences.
  std::int64_t max_q = 0;           ///< The longest query sequence, or more; 0: find out (CPU only).
  std::int64_t max_k = 0;           ///< The longest key sequence, or more; 0: find out (CPU only).
};

/// Which keys a query may see. Row i sees column j when
/// i + d - left <= j <= i + d + right (a bound of -1 is no bound), the block that holds (i, j) is kept, and
/// both belong to the same packed sequence; d is the diagonal, -2^48 to 2^48. A row that sees nothing gives 0.
struct Mask {
  std::int64_t left = -1;                  ///< Keys seen before the diagonal; -1: all.
  std::int64_t right = -1;                 ///< Keys seen after the diagonal; -1: all; 0: causal.
  Align align = Align::bottom_right;       ///< Where the diagonal lies.
  std::optional<std::int64_t> diagonal{};  ///< An explicit d in global positions; overrides `align`.
  BlockMask blocks{};                      ///< Kept blocks; empty: all.
  Lengths lengths{};                       ///< Packed sequences; count 0: none.
};

/// No query sees a key after it.
inline Mask causal(Align align = Align::bottom_right) { return {.right = 0, .align = align}; }

/// Causal along an explicit diagonal: row i sees j <= i + diagonal, in global positions.
inline Mask causal_at(std::int64_t diagonal) { return {.right = 0, .diagonal = diagonal}; }

/// Only keys at most `left` before and `right` after the diagonal, inclusive; -1: no bound.
inline Mask window(std::int64_t left, std::int64_t right, Align align = Align::bottom_right) {
  return {.left = left, .right = right, .align = align};
}

/// Only the blocks that are kept.
inline Mask block_sparse(BlockMask blocks) { return {.blocks = std::move(blocks)}; }

/// Packed sequences.
inline Mask packed(const Lengths& lengths) { return {.lengths = lengths}; }

/// What both masks let through: `causal() & window(512, -1) & block_sparse(blocks)`.
/// Throws Error (invalid_argument) when both sides bound the band around different diagonals, or both have
/// a block mask or lengths.
TESSERA_API Mask operator&(const Mask& a, const Mask& b);

}  // namespace tessera
