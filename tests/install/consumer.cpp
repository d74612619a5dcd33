// One query against two keys with equal scores: the output is the mean of the two values.
#include <tessera/tessera.h>

#include <cstdio>

int main() {
  const float q[] = {1.0F, 0.0F};
  const float k[] = {0.5F, 1.0F, 0.5F, -1.0F};
  const float v[] = {1.0F, 10.0F, 3.0F, 30.0F};
  float out[2] = {};

  tessera::forward({}, {.q = tessera::tensor(q, {1, 1, 1, 2}),
                        .k = tessera::tensor(k, {1, 2, 1, 2}),
                        .v = tessera::tensor(v, {1, 2, 1, 2}),
                        .out = tessera::tensor(out, {1, 1, 1, 2})});

  std::printf("tessera %s: %g %g\n", tessera::version(), out[0], out[1]);
  return out[0] == 2.0F && out[1] == 20.0F ? 0 : 1;
}
