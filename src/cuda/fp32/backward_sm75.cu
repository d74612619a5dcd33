#include "cuda/fp32/backward_kernel.cuh"
#include "cuda/fp32/table.cuh"

namespace tessera::cuda::fp32 {

const void* fma_backward(Gradient gradient, int dim, bool featured) {
  return with_dim(
      dim, [&]<auto Dim>(Use<Dim>) {
        return with_flag(
            featured, [&]<auto Featured>(Use<Featured>) {
              auto pass = []<auto G>(Use<G>) {
                return reinterpret_cast<const void*>(
                    backward_kernel<Use<backward_config(Multiply::fma, G, Dim, Featured)>>);
              };
              if (gradient == Gradient::queries) return pass(Use<Gradient::queries>{});
              if constexpr (together(Dim, Featured)) {
                return pass(Use<Gradient::keys_and_values>{});
              } else {
                return gradient == Gradient::keys ? pass(Use<Gradient::keys>{})
                                                  : pass(Use<Gradient::values>{});
              }
            });
      });
}

}  // namespace tessera::cuda::fp32
