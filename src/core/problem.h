// Problem: one validated call as a plain value, the form in which every kernel receives it.
//
// `api` builds it; code below `api` never sees a Tensor. It is trivially copyable, so that a GPU
// kernel can take it as an argument.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/band.h"
#include "core/base/host_device.h"
#include "core/philox.h"
#include "tessera/attention.h"

namespace tessera::core {

// How far ALiBi's diagonal may lie from the first query or key: GPU kernels count positions in 32
// bits.
inline constexpr std::int64_t kFarthestAlibi = std::int64_t{1} << 29;

// The rows of a tensor: element (batch, head, row, 0) is data[batch * batch_stride + ...]; the last
// dimension is contiguous. Broadcast dimensions have stride 0.
struct View {
  void* data = nullptr;
  std::int64_t batch_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t row_stride = 0;

  TESSERA_HD explicit operator bool() const { return data != nullptr; }

  template <typename T>
  TESSERA_HD T* row(std::int64_t batch, std::int64_t head, std::int64_t row_index) const {
    return static_cast<T*>(data) + batch * batch_stride + head * head_stride + row_index * row_stride;
  }
};

// Kept blocks in both directions, as BlockMask has them. Without a block mask row_offsets is null.
// The arrays are in host memory while a call is planned; when the kernel runs they are in the
// memory of its device.
struct BlockView {
  std::int64_t block_q = 0, block_k = 0;
  std::int64_t q_blocks = 0, k_blocks = 0;
  std::int64_t heads = 1;                        // 1: shared
  const std::int64_t* row_offsets = nullptr;     // heads * q_blocks + 1
  const std::int32_t* columns = nullptr;         // ascending within a row
  const std::int64_t* column_offsets = nullptr;  // heads * k_blocks + 1
  const std::int32_t* rows = nullptr;            // ascending within a column

  TESSERA_HD explicit operator bool() const { return row_offsets != nullptr; }

  // The row of blocks that a query of a head lies in, and the column of blocks that a key lies in.
  TESSERA_HD std::int64_t block_row(std::int64_t q_head, std::int64_t query) const {
    return (heads == 1 ? 0 : q_head * q_blocks) + query / block_q;
  }
  TESSERA_HD std::int64_t block_column(std::int64_t q_head, std::int64_t key) const {
    return (heads == 1 ? 0 : q_head * k_blocks) + key / block_k;
  }
};

// What the queries of a group see of a block of keys by the boolean mask `visible`: none outside
// [begin, end), and all inside unless `mixed`.
struct VisibleBlock {
  static constexpr std::int64_t kKeys = 64;

  std::uint8_t begin = kKeys;
  std::uint8_t end = 0;  // at most `begin` where the block is hidden
  bool mixed = false;
};

// The boolean mask by groups of queries and blocks of keys. Strides count blocks; they are 0 along
// what is broadcast. Without a summary `blocks` is null.
struct VisibleSummary {
  const VisibleBlock* blocks = nullptr;
  std::int64_t group_rows = 1;  // queries of a group
  std::int64_t batch_stride = 0, head_stride = 0, group_stride = 0;
};

// Positions, heads and sequences are below this: dropout counts each of them in 32 bits.
inline constexpr std::int64_t kMaxPosition = std::int64_t{1} << 32;

struct Problem {
  Direction direction = Direction::forward;
  DType dtype = DType::fp32;
  Device device{};
  Algorithm algorithm = Algorithm::automatic;
  bool deterministic = false;

  std::int64_t batch = 0;     // batch entries or packed sequences
  std::int64_t q_length = 0;  // of the longest sequence
  std::int64_t k_length = 0;
  std::int64_t q_tokens = 0;  // all queries: batch * q_length, or the packed total
  std::int64_t k_tokens = 0;
  std::int64_t q_heads = 0, kv_heads = 0;
  std::int64_t qk_dim = 0, v_dim = 0;

