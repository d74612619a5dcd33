// A plugin with the static library inside, as plugin_test loads and unloads it.
#include <array>
#include <vector>

#include "tessera/tessera.h"

// Whether this machine has OpenBLAS, which `standard` needs.
extern "C" __attribute__((visibility("default"))) bool plugin_has_standard() {
  try {
    (void)tessera::plan({.algorithm = tessera::Algorithm::standard},
                        tessera::Shapes{.q_length = 8, .k_length = 8});
    return true;
  } catch (const tessera::Error&) {
    return false;
  }
}

// Attention over equal values, which are the result, with so many threads. Whether it is right.
extern "C" __attribute__((visibility("default"))) bool plugin_call(int threads, bool standard) {
  constexpr tessera::Extents kShape = {1, 64, 4, 32};
  const std::vector<float> in(64 * 4 * 32, 0.5F);
  std::vector<float> out(in.size());
  tessera::forward({.algorithm = standard ? tessera::Algorithm::standard : tessera::Algorithm::automatic},
                   {.q = tessera::tensor(in.data(), kShape),
                    .k = tessera::tensor(in.data(), kShape),
                    .v = tessera::tensor(in.data(), kShape),
                    .out = tessera::tensor(out.data(), kShape)},
                   {.threads = threads});
  return out == in;
}
