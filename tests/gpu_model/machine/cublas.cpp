// The model's own cuBLAS, in place of src/cuda/baselines/standard/cublas.cpp: the products that the
// standard kernels ask for, with plain loops.
#include "cuda/baselines/standard/cublas.h"

#include "core/base/float16.h"

namespace tessera::cuda {
namespace {

float load(const BatchedMatrix& m, std::int64_t at) {
  switch (m.dtype) {
    case DType::fp16: return core::to_float(static_cast<const core::Half*>(m.data)[at]);
    case DType::bf16: return core::to_float(static_cast<const core::BFloat16*>(m.data)[at]);
    default: return static_cast<const float*>(m.data)[at];
  }
}

void store(const BatchedMatrix& m, std::int64_t at, float x) {
  switch (m.dtype) {
    case DType::fp16: static_cast<core::Half*>(m.data)[at] = core::to_half(x); break;
    case DType::bf16: static_cast<core::BFloat16*>(m.data)[at] = core::to_bfloat16(x); break;
    default: static_cast<float*>(m.data)[at] = x;
  }
}

std::int64_t index(const BatchedMatrix& m, Transpose transposed, std::int64_t first, std::int64_t row,
                   std::int64_t column) {
  return first + (transposed == Transpose::yes ? column * m.row_stride + row : row * m.row_stride + column);
}

// One matrix of the batch.
void multiply_one(const BatchedProduct& p, std::int64_t a, std::int64_t b, std::int64_t c) {
  for (std::int64_t row = 0; row < p.rows; ++row) {
    for (std::int64_t column = 0; column < p.columns; ++column) {
      float sum = 0;
      for (std::int64_t k = 0; k < p.depth; ++k)
        sum += load(p.a, index(p.a, p.a_transposed, a, row, k)) *
               load(p.b, index(p.b, p.b_transposed, b, k, column));
      const std::int64_t at = index(p.c, Transpose::no, c, row, column);
      store(p.c, at, p.alpha * sum + (p.beta == 0 ? 0 : p.beta * load(p.c, at)));
    }
  }
}

}  // namespace

const std::string& cublas_missing() {
  static const std::string nothing;
  return nothing;
}

std::string cublas_description() { return "the model's products"; }

Cublas::Lease::Lease() : context(1), handle(nullptr) {}
Cublas::Lease::~Lease() = default;

Cublas::Cublas(void* /*stream*/, void* /*workspace*/, std::size_t /*workspace_bytes*/) {}

void Cublas::multiply(const BatchedProduct& p) const {
  auto offset = [](const BatchedMatrix& m, std::int64_t i, std::int64_t j, std::int64_t k) {
    return i * m.stride[0] + j * m.stride[1] + k * m.stride[2];
  };
  for (std::int64_t i = 0; i < p.batch[0]; ++i)
    for (std::int64_t j = 0; j < p.batch[1]; ++j)
      for (std::int64_t k = 0; k < p.batch[2]; ++k)
        multiply_one(p, offset(p.a, i, j, k), offset(p.b, i, j, k), offset(p.c, i, j, k));
}

}  // namespace tessera::cuda
