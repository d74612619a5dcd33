#include "api/overlap.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "api/tensor_checks.h"

namespace tessera::api {
namespace {

// One dimension of the difference of two addresses: a multiple of `stride` bytes, from `low` to
// `high` times.
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

  // Whether `target` is between the least and the largest sum: seldom, for tensors that have
  // nothing in common.
  [[nodiscard]] bool span(std::int64_t target) const {
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

__extension__ using Wide = __int128;

std::int64_t floor_divide(std::int64_t a, std::int64_t b) { return a / b - (a % b != 0 && a < 0 ? 1 : 0); }

// b with a * b == 1 modulo m, where a and m have no common divisor.
std::int64_t inverse_modulo(std::int64_t a, std::int64_t m) {
  std::int64_t r = m, next_r = a % m, inverse = 0, next = 1;
  while (next_r != 0) {
    const std::int64_t quotient = r / next_r;
    std::swap(r -= quotient * next_r, next_r);
    std::swap(inverse -= quotient * next, next);
  }
  return inverse < 0 ? inverse + m : inverse;
}

// Is there an x from `first` to `last` for which target - x * stride is a multiple of `divisor`?
bool divisible(std::int64_t target, std::int64_t stride, std::int64_t divisor, std::int64_t first,
               std::int64_t last) {
  const std::int64_t common = std::gcd(stride, divisor), step = divisor / common;
  if (first > last || target % common != 0) return false;
  if (step == 1) return true;
  auto residue = [step](std::int64_t x) { return (x % step + step) % step; };
  const auto wanted = static_cast<std::int64_t>(static_cast<Wide>(residue(target / common)) *
                                                inverse_modulo(stride / common, step) % step);
  return residue(wanted - residue(first)) <= last - first;
}

// Is there a choice of multiples, of the terms from `at` on, with sum == target? Largest strides
// first: what the smaller ones can reach then leaves few candidates, one or two per level for any
// layout that a program would use. The last two levels are decided by arithmetic.
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
  if (at + 2 == terms.count) return divisible(target, term.stride, terms.term[at + 1].stride, first, last);
  for (std::int64_t x = first; x <= last; ++x) {
    if (reachable(terms, at + 1, target - x * term.stride, budget)) return true;
  }
  return false;
}

// How many sums of smaller terms the search tries before it gives up: a millisecond.
constexpr int kBudget = 100'000;

bool larger_stride(const Term& x, const Term& y) { return x.stride > y.stride; }

// Whether some choice of multiples has the sum `target`.
bool reach(Terms& terms, std::int64_t target) {
  if (!terms.span(target)) return false;
  std::sort(terms.term.begin(), terms.term.begin() + terms.count, larger_stride);
  int budget = kBudget;
  return reachable(terms, 0, target, budget);
}

// Every byte of every element, counted from the tensor's first byte.
void add_elements(Terms& terms, const Tensor& tensor) {
  const auto size = static_cast<std::int64_t>(size_of(tensor.dtype));
  for (int i = 0; i < 4; ++i) {
    // The stride of a size of 1 means nothing: it may be anything, also a number whose bytes do not
    // fit.
    if (tensor.shape[i] > 1) terms.add((i == 3 ? 1 : tensor.strides[i]) * size, 0, tensor.shape[i] - 1);
  }
  terms.add(1, 0, size - 1);
}

std::int64_t distance(const void* from, const void* to) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(to) -
                                   reinterpret_cast<std::uintptr_t>(from));
}

}  // namespace

bool overlap(const Tensor& a, const Tensor& b) {
  if (holds_nothing(a.shape) || holds_nothing(b.shape) || a.device != b.device) return false;
  if (a.data == nullptr || b.data == nullptr) return false;
  Terms terms;
  add_elements(terms, a);
  const auto size_b = static_cast<std::int64_t>(size_of(b.dtype));
  for (int i = 0; i < 4; ++i) {
    if (b.shape[i] > 1) terms.add((i == 3 ? 1 : b.strides[i]) * size_b, -(b.shape[i] - 1), 0);
  }
  terms.add(1, -(size_b - 1), 0);
  return reach(terms, distance(a.data, b.data));
}

bool overlap(const Tensor& tensor, const void* memory, std::size_t bytes) {
  if (holds_nothing(tensor.shape) || tensor.data == nullptr || bytes == 0) return false;
  // More than there are addresses is no different from all that follow.
  constexpr std::size_t kAll = std::size_t{1} << 60;
  Terms terms;
  add_elements(terms, tensor);
  terms.add(1, -static_cast<std::int64_t>(std::min(bytes, kAll) - 1), 0);
  return reach(terms, distance(tensor.data, memory));
}

bool addresses_twice(const Tensor& tensor) {
  if (holds_nothing(tensor.shape)) return false;  // strides of a tensor without elements may be anything
  std::array<Term, 4> dimensions{};
  int count = 0;
  for (int i = 0; i < 4; ++i) {
    const std::int64_t most = tensor.shape[i] - 1;
    if (most > 0) dimensions[count++] = {i == 3 ? 1 : std::abs(tensor.strides[i]), -most, most};
  }
  std::sort(dimensions.begin(), dimensions.begin() + count, larger_stride);
  if (count > 0 && dimensions[count - 1].stride == 0) return true;
  // Nested dimensions, as nearly every tensor has them: each stride is beyond what the smaller ones
  // reach.
  std::int64_t reach = 0;
  bool nested = true;
  for (int i = count - 1; i >= 0; --i) {
    nested = nested && dimensions[i].stride > reach;
    reach += dimensions[i].stride * dimensions[i].high;
  }
  if (nested) return false;
  // Two indices address the same element when their difference, which is not 0, addresses offset 0.
  // Its first dimension that is not 0 may be taken as positive.
  int budget = kBudget;
  for (int first = 0; first < count; ++first) {
    Terms difference;
    difference.count = count - first;
    std::copy(dimensions.begin() + first, dimensions.begin() + count, difference.term.begin());
    difference.term[0].low = 1;
    if (reachable(difference, 0, 0, budget)) return true;
  }
  return false;
}

}  // namespace tessera::api
