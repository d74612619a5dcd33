// Rows of a tensor as accumulators and back, in plain C++: for Target::portable and cpu.standard.
#pragma once

#include <cstdint>

#include "core/band.h"
#include "core/base/float16.h"

namespace tessera::cpu {

// to[r][0 .. columns) = scale * `rows` of a tensor; row_of(i) gives the address of row i.
template <typename T, typename RowOf>
void load_rows(const core::Interval& rows, std::int64_t columns, core::Accumulator<T> scale,
               const RowOf& row_of, core::Accumulator<T>* to) {
  for (std::int64_t i = rows.begin; i < rows.end; ++i, to += columns) {
    const T* from = row_of(i);
    for (std::int64_t c = 0; c < columns; ++c) to[c] = core::Element<T>::load(from[c]) * scale;
  }
}

// to[c][i - rows.begin] = row i of a tensor: the rows transposed, with `stride` from one line to
// the next.
template <typename T, typename RowOf>
void load_transposed(const core::Interval& rows, std::int64_t columns, const RowOf& row_of,
                     core::Accumulator<T>* to, std::int64_t stride) {
  for (std::int64_t i = rows.begin; i < rows.end; ++i) {
    const T* from = row_of(i);
    for (std::int64_t c = 0; c < columns; ++c) {
      to[c * stride + i - rows.begin] = core::Element<T>::load(from[c]);
    }
  }
}

// `rows` of a tensor = scale * from.
template <typename T, typename RowOf>
void store_rows(const core::Interval& rows, std::int64_t columns, core::Accumulator<T> scale,
                const core::Accumulator<T>* from, const RowOf& row_of) {
  for (std::int64_t i = rows.begin; i < rows.end; ++i, from += columns) {
    T* to = row_of(i);
    for (std::int64_t c = 0; c < columns; ++c) to[c] = core::Element<T>::store(from[c] * scale);
  }
}

}  // namespace tessera::cpu
