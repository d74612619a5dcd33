// Matrix products by OpenBLAS, which is loaded when the first of them is wanted: only the baseline
// needs it, so nobody else should have to install it or carry its threads.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::cpu {

enum class Transpose { no, yes };

// Why OpenBLAS cannot be used here; empty: it can. Loads it.
const std::string& blas_missing();

// What was loaded, as in "OpenBLAS 0.3.21 ..."; empty: nothing. Loads it.
std::string blas_description();

// While one lives, every product runs in the thread that asks for it: parallelism is the caller's.
// OpenBLAS keeps its thread count per process, so the last one to go restores it.
class SingleThreadedBlas {
 public:
  SingleThreadedBlas();
  SingleThreadedBlas(const SingleThreadedBlas&) = delete;
  SingleThreadedBlas& operator=(const SingleThreadedBlas&) = delete;
  ~SingleThreadedBlas();
};

// C (rows x columns) = alpha A B + beta C, row-major; sizes below 2^31 and above 0. Only when
// blas_missing() is empty.
void gemm(Transpose a_transposed, Transpose b_transposed, std::int64_t rows, std::int64_t columns,
          std::int64_t depth, float alpha, const float* a, std::int64_t a_row, const float* b,
          std::int64_t b_row, float beta, float* c, std::int64_t c_row);
void gemm(Transpose a_transposed, Transpose b_transposed, std::int64_t rows, std::int64_t columns,
          std::int64_t depth, double alpha, const double* a, std::int64_t a_row, const double* b,
          std::int64_t b_row, double beta, double* c, std::int64_t c_row);

}  // namespace tessera::cpu
