// The constants of the kernels' own 2^x in fp32.
#pragma once

namespace tessera::cpu {

inline constexpr float kLog2E = 1.44269504088896340736F;

// 2^f for |f| <= 1/2 as a polynomial, coefficient of f^0 first: 2.04 ULP with FMA, 2.3 without
// (exp2_test.cpp).
inline constexpr float kExp2Polynomial[] = {1.0F,           0x1.62e42ap-1F, 0x1.ebf9bcp-3F,
                                            0x1.c6b752p-5F, 0x1.3cea88p-7F, 0x1.5bba14p-10F};

}  // namespace tessera::cpu
