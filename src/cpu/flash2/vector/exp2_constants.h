// The constants of the kernels' own 2^x and tanh in fp32.
#pragma once

namespace tessera::cpu {

inline constexpr float kLog2E = 1.44269504088896340736F;

// 2^f for |f| <= 1/2 as a polynomial, coefficient of f^0 first: 2.04 ULP with FMA, 2.3 without
// (exp2_test.cpp).
inline constexpr float kExp2Polynomial[] = {1.0F,           0x1.62e42ap-1F, 0x1.ebf9bcp-3F,
                                            0x1.c6b752p-5F, 0x1.3cea88p-7F, 0x1.5bba14p-10F};

// (2^f - 1) / f for |f| <= 1/2, likewise: the largest relative error is 1.1e-8. Fitted by
// reweighted least squares (Lawson).
inline constexpr float kExp2MinusOnePolynomial[] = {0x1.62e43p-1F, 0x1.ebfbdep-3F,  0x1.c6af6ep-5F,
                                                    0x1.3b2bap-7F, 0x1.5f07b4p-10F, 0x1.4308fap-13F};

}  // namespace tessera::cpu
