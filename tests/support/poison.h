// A number that is not finite in one tensor, and where it may show: for the tests on a GPU and on
// the model of one.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "core/band.h"
#include "reference/cases/case.h"
#include "reference/oracle/elements.h"

namespace tessera::test {

using reference::Case;
using reference::CaseSpec;

// Where a number that is not finite stands: in batch entry 1, at a row of a head.
struct Poison {
  enum Where { q, k, v, grad_out } where;
  double value;
  std::int64_t row;

  static constexpr std::int64_t kBatch = 1, kHead = 2, kKeyHead = 1, kColumn = 3;  // kHead reads kKeyHead

  [[nodiscard]] bool of_keys() const { return where == k || where == v; }
  void write(const Case& problem) const {
    const BackwardTensors& t = problem.backward;
    const Tensor* const tensors[] = {&t.q, &t.k, &t.v, &t.grad_out};
    reference::write(*tensors[where], kBatch, row, of_keys() ? kKeyHead : kHead, kColumn, value);
  }
};

// The rows of queries and of keys whose gradients it may reach: those that see the
// key, or the row itself; then the keys that they see.
struct Reach {
  std::vector<bool> queries, keys;

  Reach(const CaseSpec& spec, const Poison& poison)
      : queries(static_cast<std::size_t>(spec.q_length)), keys(static_cast<std::size_t>(spec.k_length)) {
    const core::Band band{spec.left, spec.right, spec.k_length - spec.q_length};
    for (std::int64_t i = 0; i < spec.q_length; ++i) {
      const bool reached = poison.of_keys() ? band.visible(i, poison.row) : i == poison.row;
      queries[static_cast<std::size_t>(i)] = reached;
      if (!reached) continue;
      for (std::int64_t j = 0; j < spec.k_length; ++j) {
        if (band.visible(i, j)) keys[static_cast<std::size_t>(j)] = true;
      }
    }
  }
};

// Columns of a row.
enum class Columns { none, poisoned, all };

// What is not reached is as without the poison. `lasting`: the columns of what is
// reached that are not finite.
inline void expect_only_reached(const char* name, const Tensor& clean, const Tensor& poisoned,
                                const std::vector<bool>& rows, const std::set<std::int64_t>& heads,
                                Columns lasting) {
  const std::vector<double> before = reference::values(clean), after = reference::values(poisoned);
  std::int64_t strayed = 0, lost = 0;
  std::string example;
  for (std::int64_t b = 0; b < clean.shape[0]; ++b) {
    for (std::int64_t row = 0; row < clean.shape[1]; ++row) {
      for (std::int64_t head = 0; head < clean.shape[2]; ++head) {
        const bool reached =
            b == Poison::kBatch && heads.count(head) != 0 && rows[static_cast<std::size_t>(row)];
        for (std::int64_t d = 0; d < clean.shape[3]; ++d) {
          const auto at = static_cast<std::size_t>(reference::dense_index(clean.shape, b, row, head, d));
          // Not bit by bit: non-finite values are multiplied in another order.
          const double tolerance = 16 * reference::epsilon(clean.dtype) * (1 + std::abs(before[at]));
          const bool strays = !reached && !(std::abs(after[at] - before[at]) <= tolerance);
          const bool lasts =
              lasting == Columns::all || (lasting == Columns::poisoned && d == Poison::kColumn);
          const bool is_lost = reached && lasts && std::isfinite(after[at]);
          strayed += strays, lost += is_lost;
          if ((strays || is_lost) && strayed + lost == 1) {
            example = "batch " + std::to_string(b) + ", row " + std::to_string(row) + ", head " +
                      std::to_string(head) + ", column " + std::to_string(d) + ": " +
                      std::to_string(after[at]) + ", before " + std::to_string(before[at]);
          }
        }
      }
    }
  }
  EXPECT_EQ(strayed, 0) << name << " is reached where it may not be: " << example;
  EXPECT_EQ(lost, 0) << name << " hides it: " << example;
}

}  // namespace tessera::test
