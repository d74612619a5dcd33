// Products of bf16 on AMX tiles: C (16 rows x 16 lanes of fp32) += A (16 rows x 32) B (16 pairs x
// 16 lanes), two by two. Included once, for Highway's target AVX3. The tile instructions are
// written out, so no function is compiled for AMX and none runs before Session.
#pragma once

#include "core/band.h"
#include "cpu/flash2/bf16/pairs-inl.h"
#include "cpu/flash2/vector/product-inl.h"

// Tiles 0 to 3 are C (row by row), 4 and 5 are A, 6 and 7 are B. Strides in bytes.
#define TESSERA_TILE_ZERO(tile) asm volatile("tilezero %%tmm" #tile ::)
#define TESSERA_TILE_LOAD(tile, from, stride) \
  asm volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(from), "r"(stride) : "memory")
#define TESSERA_TILE_STORE(tile, to, stride) \
  asm volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(to), "r"(stride) : "memory")
#define TESSERA_TILE_MULTIPLY(c, a, b) asm volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)

TESSERA_BF16_BEGIN
namespace tessera::cpu::HWY_NAMESPACE::bf16 {

class Amx {
 public:
  static constexpr std::int64_t kDepth = 32;    // contractions are multiples of this
  static constexpr std::int64_t kRowStep = 32;  // rows of A that a product touches: a multiple of this
  static constexpr std::int64_t kStrip = 2;     // vectors of rows taken at once around the diagonal
  static constexpr std::int64_t kPanel = 2;     // vectors of a panel of accumulators
  static constexpr bool kStoresSums = true;     // whether product() leaves its sums in memory

  // A thread's tiles, all of 16 rows x 64 bytes, for as long as this lives.
  struct Session {
    Session() {
      alignas(64) std::uint8_t configuration[64] = {1};  // palette 1
      for (int tile = 0; tile < 8; ++tile) {
        configuration[16 + 2 * tile] = 64;  // bytes per row
        configuration[48 + tile] = 16;      // rows
      }
      asm volatile("ldtilecfg %0" ::"m"(configuration));
    }
    ~Session() { asm volatile("tilerelease" ::); }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
  };

  // K^T or V^T as A operand, packed for a contraction over keys: panels of 32 keys, in each a row
  // of 16 pairs for every c. The stride is a panel.
  static std::int64_t transposed_stride(std::int64_t dim) { return round_up(dim, kRowStep) * kPairs; }
  static std::int64_t transposed_size(std::int64_t keys, std::int64_t dim) {
    return round_up(keys, kDepth) / kDepth * transposed_stride(dim);
  }
  static std::int64_t transposed_offset(std::int64_t stride, std::int64_t key) {
    return key / kDepth * stride;
  }
  static Pair transposed_pair(const Pair* packed, std::int64_t stride, std::int64_t c, std::int64_t pair) {
    return packed[pair / kPairs * stride + c * kPairs + pair % kPairs];
  }
  // `keys` rows, a multiple of kDepth; rows.row is a multiple of kRowStep.
  static void pack_transposed(const PackedRows& rows, std::int64_t keys, Pair* to) {
    alignas(64) Pair lines[kPairs * 256];
    for (std::int64_t j = 0; j < keys; j += kDepth, to += transposed_stride(rows.row)) {
      interleave_rows(PackedRows{rows.data + j * rows.row, rows.row}, kDepth, lines, rows.row);
      transpose(reinterpret_cast<const float*>(lines), rows.row, kPairs, rows.row,
                reinterpret_cast<float*>(to), kPairs);
    }
  }

  // Sums over `pairs` of A (rows) times B, left at `to` (whose rows up to a multiple of 32 are
  // written) and then handed to epilogue(row, vector, sum) in blocks: sum[i][x] is that of row + i
  // and vector + x. `rows` is even. Some rows are multiplied before the first is handed over, so
  // that the tiles do not wait for the vectors.
  template <int Vectors, typename Epilogue>
  static HWY_INLINE void product(const Pair* a, std::int64_t a_row, const Pair* b, std::int64_t b_row,
                                 std::int64_t pairs, std::int64_t rows, float* to, std::int64_t to_row,
                                 const Epilogue& epilogue) {
    constexpr std::int64_t kBatch = 64;
    for (std::int64_t begin = 0; begin < rows; begin += kBatch) {
      const std::int64_t end = std::min(begin + kBatch, rows);
      product<Vectors>(a + begin * a_row, a_row, b, b_row, pairs, end - begin, to + begin * to_row, to_row);
      std::int64_t r = begin;
      for (; r + 4 <= end; r += 4) finish<4, Vectors>(to + r * to_row, to_row, r, epilogue);
      for (; r < end; r += 2) finish<2, Vectors>(to + r * to_row, to_row, r, epilogue);
    }
  }

