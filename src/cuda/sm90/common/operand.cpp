#include "cuda/sm90/common/operand.h"

#include "cuda/common/host/limits.h"

namespace tessera::cuda::sm90 {

// Packed sequences are one batch entry.
Operand query_operand(const char* name, const core::View& view, std::int64_t columns, const core::Problem& p,
                      int box_rows) {
  return {name,
          view,
          p.dtype,
          {columns, p.packed ? p.q_tokens : p.q_length, p.q_heads, p.packed ? 1 : p.batch},
          box_rows};
}

Operand key_operand(const char* name, const core::View& view, std::int64_t columns, const core::Problem& p,
                    int box_rows) {
  return {name,
          view,
          p.dtype,
          {columns, p.packed ? p.k_tokens : p.k_length, p.kv_heads, p.packed ? 1 : p.batch},
          box_rows};
}

bool gpu_limit(const core::Problem& p, core::Reason reason) {
  return cuda::gpu_limit(p, {.least = kCapability, .most = kCapability}, Code::sm90, reason);
}

bool shared_memory_limit(const core::Problem& p, int shared_bytes, core::Reason reason) {
  return cuda::shared_memory_limit(p, Code::sm90, shared_bytes, reason);
}

bool copy_limit(std::span<const Operand> operands, core::Reason reason) {
  for (const Operand& operand : operands) {
    if (tensor_map_obstacle(operand.name, operand.view, operand.dtype, operand.extents, reason)) return true;
  }
  return false;
}

#if TESSERA_HAVE_CUDA

CUtensorMap encode(const Operand& operand) {
  return encode_tensor_map(tensor_map_spec(operand.view, operand.dtype, operand.extents, operand.box_rows));
}

#endif

}  // namespace tessera::cuda::sm90