  double scale = 1;
  double softcap = 0;  // 0: off

  std::int64_t left = kUnbounded, right = kUnbounded;
  Align align = Align::bottom_right;
  bool explicit_diagonal = false;
  std::int64_t diagonal = 0;  // global, when explicit
  BlockView blocks{};
  const std::int32_t* cumulative_q = nullptr;  // packed sequences; null: a plain batch
  const std::int32_t* cumulative_k = nullptr;
  bool packed = false;

  const float* alibi_slopes = nullptr;
  std::int64_t alibi_batch_stride = 0;

  std::uint32_t dropout_threshold = 0;  // of 2^15; meaningful when `dropout`
  double keep_scale = 1;                // of what dropout keeps
  bool dropout = false;
  std::uint64_t seed = 0, offset = 0;
  const std::uint64_t* dropout_state = nullptr;  // {seed, offset} where the data lives; null: the values

  Origin origin{};

  DType bias_dtype = DType::fp32;
  std::int64_t bias_batch = 1, bias_heads = 1, bias_rows = 1;  // 1: broadcast

  View q{}, k{}, v{}, bias{}, out{}, lse{};
  View grad_out{}, grad_lse{}, grad_q{}, grad_k{}, grad_v{}, grad_bias{};
  bool has_bias = false, has_lse = false, has_grad_lse = false;  // also true while planning without data
  bool has_grad_q = false, has_grad_k = false, has_grad_v = false, has_grad_bias = false;

  View visible{};  // bytes: a query may attend to a key where they are not 0
  std::int64_t visible_batch = 1, visible_heads = 1, visible_rows = 1;  // 1: broadcast
  bool has_visible = false;
  VisibleSummary visible_summary{};  // which a kernel has made in its workspace

  TESSERA_HD std::int64_t kv_head(std::int64_t q_head) const { return q_head / (q_heads / kv_heads); }
  TESSERA_HD std::int64_t group() const { return q_heads / kv_heads; }
};

static_assert(std::is_trivially_copyable_v<Problem>);

// One sequence of the problem: where its rows lie in the tensors, how long it is, and its band.
struct Sequence {
  std::int64_t index = 0;         // of the sequence: bias, ALiBi and dropout count by it
  std::int64_t tensor_batch = 0;  // batch index into the tensors (0 when packed)
  std::int64_t q_begin = 0, q_length = 0;
  std::int64_t k_begin = 0, k_length = 0;
  Band band{};
};

TESSERA_HD inline Sequence sequence(const Problem& p, std::int64_t index) {
  Sequence s{index, index, 0, p.q_length, 0, p.k_length, {}};
  if (p.packed) {
    s.tensor_batch = 0;
    s.q_begin = p.cumulative_q[index];
    s.q_length = p.cumulative_q[index + 1] - s.q_begin;
    s.k_begin = p.cumulative_k[index];
    s.k_length = p.cumulative_k[index + 1] - s.k_begin;
  }
  // The diagonal in local coordinates: global row = origin.row + i, global column = origin.column +
  // j.
  std::int64_t diagonal = s.k_length - s.q_length;
  if (p.explicit_diagonal || p.align == Align::top_left) {
    diagonal = p.origin.row - p.origin.column + (p.explicit_diagonal ? p.diagonal : 0);
  }
  s.band = {p.left, p.right, diagonal};
  return s;
}

// The random stream of one head of one sequence.
TESSERA_HD inline DropoutStream dropout_stream(const Problem& p, std::int64_t sequence_index,
                                               std::int64_t q_head) {
  const std::uint64_t seed = p.dropout_state != nullptr ? p.dropout_state[0] : p.seed;
  const std::uint64_t offset = p.dropout_state != nullptr ? p.dropout_state[1] : p.offset;
  return dropout_stream(seed, offset, p.origin.batch + sequence_index, p.origin.head + q_head);
}

}  // namespace tessera::core
