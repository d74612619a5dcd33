// For qemu on x86-64 with AVX2, where SVE of 256 bits and more else runs 5 to 13
// times as long as it must.
//
// qemu's code for such vectors leaves the upper halves of AVX registers in use, and
// its arithmetic, compiled for SSE, then waits for them at every instruction on
// Intel's CPUs. It computes every multiply-add of its guest by these two functions
// of libm: preloaded in their place they do the same and free the upper halves
// first. No caller keeps anything there: every vector register is lost in a call.
#include <immintrin.h>

__attribute__((target("avx,fma"))) float fmaf(float x, float y, float z) {
  _mm256_zeroupper();
  return __builtin_fmaf(x, y, z);
}

__attribute__((target("avx,fma"))) double fma(double x, double y, double z) {
  _mm256_zeroupper();
  return __builtin_fma(x, y, z);
}
