// The tensors of a call as the copy engine of Hopper (TMA) sees them, for both directions of
// cuda.hopper.
#pragma once

#include <span>

#include "core/base/reason.h"
#include "core/problem.h"
#include "cuda/common/host/tensor_map.h"

namespace tessera::cuda::sm90 {

// The only compute capability that runs code for sm_90a.
inline constexpr int kCapability = 90;

// A tensor, and the rows that one copy takes of it.
struct Operand {
  const char* name;
  const core::View& view;
  DType dtype;
  RowExtents extents;
  int box_rows;
};

// A tensor with a row for each query, or for each key, of `columns` numbers.
Operand query_operand(const char* name, const core::View& view, std::int64_t columns, const core::Problem& p,
                      int box_rows);
Operand key_operand(const char* name, const core::View& view, std::int64_t columns, const core::Problem& p,
                    int box_rows);

// Whether, and why, a kernel cannot run on the problem's GPU, or not with `shared_bytes` of shared
// memory.
bool gpu_limit(const core::Problem& p, core::Reason reason);
bool shared_memory_limit(const core::Problem& p, int shared_bytes, core::Reason reason);

// Whether, and why, the copy engine cannot address one of the tensors.
bool copy_limit(std::span<const Operand> operands, core::Reason reason);

#if TESSERA_HAVE_CUDA

// The tensor map of an operand.
CUtensorMap encode(const Operand& operand);

#endif

}  // namespace tessera::cuda::sm90
