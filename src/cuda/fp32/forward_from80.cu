#include "cuda/fp32/forward_kernel.cuh"
#include "cuda/fp32/table.cuh"

namespace tessera::cuda::fp32 {

const void* halves_forward(int dim, Instance instance) {
  return with_dim(
      dim, [&]<auto Dim>(Use<Dim>) {
        return with_instance(
            instance, []<auto I>(Use<I>) {
              return reinterpret_cast<const void*>(
                  forward_kernel<Use<forward_config(Multiply::halves, Dim, I)>>);
            });
      });
}

}  // namespace tessera::cuda::fp32
