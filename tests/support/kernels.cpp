#include "support/kernels.h"

#include <algorithm>

namespace tessera::test {

std::vector<std::string> cpu_kernels() {
  std::vector<std::string> forward, both;
  const std::vector<KernelInfo> all = kernels();
  for (const KernelInfo& kernel : all) {
    if (kernel.device == DeviceType::cpu && kernel.direction == Direction::forward) {
      forward.push_back(kernel.name);
    }
  }
  for (const KernelInfo& kernel : all) {
    if (kernel.device == DeviceType::cpu && kernel.direction == Direction::backward &&
        std::find(forward.begin(), forward.end(), kernel.name) != forward.end()) {
      both.push_back(kernel.name);
    }
  }
  return both;
}

std::string dtype_test_name(const testing::TestParamInfo<DType>& info) { return name(info.param); }

std::string kernel_test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

std::string test_name(const testing::TestParamInfo<TypeAndKernel>& info) {
  std::string kernel = std::get<1>(info.param);
  std::replace(kernel.begin(), kernel.end(), '.', '_');
  return std::string(name(std::get<0>(info.param))) + "_" + kernel;
}

}  // namespace tessera::test
