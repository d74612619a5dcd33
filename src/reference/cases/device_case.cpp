#include "reference/cases/device_case.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "reference/oracle/elements.h"

namespace tessera::reference {
namespace {

constexpr std::size_t kGuard = 4096, kAlignment = 256;
constexpr std::byte kPoison{0xFF};  // NaN in every type

// Calls visit(offset) with the distance in elements of each row (the last dimension) from element
// (0, 0, 0, 0).
template <typename Visit>
void for_each_row(const Tensor& t, Visit&& visit) {
  for (std::int64_t a = 0; a < t.shape[0]; ++a) {
    for (std::int64_t b = 0; b < t.shape[1]; ++b) {
      for (std::int64_t c = 0; c < t.shape[2]; ++c) {
        visit(a * t.strides[0] + b * t.strides[1] + c * t.strides[2]);
      }
    }
  }
}

bool same_memory(const Tensor& a, const Tensor& b) {
  return a.data == b.data && a.dtype == b.dtype && a.shape == b.shape && a.strides == b.strides;
}

}  // namespace

DeviceTensor::DeviceTensor(const Tensor& host, Device device) : host_(host), view_(host) {
  view_.device = device;
  if (host.data == nullptr || count(host.shape) == 0) return;
  const std::size_t size = size_of(host.dtype);
  std::int64_t lowest = 0, highest = 0;
  for_each_row(host, [&](std::int64_t offset) {
    lowest = std::min(lowest, offset);
    highest = std::max(highest, offset + host.shape[3]);
  });
  const auto below = static_cast<std::size_t>(-lowest) * size;
  const auto span = static_cast<std::size_t>(highest - lowest) * size;
  const std::byte* begin = static_cast<const std::byte*>(host.data) - below;
  const std::size_t at = kGuard + reinterpret_cast<std::uintptr_t>(begin) % kAlignment;
  uploaded_.assign(at + span + kGuard, kPoison);
  std::memcpy(uploaded_.data() + at, begin, span);
  first_ = at + below;
  buffer_ = cuda::DeviceBuffer(device.index, uploaded_.size());
  buffer_.upload(uploaded_.data(), uploaded_.size());
  view_.data = buffer_.data() + first_;
}

std::vector<std::byte> DeviceTensor::download() const {
  std::vector<std::byte> now(buffer_.bytes());
  buffer_.download(now.data(), now.size());
  return now;
}

bool DeviceTensor::fetch() {
  const std::vector<std::byte> now = download();
  if (now.empty()) return true;
  const std::size_t size = size_of(host_.dtype), row = static_cast<std::size_t>(host_.shape[3]) * size;
  for_each_row(host_, [&](std::int64_t offset) {
    const std::ptrdiff_t bytes = offset * static_cast<std::ptrdiff_t>(size);
    const std::byte* source = now.data() + static_cast<std::ptrdiff_t>(first_) + bytes;
    std::memcpy(static_cast<std::byte*>(host_.data) + bytes, source, row);
    std::memcpy(uploaded_.data() + static_cast<std::ptrdiff_t>(first_) + bytes, source, row);
  });
  return now == uploaded_;
}

bool DeviceTensor::unchanged() const { return download() == uploaded_; }

DeviceCase::DeviceCase(const Attention& description, const ForwardTensors& f, const BackwardTensors& b,
                       Device device)
    : attention(description), device_(device) {
  forward = {.q = copy("q", false, f.q),
             .k = copy("k", false, f.k),
             .v = copy("v", false, f.v),
             .bias = copy("bias", false, f.bias),
             .out = copy("out", true, f.out),
             .lse = copy("lse", true, f.lse),
             .visible = copy("visible", false, f.visible)};
  backward = {.q = copy("q", false, b.q),
              .k = copy("k", false, b.k),
              .v = copy("v", false, b.v),
              .bias = copy("bias", false, b.bias),
              .out = copy("out", false, b.out),
              .lse = copy("lse", false, b.lse),
              .grad_out = copy("grad_out", false, b.grad_out),
              .grad_lse = copy("grad_lse", false, b.grad_lse),
              .grad_q = copy("grad_q", true, b.grad_q),
              .grad_k = copy("grad_k", true, b.grad_k),
              .grad_v = copy("grad_v", true, b.grad_v),
              .grad_bias = copy("grad_bias", true, b.grad_bias),
              .visible = copy("visible", false, b.visible)};

  Lengths& lengths = attention.mask.lengths;
  const bool packed = lengths.q != nullptr && lengths.k != nullptr;
  if (packed) {  // a GPU does not look for the longest
    auto longest = [&](const std::int32_t* cumulative) {
      std::int64_t most = 0;
      for (std::int64_t i = 0; i < lengths.count; ++i) {
        most = std::max<std::int64_t>(most, cumulative[i + 1] - cumulative[i]);
      }
      return most;
    };
    if (lengths.max_q == 0) lengths.max_q = longest(lengths.q);
    if (lengths.max_k == 0) lengths.max_k = longest(lengths.k);
    lengths.q = copy(lengths.q, lengths.count + 1);
    lengths.k = copy(lengths.k, lengths.count + 1);
  }
  if (attention.alibi.slopes != nullptr) {
    const std::int64_t batch = std::max<std::int64_t>(packed ? lengths.count : f.q.shape[0], 1);
    attention.alibi.slopes =
        copy(attention.alibi.slopes, (batch - 1) * attention.alibi.batch_stride + f.q.shape[2]);
  }
  if (attention.dropout.state != nullptr) attention.dropout.state = copy(attention.dropout.state, 2);
}

Tensor DeviceCase::copy(const char* name, bool written, const Tensor& host) {
  if (!host.given()) return host;
  for (const Entry& entry : tensors_) {
    if (same_memory(entry.tensor.host(), host)) return entry.tensor.view();
  }
  tensors_.push_back({name, written, DeviceTensor(host, device_)});
  return tensors_.back().tensor.view();
}

template <typename T>
const T* DeviceCase::copy(const T* data, std::int64_t count) {
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
  arrays_.emplace_back(device_.index, bytes);
  arrays_.back().upload(data, bytes);
  return reinterpret_cast<const T*>(arrays_.back().data());
}

std::string DeviceCase::fetch() {
  cuda::synchronize(device_.index);
  std::string damage;
  for (Entry& entry : tensors_) {
    const bool intact = entry.written ? entry.tensor.fetch() : entry.tensor.unchanged();
    if (intact) continue;
    damage += std::string(damage.empty() ? "" : "; ") + entry.name +
              (entry.written ? ": written outside of its elements" : " is an input and was written");
  }
  return damage;
}

}  // namespace tessera::reference
