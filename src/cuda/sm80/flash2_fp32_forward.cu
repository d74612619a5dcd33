#include "cuda/flash2_fp32/forward.cuh"
#include "cuda/flash2_fp32/instances.cuh"

namespace tessera::cuda::fp32 {

const void* tf32_forward(int dim, bool featured) {
  return with_dim(
      dim, [&]<auto Dim>(Use<Dim>) {
        return with_flag(
            featured, []<auto Featured>(Use<Featured>) {
              return reinterpret_cast<const void*>(
                  forward_kernel<Use<forward_config(Multiply::tf32, Dim, Featured)>>);
            });
      });
}

}  // namespace tessera::cuda::fp32
