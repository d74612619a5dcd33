#include "api/overlap.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>

namespace tessera::api {
namespace {

// One dimension of the difference of two addresses: a multiple of `stride` bytes, from `low` to `high` times.
struct Term {
  std::int64_t stride;
  std::int64_t low;
  std::int64_t high;
};

struct Terms {
  std::array<Term, 10> term{};
  int count = 0;

  // Adds x * stride for x in [low, high]; strides are made positive and equal strides merged.
  void add(std::int64_t stride, std::int64_t low, std::int64_t high) {
    if (stride == 0 || (low == 0 && high == 0)) return;
    if (stride < 0) {
      stride = -stride;
      std::swap(low, high);
      low = -low;
      high = -high;
    }
    for (int i = 0; i < count; ++i) {
      if (term[i].stride == stride) {
        term[i].low += low;
        term[i].high += high;
        return;
      }
    }
    term[count++] = {stride, low, high};
  }

  // Whether `target` is between the least and the largest sum: seldom, for tensors that have nothing in common.
  [[nodiscard]] bool reach(std::int64_t target) const {
    std::int64_t low = 0, high = 0;
    auto add = [](std::int64_t& sum, std::int64_t stride, std::int64_t times) {
      std::int64_t product = 0;
      return !__builtin_mul_overflow(stride, times, &product) && !__builtin_add_overflow(sum, product, &sum);
    };
    for (int i = 0; i < count; ++i) {
      if (!add(low, term[i].stride, term[i].low) || !add(high, term[i].stride, term[i].high)) return true;
    }
    return low <= target && target <= high;
  }
};

std::int64_t floor_divide(std::int64_t a, std::int64_t b) { return a / b - (a % b != 0 && a < 0 ? 1 : 0); }

// Is there a choice of multiples with sum == target? Largest strides first: what the smaller ones can reach
// then leaves few candidates, one or two per level for any layout that a program would use.
bool reachable(const Terms& terms, int at, std::int64_t target, int& budget) {
  if (at == terms.count) return target == 0;
  if (--budget < 0) return true;
  std::int64_t rest_low = 0, rest_high = 0;
  for (int i = at + 1; i < terms.count; ++i) {
    rest_low += terms.term[i].stride * terms.term[i].low;
    rest_high += terms.term[i].stride * terms.term[i].high;
  }
  const Term& term = terms.term[at];
  const std::int64_t first = std::max(term.low, -floor_divide(-(target - rest_high), term.stride));
  const std::int64_t last = std::min(term.high, floor_divide(target - rest_low, term.stride));
  for (std::int64_t x = first; x <= last; ++x) {
    if (reachable(terms, at + 1, target - x * term.stride, budget)) return true;
  }
  return false;
}

bool holds_nothing(const Tensor& tensor) {
  return std::any_of(tensor.shape.begin(), tensor.shape.end(), [](auto size) { return size == 0; });
}

}  // namespace

bool overlap(const Tensor& a, const Tensor& b) {
  if (holds_nothing(a) || holds_nothing(b) || a.device != b.device) return false;
  if (a.data == nullptr || b.data == nullptr) return false;
  const auto size_a = static_cast<std::int64_t>(size_of(a.dtype));
  const auto size_b = static_cast<std::int64_t>(size_of(b.dtype));
  Terms terms;
  for (int i = 0; i < 4; ++i) {
    // The stride of a size of 1 means nothing: it may be anything, also a number whose bytes do not fit.
    if (a.shape[i] > 1) terms.add((i == 3 ? 1 : a.strides[i]) * size_a, 0, a.shape[i] - 1);
    if (b.shape[i] > 1) terms.add((i == 3 ? 1 : b.strides[i]) * size_b, -(b.shape[i] - 1), 0);
  }
  terms.add(1, -(size_b - 1), size_a - 1);  // any byte of one element against any byte of the other
  const auto distance = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(b.data) -
                                                  reinterpret_cast<std::uintptr_t>(a.data));
  if (!terms.reach(distance)) return false;
  std::sort(terms.term.begin(), terms.term.begin() + terms.count,
            [](const Term& x, const Term& y) { return x.stride > y.stride; });
  int budget = 100'000;
  return reachable(terms, 0, distance, budget);
}

bool addresses_twice(const Tensor& tensor) {
  std::array<std::pair<std::int64_t, std::int64_t>, 4> dimensions;  // stride, size
  int count = 0;
  // Strides of a tensor without elements may be anything.
  if (std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end()) return false;
  for (int i = 0; i < 4; ++i) {
    if (tensor.shape[i] > 1) {
      dimensions[count++] = {i == 3 ? 1 : std::abs(tensor.strides[i]), tensor.shape[i]};
    }
  }
  std::sort(dimensions.begin(), dimensions.begin() + count);
  std::int64_t reach = 0;  // the largest offset that the smaller strides make
  for (int i = 0; i < count; ++i) {
    const auto [stride, size] = dimensions[i];
    if (stride <= reach) return true;
    reach += stride * (size - 1);
  }
  return false;
}

}  // namespace tessera::api
