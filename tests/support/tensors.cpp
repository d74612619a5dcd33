#include "support/tensors.h"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "reference/oracle/elements.h"

namespace tessera::test {
namespace {

const std::byte* element(const Tensor& t, std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
  const std::int64_t at =
      a * t.strides[0] + b * t.strides[1] + c * t.strides[2] + d;  // as in the contract: stride 1
  return static_cast<const std::byte*>(t.data) + at * static_cast<std::int64_t>(size_of(t.dtype));
}

template <typename Visit>
void for_each_index(const Extents& shape, Visit&& visit) {
  for (std::int64_t a = 0; a < shape[0]; ++a) {
    for (std::int64_t b = 0; b < shape[1]; ++b) {
      for (std::int64_t c = 0; c < shape[2]; ++c) {
        for (std::int64_t d = 0; d < shape[3]; ++d) visit(a, b, c, d);
      }
    }
  }
}

}  // namespace

Tensor slice(Tensor t, int dimension, std::int64_t begin, std::int64_t length) {
  if (!t.given() || (t.shape[dimension] == 1 && begin + length > 1)) return t;
  const std::int64_t elements = t.strides[dimension] * begin;
  t.data = static_cast<std::byte*>(t.data) + elements * static_cast<std::int64_t>(size_of(t.dtype));
  t.shape[dimension] = length;
  return t;
}

OwnedTensor::OwnedTensor(DType dtype, const Extents& shape, const MemoryLayout& layout, Fill how) {
  tensor_ = {.dtype = dtype, .shape = shape};
  std::int64_t stride = 1, first = 0;
  for (int at = 3; at >= 0; --at) {
    const int dimension = layout.order[at];
    tensor_.strides[dimension] = stride;
    stride = stride * std::max<std::int64_t>(shape[dimension], 1) + (at == 3 ? layout.gap : 0);
  }
  const auto elements = static_cast<std::size_t>(stride);
  for (int dimension = 0; dimension < 3; ++dimension) {
    if (layout.reversed && shape[dimension] > 0) {
      first += tensor_.strides[dimension] * (shape[dimension] - 1);
      tensor_.strides[dimension] *= -1;
    }
  }
  for (int dimension = 0; dimension < 4; ++dimension) {
    if (layout.garbage_strides && shape[dimension] == 1) {
      tensor_.strides[dimension] = INT64_MAX - 12345 * (dimension + 1);
    }
  }
  const std::size_t size = size_of(dtype);
  buffer_ = std::make_unique<GuardedBuffer>(elements * size, Fill::nan,
                                            static_cast<std::size_t>(layout.offset) * size);
  tensor_.data = static_cast<std::byte*>(buffer_->data()) + first * static_cast<std::int64_t>(size);
  if (how == Fill::nan) return;
  std::vector<std::byte> bits(static_cast<std::size_t>(reference::count(shape)) * size);
  fill(bits.data(), bits.size(), how);
  std::size_t at = 0;
  for_each_index(shape, [&](auto a, auto b, auto c, auto d) {
    std::memcpy(const_cast<std::byte*>(element(tensor_, a, b, c, d)), bits.data() + at, size);
    at += size;
  });
}

OwnedTensor::OwnedTensor(const Tensor& source, const MemoryLayout& layout)
    : OwnedTensor(source.dtype, source.shape, layout) {
  for_each_index(source.shape, [&](auto a, auto b, auto c, auto d) {
    std::memcpy(const_cast<std::byte*>(element(tensor_, a, b, c, d)), element(source, a, b, c, d),
                size_of(source.dtype));
  });
}

bool OwnedTensor::intact() const {
  if (buffer_ == nullptr) return true;
  if (!buffer_->intact()) return false;
  // The gaps: everything that is no element must still be NaN.
  const auto* begin = static_cast<const std::byte*>(buffer_->data());
  std::vector<char> owned(buffer_->bytes());
  for_each_index(tensor_.shape, [&](auto a, auto b, auto c, auto d) {
    const std::ptrdiff_t at = element(tensor_, a, b, c, d) - begin;
    std::fill_n(owned.begin() + at, size_of(tensor_.dtype), char{1});
  });
  for (std::size_t at = 0; at < owned.size(); ++at) {
    if (!owned[at] && begin[at] != std::byte{0xFF}) return false;
  }
  return true;
}

RelaidCase::RelaidCase(const reference::Case& source, const MemoryLayout& layout, Fill outputs)
    : attention(source.attention) {
  MemoryLayout outputs_layout = layout;
  outputs_layout.reversed = false;
  // Keys are the contiguous dimension of a bias; an order that does not leave them
  // innermost is not for it.
  auto for_bias = [](MemoryLayout of) {
    if (of.order[3] != 3) of.order = {0, 1, 2, 3};
    return of;
  };
  auto input = [&](const char* name, const Tensor& t, bool bias = false) {
    return t.given() ? keep(name, OwnedTensor(t, bias ? for_bias(layout) : layout)) : Tensor{};
  };
  auto output = [&](const char* name, const Tensor& t, bool bias = false) {
    if (!t.given()) return Tensor{};
    const MemoryLayout& of = bias ? for_bias(outputs_layout) : outputs_layout;
    return keep(name, OwnedTensor(t.dtype, t.shape, of, outputs));
  };
  forward = {.q = input("q", source.forward.q),
             .k = input("k", source.forward.k),
             .v = input("v", source.forward.v),
             .bias = input("bias", source.forward.bias, true),
             .out = output("out", source.forward.out),
             .lse = output("lse", source.forward.lse),
             .visible = input("visible", source.forward.visible, true)};
  backward = {.q = forward.q,
              .k = forward.k,
              .v = forward.v,
              .bias = forward.bias,
              .out = forward.out,
              .lse = forward.lse,
              .grad_out = input("grad_out", source.backward.grad_out),
              .grad_lse = input("grad_lse", source.backward.grad_lse),
              .grad_q = output("grad_q", source.backward.grad_q),
              .grad_k = output("grad_k", source.backward.grad_k),
              .grad_v = output("grad_v", source.backward.grad_v),
              .grad_bias = output("grad_bias", source.backward.grad_bias, true),
              .visible = forward.visible};
}

Tensor RelaidCase::keep(const char* name, OwnedTensor tensor) {
  tensors_.emplace_back(name, std::move(tensor));
  return tensors_.back().second.view();
}

std::string RelaidCase::damage() const {
  std::string names;
  for (const auto& [name, tensor] : tensors_) {
    if (!tensor.intact()) names += name + ' ';
  }
  return names;
}

std::string first_difference(const Tensor& a, const Tensor& b) {
  if (a.given() != b.given() || a.shape != b.shape || a.dtype != b.dtype) return "another shape or type";
  std::string difference;
  for_each_index(a.shape, [&](auto i, auto j, auto k, auto l) {
    if (!difference.empty()) return;
    if (std::memcmp(element(a, i, j, k, l), element(b, i, j, k, l), size_of(a.dtype)) == 0) return;
    std::ostringstream text;
    text.precision(17);
    text << '(' << i << ", " << j << ", " << k << ", " << l << "): " << reference::read(a, i, j, k, l)
         << " and " << reference::read(b, i, j, k, l);
    difference = text.str();
  });
  return difference;
}

namespace {

std::string named(const char* name, const Tensor& a, const Tensor& b) {
  if (!a.given() && !b.given()) return {};
  const std::string difference = first_difference(a, b);
  return difference.empty() ? difference : name + std::string(" ") + difference + "; ";
}

}  // namespace

std::string first_difference(const ForwardTensors& a, const ForwardTensors& b) {
  return named("out", a.out, b.out) + named("lse", a.lse, b.lse);
}

std::string first_difference(const BackwardTensors& a, const BackwardTensors& b) {
  return named("grad_q", a.grad_q, b.grad_q) + named("grad_k", a.grad_k, b.grad_k) +
         named("grad_v", a.grad_v, b.grad_v) + named("grad_bias", a.grad_bias, b.grad_bias);
}

}  // namespace tessera::test