  // The same sums, left at `to` alone.
  template <int Vectors>
  static HWY_INLINE void product(const Pair* a, std::int64_t a_row, const Pair* b, std::int64_t b_row,
                                 std::int64_t pairs, std::int64_t rows, float* to, std::int64_t to_row) {
    static_assert(Vectors % 2 == 0);
    for (std::int64_t r = 0; r < rows; r += kBlock) {
      for (int v = 0; v < Vectors; v += 2) {
        const Operands operands{a + r * a_row, a_row * kPairBytes, kPairs, b + v * kLanes,
                                b_row,         pairs / kPairs};
        multiply_to(operands, rows - r > kTile, to + r * to_row + v * kLanes, to_row);
      }
    }
  }

  // C += A B for `rows` rows and `vectors` vectors (an even number). range_of(r, count) gives the
  // pairs that matter to rows r .. r + count. Fresh accumulators have rows up to a multiple of 32.
  template <Walk W, typename RangeOf>
  static HWY_INLINE void accumulate(const Pair* a, std::int64_t a_stride, const Pair* b, std::int64_t b_row,
                                    const Accumulators& c, std::int64_t rows, std::int64_t vectors,
                                    const RangeOf& range_of) {
    if (c.alpha != nullptr) rescale(c, rows, vectors);
    alignas(64) float block[kBlock * kBlock];
    for (std::int64_t v = 0; v < vectors; v += 2) {
      for (std::int64_t r = 0; r < rows; r += kBlock) {
        const std::int64_t count = std::min(kBlock, rows - r);
        const core::Interval range = range_of(r, count);
        if (range.empty()) continue;
        const Operands operands{W == Walk::rows ? a + r * a_stride + range.begin
                                                : a + range.begin / kPairs * a_stride + r * kPairs,
                                W == Walk::rows ? a_stride * kPairBytes : kPairs * kPairBytes,
                                W == Walk::rows ? kPairs : a_stride,
                                b + range.begin * b_row + v * kLanes,
                                b_row,
                                (range.end - range.begin) / kPairs};
        float* to = c.data + v / kPanel * c.panel + r * c.row;
        if (c.fresh) {
          multiply_to(operands, true, to, c.row);
        } else if (count == kBlock) {
          accumulate_block(operands, to, c.row);
        } else {  // rows past the end must not change
          multiply_to(operands, count > kTile, block, kBlock);
          for (std::int64_t i = 0; i < count; ++i) {
            for (std::int64_t x = 0; x < kBlock; x += kLanes) {
              _mm512_storeu_ps(to + i * c.row + x, _mm512_add_ps(_mm512_loadu_ps(to + i * c.row + x),
                                                                 _mm512_load_ps(block + i * kBlock + x)));
            }
          }
        }
      }
    }
  }

 private:
  static constexpr std::int64_t kTile = 16, kBlock = 2 * kTile, kPairs = 16;
  static constexpr std::int64_t kPairBytes = sizeof(Pair);

  // A block of 32 rows of A and 32 lanes of B, and how to step through the contraction.
  struct Operands {
    const Pair* a;
    std::int64_t a_row_bytes;
    std::int64_t a_step;  // pairs from one step of the contraction to the next
    const Pair* b;
    std::int64_t b_row;  // pairs
    std::int64_t steps;
  };

