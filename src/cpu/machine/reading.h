// How cpu.decode reads K and V on this CPU. Results do not depend on it.
#pragma once

#include <cstdint>

namespace tessera::cpu {

struct Reading {
  std::int64_t cached_bytes = 0;  // of K and V of a call that probably lie in the caches
  // Whether prefetched lines pass the caches (prefetchnta: they are the first to leave again) or
  // stay in the second level. On Zen 5 lines that pass come 1.2 to 1.8 times as fast
  // (docs/notebook/cpu.md). Intel's CPUs fetch them to the first level alone, where a line waits in
  // one of few buffers.
  bool passing = false;
};

// Throws Error (invalid_argument) when TESSERA_DECODE_PREFETCH is neither `keep` nor `pass`.
Reading reading();

}  // namespace tessera::cpu
