#include "lab/measure/compare/agreement.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/base/float16.h"
#include "cuda/common/host/memory.h"
#include "lab/problem/method.h"

namespace tessera::lab {
namespace {

std::vector<Tensor> results_of(Pass pass, const Tensors& tensors) {
  std::vector<Tensor> all;
  if (pass != Pass::backward) all.push_back(tensors.forward().out);
  if (pass != Pass::forward) {
    const BackwardTensors t = tensors.backward();
    for (const Tensor& gradient : {t.grad_q, t.grad_k, t.grad_v, t.grad_bias}) all.push_back(gradient);
  }
  std::erase_if(all, [](const Tensor& tensor) { return !tensor.given(); });
  return all;
}

std::vector<std::byte> copy_of(const Tensor& tensor) {
  const Extents& n = tensor.shape;  // contiguous
  std::vector<std::byte> copy(static_cast<std::size_t>(n[0] * n[1] * n[2] * n[3]) * size_of(tensor.dtype));
  if (tensor.device.type == DeviceType::cuda) {
    cuda::download(tensor.device.index, tensor.data, copy.data(), copy.size());
  } else {
    std::memcpy(copy.data(), tensor.data, copy.size());
  }
  return copy;
}

// NaN where one of the numbers is NaN.
double largest_difference(DType dtype, const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  return core::with_type(dtype, [&]<typename T>() {
    const auto* left = reinterpret_cast<const T*>(a.data());
    const auto* right = reinterpret_cast<const T*>(b.data());
    double largest = 0;
    for (std::size_t i = 0; i < a.size() / sizeof(T); ++i) {
      const double difference = std::abs(static_cast<double>(core::Element<T>::load(left[i])) -
                                         static_cast<double>(core::Element<T>::load(right[i])));
      // A NaN becomes the largest difference and stays it.
      if (std::isnan(difference) || difference > largest) largest = difference;
    }
    return largest;
  });
}

}  // namespace

Comparison Agreement::compare(const Row& row, const Tensors& tensors) {
  Comparison comparison{.atol = atol_};
  const std::vector<Tensor> tensors_now = results_of(row.problem.direction, tensors);
  if (results_.empty()) {
    first_ = name(row.method);
    for (const Tensor& tensor : tensors_now) results_.push_back({tensor.dtype, copy_of(tensor)});
    if (!row.error) return comparison;
    comparison.with = "fp64";
    comparison.largest = row.error->largest;
    return comparison;
  }
  comparison.with = first_;
  double largest = 0;
  for (std::size_t i = 0; i < tensors_now.size(); ++i) {
    const double one = largest_difference(results_[i].dtype, copy_of(tensors_now[i]), results_[i].data);
    if (std::isnan(one) || one > largest) largest = one;
    if (std::isnan(largest)) break;
  }
  comparison.largest = largest;
  return comparison;
}

}  // namespace tessera::lab
