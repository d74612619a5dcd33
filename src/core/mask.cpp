#include "tessera/mask.h"

#include <algorithm>
#include <string>

#include "core/band.h"
#include "core/base/out_of_memory.h"
#include "core/base/refuse.h"
#include "core/base/text.h"

namespace tessera {
namespace {

using core::concat;
using core::refuse;

bool bounded(const Mask& mask) { return mask.left != core::kUnbounded || mask.right != core::kUnbounded; }

// Whether the mask names a diagonal: ALiBi counts from it too, without any bound.
bool names_diagonal(const Mask& mask) {
  return mask.diagonal.has_value() || mask.align != Align::bottom_right;
}

std::string diagonal_text(const Mask& mask) {
  return core::guarded([&] {
    if (mask.diagonal.has_value()) return concat("the explicit diagonal ", *mask.diagonal);
    return std::string(mask.align == Align::top_left ? "Align::top_left" : "Align::bottom_right");
  });
}

bool same_diagonal(const Mask& a, const Mask& b) {
  if (a.diagonal.has_value() || b.diagonal.has_value()) return a.diagonal == b.diagonal;
  return a.align == b.align;
}

void require_bound(const char* name, std::int64_t value) {
  if (value >= core::kUnbounded) return;
  refuse("Mask: ", name, " is ", value, "; it must be at least 0, or -1 for no bound");
}

std::int64_t tighter(std::int64_t a, std::int64_t b) {
  if (a == core::kUnbounded) return b;
  return b == core::kUnbounded ? a : std::min(a, b);
}

}  // namespace

Mask operator&(const Mask& a, const Mask& b) {
  for (const Mask* mask : {&a, &b}) {
    require_bound("left", mask->left);
    require_bound("right", mask->right);
  }
  if (bounded(a) && bounded(b) && !same_diagonal(a, b)) {
    refuse("Mask: the sides of & bound the band around different diagonals, ", diagonal_text(a), " and ",
           diagonal_text(b), "; they must name the same one");
  }
  if (a.blocks && b.blocks) {
    refuse("Mask: both sides of & have a block mask; at most one may: ",
           "put the blocks that both keep into one BlockMask");
  }
  if (a.lengths.count != 0 && b.lengths.count != 0) {
    refuse("Mask: both sides of & have lengths, of ", a.lengths.count, " and ", b.lengths.count,
           " sequences; at most one may");
  }
  // The side that bounds the band says where its diagonal lies; without bounds, the side that names
  // one.
  const bool from_b = bounded(a) != bounded(b) ? bounded(b) : !names_diagonal(a);
  const Mask& origin = from_b ? b : a;
  return {.left = tighter(a.left, b.left),
          .right = tighter(a.right, b.right),
          .align = origin.align,
          .diagonal = origin.diagonal,
          .blocks = a.blocks ? a.blocks : b.blocks,
          .lengths = a.lengths.count != 0 ? a.lengths : b.lengths};
}

}  // namespace tessera
