// Matrix products by cuBLAS. The first product loads it: only the baseline needs it, and everything
// else works without it. Builds without CUDA do not have it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "tessera/tensor.h"

namespace tessera::cuda {

// Why cuBLAS cannot be used here; empty if it can. Loads it.
const std::string& cublas_missing();

// The library that was loaded, as in "cuBLAS 13.0.2"; empty if none. Loads it.
std::string cublas_description();

// The workspace that cuBLAS recommends on a GPU of this compute capability (10 * major + minor). It
// would allocate as much if it were given none.
constexpr std::size_t cublas_workspace_bytes(int capability) {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  return capability >= 90 ? 32 * kMiB : 4 * kMiB;
}

enum class Transpose { no, yes };

// A batch of row-major matrices: one for each sequence, key/value head, and query head of its
// group.
struct BatchedMatrix {
  void* data = nullptr;
  DType dtype = DType::fp32;
  // In elements, as all strides. At least the matrix's width, and below 2^31.
  std::int64_t row_stride = 0;
  std::array<std::int64_t, 3> stride{};
};

// C (rows x columns) = alpha A B + beta C for each of the batch. A and B may be stored transposed.
// 16-bit numbers are multiplied exactly and summed in fp32; fp32 is multiplied as fp32, without
// TF32.
struct BatchedProduct {
  Transpose a_transposed = Transpose::no, b_transposed = Transpose::no;
  std::int64_t rows = 0, columns = 0, depth = 0;  // above 0 and below 2^31
  std::array<std::int64_t, 3> batch{1, 1, 1};
  float alpha = 1, beta = 0;
  // One call of cuBLAS per sequence: its algorithm depends on the size of the batch, and the result
  // of a row must not.
  bool each_sequence = false;
  BatchedMatrix a{}, b{}, c{};
};

// cuBLAS on one stream, for one call. It takes a handle from a pool and memory from the caller, so
// that nothing is allocated and the products can be captured in a CUDA graph. A context of the
// device must be current.
class Cublas {
 public:
  Cublas(void* stream, void* workspace, std::size_t workspace_bytes);
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;

  // Takes as few calls of cuBLAS as the strides allow. Throws Error (device_failure) with cuBLAS's
  // own words.
  void multiply(const BatchedProduct& product) const;

 private:
  struct Lease {  // returns the handle to the pool, also when the constructor throws
    Lease();
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    std::uint64_t context;  // the handle's, which is the current one
    void* handle;
  };
  Lease lease_;
};

}  // namespace tessera::cuda
