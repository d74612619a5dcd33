/// \file
/// Tensor: a non-owning, strided, rank-4 view of the caller's memory.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tessera/export.h"

namespace tessera {

/// The type of one element.
enum class DType : std::uint8_t {
  fp64,  ///< IEEE binary64 (CPU only); accumulated in fp64.
  fp32,  ///< IEEE binary32; accumulated in fp32.
  fp16,  ///< IEEE binary16; accumulated in fp32.
  bf16,  ///< bfloat16, the upper half of a binary32; accumulated in fp32.
};

/// The name of a type, as in "bf16". Never null.
TESSERA_API const char* name(DType dtype) noexcept;

/// The size of one element in bytes.
constexpr std::size_t size_of(DType dtype) noexcept {
  return dtype == DType::fp64 ? 8 : dtype == DType::fp32 ? 4 : 2;
}

/// The type in which results that must not be rounded are kept (LSE, statistics): fp64 for fp64, else fp32.
constexpr DType accumulator_of(DType dtype) noexcept {
  return dtype == DType::fp64 ? DType::fp64 : DType::fp32;
}

/// The kind of memory data lives in.
enum class DeviceType : std::uint8_t {
  cpu,   ///< Host memory.
  cuda,  ///< Memory of an NVIDIA GPU.
};

/// A place where data lives and kernels run.
struct Device {
  DeviceType type = DeviceType::cpu;  ///< The kind of device.
  int index = 0;                      ///< Which one of its kind; 0 for the CPU.

  /// The host.
  static constexpr Device cpu() noexcept { return {}; }
  /// GPU number `index`, as the CUDA runtime counts them.
  static constexpr Device cuda(int index = 0) noexcept { return {DeviceType::cuda, index}; }

  /// The same device?
  friend constexpr bool operator==(const Device&, const Device&) noexcept = default;
};

/// Four sizes or strides.
using Extents = std::array<std::int64_t, 4>;

/// A non-owning, strided, rank-4 view. What its dimensions mean depends on the argument it is passed as:
///
/// | argument                                  | dimensions                                              |
/// |-------------------------------------------|---------------------------------------------------------|
/// | q, k, v, out and their gradients          | batch, sequence, heads, head_dim                        |
/// | lse, grad_lse                             | batch, heads, sequence, 1                               |
/// | bias, grad_bias                           | batch or 1, heads or 1, query sequence or 1, key sequence |
///
/// Strides count elements and may be anything (also zero or negative, for inputs) except along the last dimension, which
/// must be contiguous (stride 1, whatever its size-1 stride says). An output may not address one element twice; a layout
/// that takes too long to decide counts as one that does. A tensor with a size of 0 holds nothing: its pointer may be
/// null, its strides anything. A default-constructed Tensor means "not given".
struct Tensor {
  void* data = nullptr;           ///< The first element; aligned to the size of one element.
  DType dtype = DType::fp32;      ///< The type of the elements.
  Extents shape{};                ///< Sizes, outermost first; each at most 2^32, their product below 2^59.
  Extents strides{};              ///< Distances in elements, outermost first.
  Device device = Device::cpu();  ///< Where `data` lives.
  bool read_only = false;         ///< True when made from a pointer to const: refused as an output.

  /// False for a default-constructed Tensor: the argument is not given.
  [[nodiscard]] constexpr bool given() const noexcept { return data != nullptr || shape != Extents{}; }
};

/// The strides of a tensor of this shape without gaps, the last dimension innermost. Strides too large for 64
/// bits become the largest number; a call with such a tensor is refused.
constexpr Extents contiguous_strides(const Extents& shape) noexcept {
  Extents strides{1, 1, 1, 1};
  for (std::size_t i = 3; i > 0; --i) {
    if (__builtin_mul_overflow(strides[i], shape[i], &strides[i - 1])) strides[i - 1] = INT64_MAX;
  }
  return strides;
}

/// A view of memory without gaps, the last dimension innermost.
constexpr Tensor tensor(void* data, DType dtype, const Extents& shape,
                        Device device = Device::cpu()) noexcept {
  return {data, dtype, shape, contiguous_strides(shape), device, false};
}

/// The same for memory that is only read.
inline Tensor tensor(const void* data, DType dtype, const Extents& shape,
                     Device device = Device::cpu()) noexcept {
  return {const_cast<void*>(data), dtype, shape, contiguous_strides(shape), device, true};
}

/// A view with the caller's strides (in elements).
constexpr Tensor tensor(void* data, DType dtype, const Extents& shape, const Extents& strides,
                        Device device = Device::cpu()) noexcept {
  return {data, dtype, shape, strides, device, false};
}

/// The same for memory that is only read.
inline Tensor tensor(const void* data, DType dtype, const Extents& shape, const Extents& strides,
                     Device device = Device::cpu()) noexcept {
  return {const_cast<void*>(data), dtype, shape, strides, device, true};
}

/// A view of `float` or `double` memory without gaps: the type follows from the pointer.
template <typename T>
requires std::same_as < std::remove_const_t<T>,
float > ||
    std::same_as<std::remove_const_t<T>, double> Tensor tensor(T* data, const Extents& shape,
                                                               Device device = Device::cpu()) noexcept {
  constexpr DType dtype = sizeof(T) == 8 ? DType::fp64 : DType::fp32;
  return tensor(static_cast<std::conditional_t<std::is_const_v<T>, const void*, void*>>(data), dtype, shape,
                device);
}

/// Which argument a tensor of another library is meant for: it decides how fewer than four dimensions are
/// read.
enum class TensorRole {
  tokens,  ///< q, k, v, out, gradients: rank 4, or rank 3 (sequence, heads, head_dim) with a batch of 1.
  lse,     ///< lse, grad_lse: rank 4, rank 3 (batch, heads, sequence) or rank 2 (heads, sequence).
  bias,    ///< bias, grad_bias: rank 1 to 4, missing leading dimensions are 1 (broadcast).
};

/// The same memory as a DLPack tensor describes, without a copy. `dl_tensor` points to a `DLTensor` (from
/// `<dlpack/dlpack.h>`; untyped here so that this header does not need that one). The DLTensor is only read
/// during the call; the memory it describes must outlive the Tensor.
/// Throws Error (invalid_argument) for a null pointer, a type, rank, size or device the library cannot take.
TESSERA_API Tensor from_dlpack(const void* dl_tensor, TensorRole role);

}  // namespace tessera
