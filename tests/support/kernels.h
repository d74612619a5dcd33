// What tests are parametrised over: every type and every CPU kernel of this build.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "reference/cases/case.h"
#include "support/build.h"
#include "support/scopes.h"
#include "tessera/plan.h"

namespace tessera {

// How GoogleTest, which chose the name, prints a type in messages.
inline void PrintTo(DType dtype, std::ostream* stream) { *stream << name(dtype); }  // NOLINT: naming

}  // namespace tessera

namespace tessera::test {

inline const std::vector<DType> kDTypes = {DType::fp64, DType::fp32, DType::fp16, DType::bf16};

// Whether a CPU kernel supports such problems: cpu.packed supports packed sequences only.
bool takes(const std::string& kernel, const reference::CaseSpec& spec);

// Why a kernel cannot run on this machine (the standard one needs OpenBLAS); empty: it can.
std::string obstacle(const std::string& kernel);

// The names of the CPU kernels that exist in both directions and can run here. Says
// on standard output which cannot.
std::vector<std::string> cpu_kernels();

// The names of the CPU kernels without backward that can run here: cpu.decode and cpu.packed, which
// need vectors.
std::vector<std::string> forward_only_kernels();

// What a test over types and something else (kernels, instruction sets) runs. In release builds
// every pair. Under a sanitizer every type with the first of the others, and every other with fp32:
// sanitizers prove addresses, which follow from the width of a type and from lanes, one by one
// (tests/README.md).
template <typename Other>
std::vector<std::tuple<DType, Other>> pairs_with_types(const std::vector<Other>& others) {
  std::vector<std::tuple<DType, Other>> pairs;
  for (const DType dtype : kDTypes) {
    for (const Other& other : others) {
      if (!kReduced || dtype == DType::fp32 || other == others.front()) pairs.emplace_back(dtype, other);
    }
  }
  return pairs;
}

// A type and a kernel, with a name like "bf16_cpu_flash2".
using TypeAndKernel = std::tuple<DType, std::string>;
std::string test_name(const testing::TestParamInfo<TypeAndKernel>& info);

// A type alone, with a name like "bf16".
std::string dtype_test_name(const testing::TestParamInfo<DType>& info);

// A kernel alone, with a name like "cpu_flash2".
std::string kernel_test_name(const testing::TestParamInfo<std::string>& info);

}  // namespace tessera::test
