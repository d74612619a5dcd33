#include "cuda/fp32/fused_backward_kernel.cuh"
#include "cuda/fp32/table.cuh"

namespace tessera::cuda::fp32 {

const void* halves_fused_backward(int dim) {
  return with_dim(
      dim, []<auto Dim>(Use<Dim>) {
        return reinterpret_cast<const void*>(fused_backward_kernel<Use<fused_config(Dim)>>);
      });
}

}  // namespace tessera::cuda::fp32
