// Where the sums of dQ lie (dq_sums.cuh): the arithmetic alone, for host and device.
#pragma once

#include "core/base/host_device.h"

namespace tessera::cuda {

// The order of a fragment's numbers. It belongs to the kernel that adds; whoever reads the sums
// names the same one.
enum class SumsLayout : int {
  // A lane's four numbers together, for reductions of four numbers at once. sm_90 and newer.
  fours,
  // The lanes' first numbers, then their second ones, and so on: each of the four reductions of a
  // warp covers 128 bytes.
  apart,
};

// Where the fragment of 16 queries from `row` on and 8 columns from `column` on begins in a block.
TESSERA_HD constexpr int fragment_offset(int head_dim, int row, int column) {
  return (row / 16 * (head_dim / 8) + column / 8) * 128;
}

// Where number `e` of a lane's four is in a fragment.
template <SumsLayout Layout>
TESSERA_HD constexpr int place_of(int lane, int e) {
  return Layout == SumsLayout::fours ? lane * 4 + e : e * 32 + lane;
}

}  // namespace tessera::cuda
