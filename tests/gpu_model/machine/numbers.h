// 16-bit numbers and the operand layouts of matrix instructions, for the machine.
#pragma once

#include <bit>
#include <cstdint>

namespace gpu_model {

// The number in the lower half of `bits`.
inline float number(std::uint32_t bits, bool bf16) {
  if (bf16) return std::bit_cast<float>(bits << 16);
  return static_cast<float>(std::bit_cast<_Float16>(static_cast<std::uint16_t>(bits)));
}

// The 16 x 16 A operand of a warp from the four registers of each lane.
inline void gather_a(float (&a)[16][16], const std::uint32_t* const (&from)[32], bool bf16) {
  for (int lane = 0; lane < 32; ++lane) {
    const int row = lane / 4, column = lane % 4 * 2;
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t pair = from[lane][i];
      a[row + i % 2 * 8][column + i / 2 * 8] = number(pair, bf16);
      a[row + i % 2 * 8][column + i / 2 * 8 + 1] = number(pair >> 16, bf16);
    }
  }
}

}  // namespace gpu_model
