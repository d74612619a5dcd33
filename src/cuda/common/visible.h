// Runs of neighbouring visible columns, which a thread block walks over step by step from the last
// to the first. For rows of queries the columns are keys; for rows of keys they are queries.
#pragma once

#include <cstdint>

#include "core/base/host_device.h"
#include "cuda/common/step_cursor.h"

namespace tessera::cuda {

// Neighbouring steps. The last one begins at `begin`, and [first, last) is visible. first >= last:
// there is none.
struct Run {
  int begin, first, last;
};

// The runs of what is visible, from the last to the first.
class Runs {
 public:
  Runs() = default;
  TESSERA_HD explicit Runs(const VisibleColumns& visible)
      : visible_(visible), left_(visible.count < 0 ? 1 : visible.count) {}

  // The next run, whose steps begin where column + shift is a multiple of `width`.
  TESSERA_HD Run next(int width, int shift = 0) {
    while (left_ > 0) {
      int first = visible_.begin, last = visible_.end, length = 1;
      if (visible_.count < 0) {
        left_ = 0;
      } else {  // neighbouring blocks of the mask
        const std::int32_t* kept = visible_.kept;
        while (length < left_ && kept[left_ - length - 1] == kept[left_ - length] - 1) ++length;
        const std::int64_t from = std::int64_t{kept[left_ - length]} * visible_.block;
        left_ -= length;
        first = static_cast<int>(later(first, earlier(from, last)));
        last = static_cast<int>(earlier(last, from + std::int64_t{length} * visible_.block));
      }
      if (first < last) return {(last - 1 + shift) / width * width - shift, first, last};
    }
    return {};
  }

 private:
  static TESSERA_HD constexpr std::int64_t earlier(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
  static TESSERA_HD constexpr std::int64_t later(std::int64_t a, std::int64_t b) { return a > b ? a : b; }

  VisibleColumns visible_;
  int left_;  // kept blocks, or the one range, still to come
};

// The columns of a step that one row of a fragment sees, counted from the first column of the step.
struct ColumnRange {
  int first;
  unsigned count;

  static TESSERA_HD constexpr ColumnRange of(int first, int last) {
    return {first, static_cast<unsigned>(last > first ? last - first : 0)};
  }
  TESSERA_HD constexpr bool operator()(int column) const {
    return static_cast<unsigned>(column - first) < count;
  }
};

}  // namespace tessera::cuda
