// The passes of cuda.standard over its N x N matrices between the products: a function each, on the
// caller's stream. Only in builds with CUDA.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace tessera::cuda::standard {

// The matrices of all heads: row i of head (sequence * q_heads + head) has index (sequence *
// q_heads + head) * q_length + i, and begins at index * row_stride. Rows begin on 16-byte
// boundaries, for the passes and for cuBLAS.
struct Matrices {
  float* scores = nullptr;        // S
  void* probabilities = nullptr;  // P, in the type of the tensors
  void* gradients = nullptr;      // backward: dP, then dS, likewise
  void* derivatives = nullptr;    // backward with softcap: d(capped score) / d(score), likewise
  float* delta = nullptr;         // backward: <dO, O> - d(LSE), one number per row
  std::int64_t row_stride = 0;    // elements
};

// What happens to a score between Q K^T and the softmax, in this order.
enum class Step : int { scale, softcap, alibi, bias, mask };

// ---- passes over a matrix, each reading and writing all of it ----

// S = step(S). In backward, softcap also writes the derivatives.
void edit_scores(const core::Problem& p, const Matrices& m, Step step, void* stream);
// P = softmax(S), and the LSE.
void softmax(const core::Problem& p, const Matrices& m, void* stream);
// matrix *= 0 or 1 / (1 - probability). The matrix is P or its gradient.
void dropout(const core::Problem& p, const Matrices& m, void* matrix, void* stream);
// P = exp(S - LSE), with the LSE of the forward call.
void probabilities(const core::Problem& p, const Matrices& m, void* stream);
// dS = P o (dP - delta).
void score_gradients(const core::Problem& p, const Matrices& m, void* stream);
// dS = dS o derivatives.
void multiply_derivatives(const core::Problem& p, const Matrices& m, void* stream);

// ---- the fused passes: all of the above at once, on scaled scores ----

void fused_softmax(const core::Problem& p, const Matrices& m, void* stream);
// S and dP become P and dS. If there is no matrix for the derivatives, they are multiplied in.
void fused_gradients(const core::Problem& p, const Matrices& m, void* stream);

// ---- rows of the tensors ----

// d(bias): every element sums what was broadcast from it, in a fixed order.
void bias_gradient(const core::Problem& p, const Matrices& m, void* stream);

enum class Side : int { queries, keys };

// Copies the rows of a tensor to a dense array (sequences, heads, longest sequence, columns rounded
// up to 8), with zeros beyond the end of a sequence and of a row.
void gather(const core::Problem& p, const core::View& from, Side side, std::int64_t columns, void* to,
            void* stream);
// Copies back from such an array, in fp32 or in the type of the tensors. Null: writes zeros.
void scatter(const core::Problem& p, const void* from, DType type, Side side, std::int64_t columns,
             const core::View& to, void* stream);

// ---- non-finite operands ----

// cuBLAS multiplies the zeros of masked elements like all others, and 0 times infinity or NaN is
// NaN: a row would be affected by keys that it does not see. `find_non_finite` flags the heads
// (sequence * heads + head) of a tensor with such values; `repair` computes a product of these
// heads again and skips the zeros.
void find_non_finite(const core::Problem& p, const core::View& tensor, Side side, std::int64_t columns,
                     std::int32_t* flags, void* stream);

enum class Product : int { out, grad_q, grad_k, grad_v };

void repair(const core::Problem& p, const Matrices& m, Product product, const std::int32_t* flags,
            void* stream);

}  // namespace tessera::cuda::standard
