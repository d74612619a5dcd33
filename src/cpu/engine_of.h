// How a source that Highway compiles once per target exports what it made: `TESSERA_ENGINE_OF(target, symbol)`
// is the address of that target's `symbol`, or null where there is none. A target that only adds instructions
// for one type counts as the vectors it is built on. Include it after highway.h, inside HWY_ONCE; the surrounding
// namespace is tessera::cpu.
#pragma once

#include <hwy/highway.h>

#include "cpu/machine/target.h"

#if HWY_TARGETS & HWY_AVX3
#define TESSERA_ENGINE_AVX512(symbol) &N_AVX3::symbol
#else
#define TESSERA_ENGINE_AVX512(symbol) nullptr
#endif
#if HWY_TARGETS & HWY_AVX2
#define TESSERA_ENGINE_AVX2(symbol) &N_AVX2::symbol
#else
#define TESSERA_ENGINE_AVX2(symbol) nullptr
#endif
#if HWY_TARGETS & HWY_SSE4
#define TESSERA_ENGINE_SSE4(symbol) &N_SSE4::symbol
#else
#define TESSERA_ENGINE_SSE4(symbol) nullptr
#endif
#if HWY_TARGETS & HWY_SVE
#define TESSERA_ENGINE_SVE(symbol) &N_SVE::symbol
#else
#define TESSERA_ENGINE_SVE(symbol) nullptr
#endif
#if HWY_TARGETS & HWY_NEON
#define TESSERA_ENGINE_NEON(symbol) &N_NEON::symbol
#else
#define TESSERA_ENGINE_NEON(symbol) nullptr
#endif

#define TESSERA_ENGINE_OF(target, symbol)                                            \
  (target_for(target, DType::fp32) == Target::avx512 ? TESSERA_ENGINE_AVX512(symbol) \
   : target_for(target, DType::fp32) == Target::avx2 ? TESSERA_ENGINE_AVX2(symbol)   \
   : target_for(target, DType::fp32) == Target::sse4 ? TESSERA_ENGINE_SSE4(symbol)   \
   : target_for(target, DType::fp32) == Target::sve  ? TESSERA_ENGINE_SVE(symbol)    \
   : target_for(target, DType::fp32) == Target::neon ? TESSERA_ENGINE_NEON(symbol)   \
                                                     : nullptr)
