#include "lab/problem/tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

#include "core/base/float16.h"

namespace tessera::lab {
namespace {

constexpr std::size_t kAlignment = 64;

std::int64_t elements(const Tensor& tensor) {
  return tensor.shape[0] * tensor.shape[1] * tensor.shape[2] * tensor.shape[3];
}

std::size_t bytes_of(const Tensor& tensor) {
  return static_cast<std::size_t>(elements(tensor)) * size_of(tensor.dtype);
}

// splitmix64: a good 64-bit value for every counter.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

}  // namespace

void Tensors::Free::operator()(std::byte* data) const {
  ::operator delete(data, std::align_val_t(kAlignment));
}

Tensors::Tensors(const Shapes& s, Direction direction, Device device) {
  auto make = [&](DType dtype, const Extents& shape) {
    return tensor(static_cast<void*>(nullptr), dtype, shape, device);
  };
  const DType exact = accumulator_of(s.dtype);
  q_ = make(s.dtype, {s.batch, s.q_length, s.q_heads, s.qk_dim});
  k_ = make(s.dtype, {s.batch, s.k_length, s.kv_heads, s.qk_dim});
  v_ = make(s.dtype, {s.batch, s.k_length, s.kv_heads, s.v_dim});
  out_ = make(s.dtype, {s.batch, s.q_length, s.q_heads, s.v_dim});
  lse_ = make(exact, {s.batch, s.q_heads, s.q_length, 1});
  if (s.bias) bias_ = make(s.dtype, {1, 1, s.q_length, s.k_length});
  if (s.visible) visible_ = make(DType::boolean, {1, 1, s.q_length, s.k_length});
  if (direction == Direction::forward) return;
  grad_out_ = out_;
  grad_q_ = q_;
  grad_k_ = k_;
  grad_v_ = v_;
  grad_bias_ = bias_;
}

std::vector<Tensor*> Tensors::all() {
  return {&q_,   &k_,        &v_,      &bias_,   &visible_, &out_,
          &lse_, &grad_out_, &grad_q_, &grad_k_, &grad_v_,  &grad_bias_};
}

std::size_t Tensors::bytes() const {
  std::size_t total = 0;
  for (const Tensor* tensor : const_cast<Tensors*>(this)->all()) total += bytes_of(*tensor);
  return total;
}

void Tensors::take(Tensor& tensor) {
  if (!tensor.given()) return;
  if (tensor.device.type == DeviceType::cuda) {
    device_buffers_.emplace_back(tensor.device.index, bytes_of(tensor));
    tensor.data = device_buffers_.back().data();
    return;
  }
  auto* data = static_cast<std::byte*>(::operator new(bytes_of(tensor), std::align_val_t(kAlignment)));
  buffers_.emplace_back(data);
  tensor.data = data;
}

void Tensors::allocate(std::uint64_t seed) {
  for (Tensor* tensor : all()) take(*tensor);
  std::uint64_t stream = 0;
  for (const Tensor* tensor : {&q_, &k_, &v_, &bias_, &grad_out_}) {
    if (tensor->given()) fill(*tensor, mix(seed) + ++stream);
  }
  if (visible_.given() && visible_.device.type == DeviceType::cpu) hide_last_quarter(visible_);
}

void Tensors::fill(const Tensor& tensor, std::uint64_t seed) {
  const std::int64_t count = elements(tensor);
  if (tensor.device.type == DeviceType::cpu) return fill_random(tensor.dtype, tensor.data, 0, count, seed);
  // In pieces: the host need not have as much memory as the GPU.
  constexpr std::int64_t kPiece = std::int64_t{1} << 24;
  const auto buffer = std::find_if(device_buffers_.begin(), device_buffers_.end(),
                                   [&](const auto& one) { return one.data() == tensor.data; });
  const std::size_t size = size_of(tensor.dtype);
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min(kPiece, count)) * size);
  for (std::int64_t first = 0; first < count; first += kPiece) {
    const std::int64_t length = std::min(kPiece, count - first);
    fill_random(tensor.dtype, piece.data(), first, length, seed);
    buffer->upload(piece.data(), static_cast<std::size_t>(length) * size,
                   static_cast<std::size_t>(first) * size);
  }
}

