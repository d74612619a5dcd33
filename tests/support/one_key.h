// Rows with one visible key, which give the value of that key bit for bit, with the exceptions in
// attention.h.
#pragma once

#include <string>

#include "reference/cases/case.h"

namespace tessera::test {

// Writes zeros of both signs, subnormal numbers, the smallest normal one, odd last bits and the
// largest number into every row of the values.
void write_special_values(const Tensor& v);

// The first element of the second batch entry that is not the value of its key: of key i for row i,
// or of the only key. A -0 may be +0 and, where products are of bf16, a subnormal value 0. Empty:
// all are right.
std::string first_wrong_value(const reference::Case& problem, bool flushes_subnormals);

}  // namespace tessera::test
