#include "cuda/fp32/bias_kernel.cuh"
#include "cuda/fp32/table.cuh"

namespace tessera::cuda::fp32 {

const void* halves_bias_gradient(int dim) {
  return with_dim(
      dim, []<auto Dim>(Use<Dim>) {
        return reinterpret_cast<const void*>(
            bias_gradient_kernel<Use<bias_gradient_config(Multiply::halves, Dim)>>);
      });
}

}  // namespace tessera::cuda::fp32
