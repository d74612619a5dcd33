#include "lab/problem/method.h"

#include <algorithm>

namespace tessera::lab {

std::string name(const Method& method) {
  return method.label.empty() ? tessera::name(method.algorithm) : method.label;
}

std::vector<Method> methods_of(const std::vector<Algorithm>& algorithms) {
  std::vector<Method> methods;
  for (const Algorithm algorithm : algorithms) methods.push_back({.algorithm = algorithm});
  return methods;
}

std::vector<Algorithm> algorithms_here(const std::vector<Problem>& problems) {
  std::vector<Algorithm> all;
  for (const KernelInfo& kernel : kernels()) {
    const bool wanted = std::any_of(problems.begin(), problems.end(), [&](const Problem& problem) {
      return widest_direction(problem) == kernel.direction && problem.device.type == kernel.device;
    });
    if (wanted) all.push_back(kernel.algorithm);
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  if (all.empty()) all.push_back(Algorithm::automatic);
  return all;
}

}  // namespace tessera::lab