  static HWY_INLINE void multiply(const Operands& x) {
    const Pair *a = x.a, *b = x.b;
    const Pair* lower = a + kTile * (x.a_row_bytes / kPairBytes);
    for (std::int64_t k = 0; k < x.steps; ++k, a += x.a_step, lower += x.a_step, b += kPairs * x.b_row) {
      TESSERA_TILE_LOAD(4, a, x.a_row_bytes);
      TESSERA_TILE_LOAD(6, b, x.b_row * kPairBytes);
      TESSERA_TILE_LOAD(7, b + kLanes, x.b_row * kPairBytes);
      TESSERA_TILE_MULTIPLY(0, 4, 6);
      TESSERA_TILE_LOAD(5, lower, x.a_row_bytes);
      TESSERA_TILE_MULTIPLY(1, 4, 7);
      TESSERA_TILE_MULTIPLY(2, 5, 6);
      TESSERA_TILE_MULTIPLY(3, 5, 7);
    }
  }

  // to (32 x 32) = A B; only its first 16 rows unless `both`.
  static HWY_NOINLINE void multiply_to(const Operands& x, bool both, float* to, std::int64_t to_row) {
    const std::int64_t row_bytes = to_row * static_cast<std::int64_t>(sizeof(float));
    TESSERA_TILE_ZERO(0);
    TESSERA_TILE_ZERO(1);
    if (both) {
      TESSERA_TILE_ZERO(2);
      TESSERA_TILE_ZERO(3);
      multiply(x);
      TESSERA_TILE_STORE(2, to + kTile * to_row, row_bytes);
      TESSERA_TILE_STORE(3, to + kTile * to_row + kLanes, row_bytes);
    } else {
      const Pair *a = x.a, *b = x.b;
      for (std::int64_t k = 0; k < x.steps; ++k, a += x.a_step, b += kPairs * x.b_row) {
        TESSERA_TILE_LOAD(4, a, x.a_row_bytes);
        TESSERA_TILE_LOAD(6, b, x.b_row * kPairBytes);
        TESSERA_TILE_LOAD(7, b + kLanes, x.b_row * kPairBytes);
        TESSERA_TILE_MULTIPLY(0, 4, 6);
        TESSERA_TILE_MULTIPLY(1, 4, 7);
      }
    }
    TESSERA_TILE_STORE(0, to, row_bytes);
    TESSERA_TILE_STORE(1, to + kLanes, row_bytes);
  }

  // c (32 x 32) += A B
  static HWY_NOINLINE void accumulate_block(const Operands& x, float* c, std::int64_t c_row) {
    const std::int64_t row_bytes = c_row * static_cast<std::int64_t>(sizeof(float));
    float* lower = c + kTile * c_row;
    TESSERA_TILE_LOAD(0, c, row_bytes);
    TESSERA_TILE_LOAD(1, c + kLanes, row_bytes);
    TESSERA_TILE_LOAD(2, lower, row_bytes);
    TESSERA_TILE_LOAD(3, lower + kLanes, row_bytes);
    multiply(x);
    TESSERA_TILE_STORE(0, c, row_bytes);
    TESSERA_TILE_STORE(1, c + kLanes, row_bytes);
    TESSERA_TILE_STORE(2, lower, row_bytes);
    TESSERA_TILE_STORE(3, lower + kLanes, row_bytes);
  }

  template <int Rows, int Vectors, typename Epilogue>
  static HWY_INLINE void finish(const float* from, std::int64_t from_row, std::int64_t row,
                                const Epilogue& epilogue) {
    __m512 sum[Rows][Vectors];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) sum[r][v] = _mm512_loadu_ps(from + r * from_row + v * kLanes);
    }
    epilogue(row, 0, sum);
  }

  static void rescale(const Accumulators& c, std::int64_t rows, std::int64_t vectors) {
    for (std::int64_t v = 0; v < vectors; ++v) {
      const __m512 alpha = _mm512_loadu_ps(c.alpha + v * kLanes);
      float* at = c.data + v / kPanel * c.panel + v % kPanel * kLanes;
      for (std::int64_t r = 0; r < rows; ++r, at += c.row) {
        _mm512_storeu_ps(at, _mm512_mul_ps(_mm512_loadu_ps(at), alpha));
      }
    }
  }
};

}  // namespace tessera::cpu::HWY_NAMESPACE::bf16
TESSERA_BF16_END

#undef TESSERA_TILE_ZERO
#undef TESSERA_TILE_LOAD
#undef TESSERA_TILE_STORE
#undef TESSERA_TILE_MULTIPLY
