// Matrix products by OpenBLAS for both accumulator types.
#pragma once

#include <cblas.h>

#include <cstdint>
#include <mutex>

namespace tessera::cpu {

enum class Transpose { no, yes };

// Held during a call of a sequential OpenBLAS, which is not safe from several threads: its buffers are handed
// out without a lock (measured with Debian's 0.3.21: 1 in 130 of concurrent products is wrong). The builds
// with threads of their own lock by themselves.
inline std::unique_lock<std::mutex> blas_lock() {
  static std::mutex mutex;
  static const bool sequential = openblas_get_parallel() == OPENBLAS_SEQUENTIAL;
  return sequential ? std::unique_lock(mutex) : std::unique_lock<std::mutex>();
}

// C (rows x columns) = alpha A B + beta C, row-major; sizes below 2^31 and above 0.
template <typename T>
void gemm(Transpose a_transposed, Transpose b_transposed, std::int64_t rows, std::int64_t columns,
          std::int64_t depth, T alpha, const T* a, std::int64_t a_row, const T* b, std::int64_t b_row, T beta,
          T* c, std::int64_t c_row) {
  auto flag = [](Transpose transposed) { return transposed == Transpose::yes ? CblasTrans : CblasNoTrans; };
  auto narrow = [](std::int64_t size) { return static_cast<blasint>(size); };
  const std::unique_lock lock = blas_lock();
  if constexpr (sizeof(T) == 8) {
    cblas_dgemm(CblasRowMajor, flag(a_transposed), flag(b_transposed), narrow(rows), narrow(columns),
                narrow(depth), alpha, a, narrow(a_row), b, narrow(b_row), beta, c, narrow(c_row));
  } else {
    cblas_sgemm(CblasRowMajor, flag(a_transposed), flag(b_transposed), narrow(rows), narrow(columns),
                narrow(depth), alpha, a, narrow(a_row), b, narrow(b_row), beta, c, narrow(c_row));
  }
}

}  // namespace tessera::cpu
