/// \file
/// Tensor: a non-owning, strided, rank-4 view of the caller's memory.
///
/// The text of a value, everywhere in the library: every enumeration has `name(enumerator)`, a
/// constant such as "bf16", and every other printable type has `to_string(value)`. Both kinds have
/// an `operator<<`; tessera/format.h adds `std::format`.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <iterator>
#include <ranges>
#include <string>
#include <type_traits>

#include "tessera/export.h"

namespace tessera {

/// The type of one element.
enum class DType : std::uint8_t {
  fp64,     ///< IEEE binary64 (CPU only); accumulated in fp64.
  fp32,     ///< IEEE binary32; accumulated in fp32.
  fp16,     ///< IEEE binary16; accumulated in fp32.
  bf16,     ///< bfloat16, the upper half of a binary32; accumulated in fp32.
  boolean,  ///< One byte, 0 or another value; only for `visible`.
};

/// Returns the name of an element type, as in "bf16". Never null.
[[nodiscard]] TESSERA_API const char* name(DType dtype) noexcept;

/// Writes the name.
TESSERA_API std::ostream& operator<<(std::ostream& stream, DType dtype);

/// Returns the size of one element in bytes.
[[nodiscard]] constexpr std::size_t size_of(DType dtype) noexcept {
  return dtype == DType::fp64 ? 8 : dtype == DType::fp32 ? 4 : dtype == DType::boolean ? 1 : 2;
}

/// Returns the type of sums and statistics such as the LSE: fp64 for fp64, fp32 for all others.
[[nodiscard]] constexpr DType accumulator_of(DType dtype) noexcept {
  return dtype == DType::fp64 ? DType::fp64 : DType::fp32;
}

/// The kind of memory that holds the data.
enum class DeviceType : std::uint8_t {
  cpu,   ///< Host memory.
  cuda,  ///< Memory of an NVIDIA GPU.
};

/// Returns the name of a kind of device, "cpu" or "cuda". Never null.
[[nodiscard]] TESSERA_API const char* name(DeviceType type) noexcept;

/// Writes the name.
TESSERA_API std::ostream& operator<<(std::ostream& stream, DeviceType type);

/// A device: it holds data and runs kernels.
struct Device {
  DeviceType type = DeviceType::cpu;  ///< The kind of device.
  int index = 0;                      ///< Which device of its kind; 0 for the CPU.

  /// The host.
  [[nodiscard]] static constexpr Device cpu() noexcept { return {}; }
  /// GPU number `index`, as the CUDA runtime counts them.
  [[nodiscard]] static constexpr Device cuda(int index = 0) noexcept { return {DeviceType::cuda, index}; }

  /// Two devices are equal when kind and index are.
  friend constexpr bool operator==(const Device&, const Device&) noexcept = default;
};

/// Returns a device as text: "cpu", "cuda:0".
[[nodiscard]] TESSERA_API std::string to_string(Device device);

/// Writes the device as text.
TESSERA_API std::ostream& operator<<(std::ostream& stream, Device device);

/// Four sizes or strides.
using Extents = std::array<std::int64_t, 4>;

/// A non-owning, strided, rank-4 view. The argument decides what the dimensions mean:
///
/// | argument                         | dimensions                                                |
/// |----------------------------------|-----------------------------------------------------------|
/// | q, k, v, out and their gradients | batch, sequence, heads, head_dim                          |
/// | lse, grad_lse                    | batch, heads, sequence, 1                                 |
/// | bias, grad_bias, visible         | batch or 1, heads or 1, query sequence or 1, key sequence |
///
/// **Strides** count elements and may have any value; inputs may also have zero or negative
/// strides. The last dimension must be contiguous: stride 1, which a dimension of size 1 need not
/// state. No two indices of an output may address the same element; a layout that takes too long to
/// check counts as overlapping.
///
/// **Empty tensors.** When a size is 0 the pointer may be null and the strides may have any value.
/// A default-constructed Tensor is an omitted argument.
struct Tensor {
  void* data = nullptr;           ///< The first element; aligned to the size of one element.
  DType dtype = DType::fp32;      ///< The type of the elements.
  Extents shape{};                ///< Sizes, outermost first; each at most 2^32, product below 2^59.
  Extents strides{};              ///< Distances in elements, outermost first.
  Device device = Device::cpu();  ///< The device that holds `data`.
  bool read_only = false;         ///< Made from a pointer to const: invalid as an output.