void Tensors::hide_last_quarter(const Tensor& mask) {
  auto* element = static_cast<std::uint8_t*>(mask.data);
  const std::int64_t keys = mask.shape[3];
  for (std::int64_t i = 0; i < elements(mask); ++i) element[i] = i % keys < keys - keys / 4 ? 1 : 0;
}

void Tensors::poison(bool output) {
  for (const Tensor* tensor : {&out_, &grad_q_, &grad_k_, &grad_v_, &grad_bias_}) {
    if (!tensor->given() || (tensor == &out_ && !output)) continue;
    const std::size_t bytes = bytes_of(*tensor);
    if (tensor->device.type == DeviceType::cpu) {
      std::memset(tensor->data, 0xFF, bytes);  // NaN in every type
      continue;
    }
    const auto buffer = std::find_if(device_buffers_.begin(), device_buffers_.end(),
                                     [&](const auto& one) { return one.data() == tensor->data; });
    buffer->upload(std::vector<std::byte>(bytes, std::byte{0xFF}).data(), bytes);
  }
}

ForwardTensors Tensors::forward() const {
  return {.q = q_, .k = k_, .v = v_, .bias = bias_, .out = out_, .lse = lse_, .visible = visible_};
}

BackwardTensors Tensors::backward() const {
  return {.q = q_,
          .k = k_,
          .v = v_,
          .bias = bias_,
          .out = out_,
          .lse = lse_,
          .grad_out = grad_out_,
          .grad_q = grad_q_,
          .grad_k = grad_k_,
          .grad_v = grad_v_,
          .grad_bias = grad_bias_,
          .visible = visible_};
}

HostCopy::HostCopy(const ForwardTensors& tensors) : device_(tensors), host_(tensors) {
  for (Tensor* tensor : {&host_.q, &host_.k, &host_.v, &host_.bias, &host_.visible, &host_.out}) {
    *tensor = fetch(*tensor);
  }
}

Tensor HostCopy::fetch(const Tensor& tensor) {
  if (!tensor.given() || tensor.device.type == DeviceType::cpu) return tensor;
  memory_.emplace_back(bytes_of(tensor));
  cuda::download(tensor.device.index, tensor.data, memory_.back().data(), memory_.back().size());
  Tensor copy = tensor;
  copy.data = memory_.back().data();
  copy.device = Device::cpu();
  return copy;
}

void HostCopy::refresh_output() {
  const Tensor& out = device_.out;
  if (out.device.type == DeviceType::cpu) return;
  cuda::download(out.device.index, out.data, host_.out.data, bytes_of(out));
}

void fill_random(DType dtype, void* to, std::int64_t first, std::int64_t count, std::uint64_t seed) {
  const std::uint64_t stream = mix(seed) + static_cast<std::uint64_t>(first);
  core::with_type(dtype, [&]<typename T>() {
    using Number = core::Accumulator<T>;
    auto* data = static_cast<T*>(to);
    // The sum of four uniform 16-bit numbers, scaled: mean 0, deviation 1, tails up to 3.46.
    const Number scale = static_cast<Number>(std::sqrt(3.0) / 65536.0);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint64_t bits = mix(stream + static_cast<std::uint64_t>(i));
      const auto sum = static_cast<std::int64_t>((bits & 0xFFFF) + (bits >> 16 & 0xFFFF) +
                                                 (bits >> 32 & 0xFFFF) + (bits >> 48));
      data[i] = core::Element<T>::store(static_cast<Number>(sum - 2 * 65535) * scale);
    }
  });
}

}  // namespace tessera::lab
