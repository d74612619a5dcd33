#include "support/kernels.h"

#include <algorithm>
#include <iostream>
#include <map>

#include "reference/tolerance/check.h"
#include "tessera/error.h"

namespace tessera::test {

bool takes(const std::string& kernel, const reference::CaseSpec& spec) {
  return spec.packed || kernel != "cpu.packed";
}

std::string obstacle(const std::string& kernel) {
  const reference::ForceKernel forced(kernel);
  Attention attention;
  if (!takes(kernel, {})) attention.mask.lengths = {.count = 1, .max_q = 8, .max_k = 8};
  try {
    static_cast<void>(plan(attention, Shapes{.q_length = 8, .k_length = 8}));
    return {};
  } catch (const Error& error) {
    const std::string text = error.what(), line = "\n  " + kernel + ": ";
    const std::size_t found = text.find(line);
    if (found == std::string::npos) return text;
    const std::size_t begin = found + line.size();
    return text.substr(begin, text.find('\n', begin) - begin);
  }
}

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
  static const std::map<std::string, std::string> left_out = [&] {
    std::map<std::string, std::string> reasons;
    for (const std::string& kernel : both) {
      const std::string reason = obstacle(kernel);
      if (reason.empty()) continue;
      std::cout << "note: " << kernel << " is not tested: " << reason << '\n';
      reasons.emplace(kernel, reason);
    }
    return reasons;
  }();
  std::erase_if(both, [](const std::string& kernel) { return left_out.contains(kernel); });
  return both;
}

std::vector<std::string> forward_only_kernels() {
  std::vector<std::string> names;
  for (const char* kernel : {"cpu.decode", "cpu.packed"}) {
    if (const std::string reason = obstacle(kernel); reason.empty()) names.emplace_back(kernel);
    else std::cout << "note: " << kernel << " is not tested: " << reason << '\n';
  }
  return names;
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
