// Pseudo-random problems over the whole description.
#pragma once

#include <cstdint>

#include "reference/cases/case.h"

namespace tessera::test {

// The problem that belongs to a seed: always the same one.
reference::CaseSpec random_spec(std::uint64_t seed);

// The same in a type of the caller's choice.
reference::CaseSpec random_spec(std::uint64_t seed, DType dtype);

}  // namespace tessera::test
