// What cuda.standard does to its N x N matrices between the products: one function per pass, each on the caller's
// stream. Only in builds with CUDA.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace tessera::cuda::standard {

// The matrices of all heads, row (sequence * q_heads + head) * q_length + i of each at i * row_stride. Rows begin on
// 16-byte boundaries: for the passes and for cuBLAS.
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

// ---- passes over a matrix, each reading and writing all of it ------------------------------------------------

// S = step(S). Softcap in backward also writes the derivatives.
void edit_scores(const core::Problem& p, const Matrices& m, Step step, void* stream);
// P = softmax(S), and the LSE.
void softmax(const core::Problem& p, const Matrices& m, void* stream);
// matrix *= 0 or 1 / (1 - probability); `matrix` is P or its gradient.
void dropout(const core::Problem& p, const Matrices& m, void* matrix, void* stream);
// P = exp(S - LSE), by the LSE that the call was given.
void probabilities(const core::Problem& p, const Matrices& m, void* stream);
// dS = P o (dP - delta).
void score_gradients(const core::Problem& p, const Matrices& m, void* stream);
// dS = dS o derivatives.
void multiply_derivatives(const core::Problem& p, const Matrices& m, void* stream);

// ---- the fused passes: as above, but scaled scores come in and everything happens at once ---------------------

void fused_softmax(const core::Problem& p, const Matrices& m, void* stream);
// S and dP become P and dS. The derivatives are multiplied in, unless there is a matrix for them.
void fused_gradients(const core::Problem& p, const Matrices& m, void* stream);

// ---- rows of the tensors ------------------------------------------------------------------------------------

// d(bias): every element sums what was broadcast from it, in a fixed order.
void bias_gradient(const core::Problem& p, const Matrices& m, void* stream);

enum class Side : int { queries, keys };

// Copies the rows of a tensor to a dense (sequences, heads, longest, columns rounded up to 8) array; past the end of a
// sequence and of a row stand zeros.
void gather(const core::Problem& p, const core::View& from, Side side, std::int64_t columns, void* to,
            void* stream);
// The way back, from fp32 or the type of the tensors. Null: zeros.
void scatter(const core::Problem& p, const void* from, DType type, Side side, std::int64_t columns,
             const core::View& to, void* stream);

// ---- operands that are not finite -----------------------------------------------------------------------------

// cuBLAS multiplies the zeros of masked elements like all others, and 0 times infinity or NaN is NaN: a row would see
// keys that are masked. `find_non_finite` flags the heads (sequence * heads + head) of a tensor that have such numbers,
// `repair` computes one product anew for these heads, leaving out the zeros.
void find_non_finite(const core::Problem& p, const core::View& tensor, Side side, std::int64_t columns,
                     std::int32_t* flags, void* stream);

enum class Product : int { out, grad_q, grad_k, grad_v };

void repair(const core::Problem& p, const Matrices& m, Product product, const std::int32_t* flags,
            void* stream);

}  // namespace tessera::cuda::standard
