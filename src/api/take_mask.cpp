// The mask of a call, without its lengths: the band around the diagonal, and the block mask.
#include <algorithm>

#include "api/arguments.h"
#include "core/block_mask.h"

namespace tessera::api {
namespace {

using core::kMaxPosition;
using core::Problem;

constexpr std::int64_t kMaxDiagonal = std::int64_t{1} << 48;
// A bound that hides nothing: wider than any diagonal, local or global, is away from any position.
constexpr std::int64_t kHidesNothing = std::int64_t{1} << 50;
static_assert(kHidesNothing > kMaxDiagonal + 3 * kMaxPosition);

void take_band(const Mask& mask, Problem& p) {
  auto bound = [](const char* name, std::int64_t value) {
    if (value < core::kUnbounded) {
      refuse("attention.mask.", name, " is ", value, "; it must be at least 0, or -1 for no bound");
    }
    return std::min(value, kHidesNothing);
  };
  p.left = bound("left", mask.left);
  p.right = bound("right", mask.right);
  if (mask.align > Align::top_left) {
    refuse("attention.mask.align is ", static_cast<int>(mask.align), "; it must be bottom_right or top_left");
  }
  p.align = mask.align;
  p.explicit_diagonal = mask.diagonal.has_value();
  p.diagonal = mask.diagonal.value_or(0);
  if (p.diagonal < -kMaxDiagonal || p.diagonal > kMaxDiagonal) {
    refuse("attention.mask.diagonal is ", p.diagonal, "; it must be between -2^48 and 2^48");
  }
}

void take_blocks(const Mask& mask, Problem& p) {
  if (!mask.blocks) return;
  const BlockLayout& layout = mask.blocks.layout();
  auto check_length = [&](const char* name, std::int64_t size, std::int64_t length) {
    const bool fits = p.packed ? size >= length : size == length;
    if (!fits) {
      refuse("attention.mask.blocks has ", name, " ", size, "; it must ", p.packed ? "be at least" : "equal",
             " the ", name, p.packed ? " of the longest sequence, " : " of the tensors, ", length);
    }
  };
  check_length("q_length", layout.q_length, p.q_length);
  check_length("k_length", layout.k_length, p.k_length);
  if (layout.heads != 1 && layout.heads != p.q_heads) {
    refuse("attention.mask.blocks has ", layout.heads, " heads; it must have 1 or ", p.q_heads,
           ", the heads of q");
  }
  p.blocks = core::view(mask.blocks);
}

}  // namespace

void take_mask(const Mask& mask, Problem& p) {
  take_band(mask, p);
  take_blocks(mask, p);
}

}  // namespace tessera::api
