// C += A B for tiles that fit in a cache, in plain C++ that compilers vectorise.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace tessera::cpu::portable {

// A matrix in memory: element (r, c) is data[r * row + c * column].
template <typename T>
struct Operand {
  const T* data;
  std::int64_t row;
  std::int64_t column = 1;
};

namespace small_gemm_detail {

inline constexpr int kRows = 4;
inline constexpr int kColumns = 8;

// A block of kRows x kColumns in registers. The sums of one call are added to C at the end, which
// keeps sums short and their rounding errors small.
template <int Rows, typename T>
inline void block(std::int64_t depth, const Operand<T>& a, const T* b, std::int64_t b_row, T* c,
                  std::int64_t c_row) {
  T sum[Rows][kColumns] = {};
  for (std::int64_t k = 0; k < depth; ++k) {
    const T* b_line = b + k * b_row;
    for (int r = 0; r < Rows; ++r) {
      const T factor = a.data[r * a.row + k * a.column];
      for (int x = 0; x < kColumns; ++x) sum[r][x] += factor * b_line[x];
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int x = 0; x < kColumns; ++x) c[r * c_row + x] += sum[r][x];
  }
}

template <typename T>
inline void block_column(std::int64_t rows, std::int64_t columns, std::int64_t depth, const Operand<T>& a,
                         const T* b, std::int64_t b_row, T* c, std::int64_t c_row) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t x = 0; x < columns; ++x) {
      T sum = 0;
      for (std::int64_t k = 0; k < depth; ++k) sum += a.data[r * a.row + k * a.column] * b[k * b_row + x];
      c[r * c_row + x] += sum;
    }
  }
}

}  // namespace small_gemm_detail

// C (rows x columns, row-major with c_row) += A (rows x depth) B (depth x columns, row-major with
// b_row). Every element is one sum in ascending order of the depth, whatever the sizes around it: a
// row's result does not depend on how many rows are computed with it.
template <typename T>
void accumulate_product(std::int64_t rows, std::int64_t columns, std::int64_t depth, Operand<T> a, const T* b,
                        std::int64_t b_row, T* c, std::int64_t c_row) {
  using namespace small_gemm_detail;
  std::int64_t x = 0;
  for (; x + kColumns <= columns; x += kColumns) {
    std::int64_t r = 0;
    auto rows_at = [&](std::int64_t first) { return Operand<T>{a.data + first * a.row, a.row, a.column}; };
    for (; r + kRows <= rows; r += kRows) {
      block<kRows>(depth, rows_at(r), b + x, b_row, c + r * c_row + x, c_row);
    }
    for (; r < rows; ++r) block<1>(depth, rows_at(r), b + x, b_row, c + r * c_row + x, c_row);
  }
  if (x < columns) block_column(rows, columns - x, depth, a, b + x, b_row, c + x, c_row);
}

// The same without the terms in which A is 0, where B may hold NaN or infinities.
template <typename T>
void accumulate_nonzero(std::int64_t rows, std::int64_t columns, std::int64_t depth, Operand<T> a, const T* b,
                        std::int64_t b_row, T* c, std::int64_t c_row) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t k = 0; k < depth; ++k) {
      const T weight = a.data[r * a.row + k * a.column];
      if (weight == 0) continue;
      for (std::int64_t x = 0; x < columns; ++x) c[r * c_row + x] += weight * b[k * b_row + x];
    }
  }
}

template <typename T>
bool all_finite(const T* values, std::int64_t count) {
  return std::all_of(values, values + count, [](T x) { return std::isfinite(x); });
}

}  // namespace tessera::cpu::portable
