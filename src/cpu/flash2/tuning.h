// What the plans of cpu.flash2 take from the machine and the environment.
#pragma once

#include <cstdint>

namespace tessera::cpu {

struct Tuning {
  std::int64_t l1_bytes = 32 << 10;
  std::int64_t l2_bytes = 1 << 20;
  bool has_two_avx512_units = false;  // cpu_info.h
  std::int64_t forced_block_k = 0;    // keys per step, by TESSERA_BLOCK_K; 0: the plan chooses
};

// Of this CPU. Throws Error (invalid_argument) when TESSERA_BLOCK_K is not a number of keys.
Tuning tuning();

}  // namespace tessera::cpu