  /// False for a default-constructed Tensor: the argument is omitted.
  [[nodiscard]] constexpr bool given() const noexcept { return data != nullptr || shape != Extents{}; }
};

/// Returns the strides of a tensor of this shape without gaps, the last dimension innermost.
/// Strides that overflow 64 bits saturate; a call that receives such a tensor fails with
/// invalid_argument.
[[nodiscard]] constexpr Extents contiguous_strides(const Extents& shape) noexcept {
  Extents strides{1, 1, 1, 1};
  for (std::size_t i = 3; i > 0; --i) {
    if (__builtin_mul_overflow(strides[i], shape[i], &strides[i - 1])) strides[i - 1] = INT64_MAX;
  }
  return strides;
}

/// Makes a view of contiguous memory, the last dimension innermost.
[[nodiscard]] constexpr Tensor tensor(void* data, DType dtype, const Extents& shape,
                                      Device device = Device::cpu()) noexcept {
  return {data, dtype, shape, contiguous_strides(shape), device, false};
}

/// Makes a read-only view of contiguous memory.
[[nodiscard]] inline Tensor tensor(const void* data, DType dtype, const Extents& shape,
                                   Device device = Device::cpu()) noexcept {
  return {const_cast<void*>(data), dtype, shape, contiguous_strides(shape), device, true};
}

/// Makes a view with the caller's strides, in elements.
[[nodiscard]] constexpr Tensor tensor(void* data, DType dtype, const Extents& shape, const Extents& strides,
                                      Device device = Device::cpu()) noexcept {
  return {data, dtype, shape, strides, device, false};
}

/// Makes a read-only view with the caller's strides, in elements.
[[nodiscard]] inline Tensor tensor(const void* data, DType dtype, const Extents& shape,
                                   const Extents& strides, Device device = Device::cpu()) noexcept {
  return {const_cast<void*>(data), dtype, shape, strides, device, true};
}

/// A C++ type with an element type of its own: float is fp32, double is fp64, bool is boolean;
/// const views are read-only.
template <typename T>
concept Element = std::same_as<std::remove_const_t<T>, float> ||
                  std::same_as<std::remove_const_t<T>, double> || std::same_as<std::remove_const_t<T>, bool>;

/// Makes a view of contiguous `float`, `double` or `bool` memory; the pointer decides the element
/// type.
template <Element T>
[[nodiscard]] Tensor tensor(T* data, const Extents& shape, Device device = Device::cpu()) noexcept {
  constexpr DType kDType = sizeof(T) == 8 ? DType::fp64 : sizeof(T) == 4 ? DType::fp32 : DType::boolean;
  using Void = std::conditional_t<std::is_const_v<T>, const void, void>;
  return tensor(static_cast<Void*>(data), kDType, shape, device);
}

/// Throws Error (invalid_argument) unless a tensor of this shape has exactly `elements` elements.
TESSERA_API void check_elements(std::size_t elements, const Extents& shape);

/// A range of `float`, `double` or `bool` elements that are contiguous and outlive the range object
/// or are passed by reference: std::span, std::vector, std::array.
template <typename Range>
concept ElementRange =
    std::ranges::contiguous_range<Range> && std::ranges::sized_range<Range> &&
    std::ranges::borrowed_range<Range> && !std::is_array_v<std::remove_reference_t<Range>> &&
    Element<std::remove_reference_t<std::ranges::range_reference_t<Range>>>;

/// Makes a view of the elements of a span, vector or array.
/// Throws Error (invalid_argument) unless it has exactly as many elements as the shape.
template <ElementRange Range>
[[nodiscard]] Tensor tensor(Range&& elements, const Extents& shape, Device device = Device::cpu()) {
  check_elements(std::ranges::size(elements), shape);
  return tensor(std::ranges::data(elements), shape, device);
}

/// The argument that a tensor of another library is meant for: it decides how a rank below 4 is
/// read.
enum class TensorRole {
  tokens,   ///< q, k, v, out, gradients: rank 4, or rank 3 (sequence, heads, head_dim) with a batch of 1.
  lse,      ///< lse, grad_lse: rank 4, rank 3 (batch, heads, sequence) or rank 2 (heads, sequence).
  bias,     ///< bias, grad_bias: rank 1 to 4; missing leading dimensions are 1 (broadcast).
  visible,  ///< visible: as a bias, but boolean.
};

/// Returns the name of a role, as in "tokens". Never null.
[[nodiscard]] TESSERA_API const char* name(TensorRole role) noexcept;

/// Writes the name.
TESSERA_API std::ostream& operator<<(std::ostream& stream, TensorRole role);

/// Makes a view of the memory that a DLPack tensor describes; copies nothing. `dl_tensor` points to
/// a `DLTensor` of `<dlpack/dlpack.h>` (untyped, so that this header does not include that one).
/// The function reads the DLTensor and keeps no pointer to it; the memory must outlive the Tensor.
/// Throws Error (invalid_argument) for a null pointer and for an unsupported type, rank, size or
/// device.
[[nodiscard]] TESSERA_API Tensor from_dlpack(const void* dl_tensor, TensorRole role);

}  // namespace tessera
