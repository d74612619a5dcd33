// The checks on one tensor argument, and the vocabulary of their messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/refuse.h"
#include "core/base/text.h"
#include "core/problem.h"
#include "tessera/tensor.h"

namespace tessera::api {

using core::refuse;

inline constexpr std::int64_t kMaxHeadDim = 256;
inline constexpr std::int64_t kMostElements = std::int64_t{1}
                                              << 59;  // of a tensor: no count of bytes overflows

// Whether the tensors must have data, or only shapes (planning).
enum class Data { required, optional };

// A tensor with the name of its argument and what its dimensions mean.
struct Argument {
  const char* name;
  const Tensor& tensor;
  TensorRole role;
};

// Whether a tensor of this shape has no element.
bool holds_nothing(const Extents& shape);

// What a dimension of a role is called, as in "heads".
const char* dimension_name(TensorRole role, int dimension);

// Is of a known type, with an index that such devices have; `owner` is what stands before "device"
// in messages.
template <typename... Owner>
void check_known(Device device, const Owner&... owner) {
  if (device.type > DeviceType::cuda) {
    refuse(owner..., "device.type is ", static_cast<int>(device.type), "; it must be cpu or cuda");
  }
  const bool cpu = device.type == DeviceType::cpu;
  if (device.index < 0 || (cpu && device.index != 0)) {
    refuse(owner..., "device.index is ", device.index,
           cpu ? "; it must be 0 for the CPU" : "; it must not be negative");
  }
}

// The device of q exists, where the machine has GPUs. On a machine without GPUs the registry
// reports what each kernel requires.
void check_gpu(const char* name, Device device);

// Is null or aligned as its type requires.
template <typename T>
void check_aligned(const char* name, const T* pointer) {
  if (reinterpret_cast<std::uintptr_t>(pointer) % alignof(T) == 0) return;
  refuse(name, " is ", static_cast<const void*>(pointer), "; it must be aligned to ", alignof(T), " bytes");
}

// Is given, and is sound by itself: known type and device, sizes in range, last dimension
// contiguous, every address within 63 bits, data present and aligned where `data` requires it.
void check_tensor(const Argument& argument, Data data);

// Size `dimension` equals `expected`; `as` says where the expectation comes from ("as q", ...).
void check_size(const Argument& argument, int dimension, std::int64_t expected, std::string_view as);

// Likewise its type; the parts of the explanation become a text only when the check fails.
template <typename... As>
void check_dtype(const Argument& argument, DType expected, const As&... as) {
  if (argument.tensor.dtype == expected) return;
  refuse(argument.name, ".dtype is ", name(argument.tensor.dtype), "; it must be ", name(expected), ", ",
         as...);
}
void check_device(const Argument& argument, Device expected);

// May be written: not read-only, no element addressed twice.
void check_writable(const Argument& argument);

// The address arithmetic of kernels for this tensor; strides of size-1 dimensions become 0.
core::View view_of(const Argument& argument);

std::string describe(const Extents& extents);

}  // namespace tessera::api
