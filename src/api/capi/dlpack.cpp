// DLPack in: another library's tensor as ours, without a copy. Everything that the caller's struct
// says is checked before it is used, since it often comes from another language.
#include <dlpack/dlpack.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "api/tensor_checks.h"
#include "core/base/out_of_memory.h"
#include "tessera/tensor.h"

namespace tessera {
namespace {

using api::refuse;

std::string indexed(const char* field, int i) {
  return std::string("dl_tensor.") + field + "[" + std::to_string(i) + "]";
}

struct Ranks {
  int least;
  int most;
  const char* allowed;
};

Ranks ranks_of(TensorRole role) {
  switch (role) {
    case TensorRole::tokens:
      return {3, 4, "4 (batch, sequence, heads, head_dim) or 3 (sequence, heads, head_dim)"};
    case TensorRole::lse:
      return {2, 4, "4 (batch, heads, sequence, 1), 3 (batch, heads, sequence) or 2 (heads, sequence)"};
    case TensorRole::bias:
    case TensorRole::visible:
      return {1, 4, "1 to 4 (batch, heads, query sequence, key sequence; the leading ones may be missing)"};
  }
  refuse("role is ", static_cast<int>(role), "; it must be tokens (0), lse (1), bias (2) or visible (3)");
}

DType dtype_of(const DLDataType& type, TensorRole role) {
  const bool boolean = role == TensorRole::visible;
  if (type.lanes == 1 && boolean) {
    // kDLBool is missing in older headers.
    if ((type.code == 6 || type.code == kDLUInt) && type.bits == 8) return DType::boolean;
  } else if (type.lanes == 1) {
    if (type.code == kDLFloat && type.bits == 64) return DType::fp64;
    if (type.code == kDLFloat && type.bits == 32) return DType::fp32;
    if (type.code == kDLFloat && type.bits == 16) return DType::fp16;
    if (type.code == kDLBfloat && type.bits == 16) return DType::bf16;
  }
  refuse("dl_tensor.dtype is {code ", std::to_string(type.code), ", bits ", std::to_string(type.bits),
         ", lanes ", type.lanes, "}; it must be ",
         boolean ? "bool (code 6) or uint (code 1) of 8 bits"
                 : "float (code 2) of 64, 32 or 16 bits or bfloat (code 4) of 16 bits",
         ", with 1 lane");
}

Device device_of(const DLDevice& device) {
  // Copied as a number: newer versions of DLPack have kinds that this header's enumeration cannot
  // hold.
  static_assert(sizeof(device.device_type) == sizeof(int));
  int type = 0;
  std::memcpy(&type, &device.device_type, sizeof(type));
  switch (type) {
    case kDLCPU:
    case kDLCUDAHost:  // pinned memory is host memory
      return Device::cpu();
    case kDLCUDA:
    case kDLCUDAManaged:
      if (device.device_id < 0) {
        refuse("dl_tensor.device.device_id is ", device.device_id, "; it must be at least 0");
      }
      return Device::cuda(device.device_id);
    default:
      refuse("dl_tensor.device.device_type is ", type,
             "; it must be 1 (CPU), 2 (CUDA), 3 (CUDA pinned, counts as CPU) or 13 (CUDA managed, "
             "counts as its GPU)");
  }
}

// Sizes, refused when negative or when the number of bytes does not fit 63 bits: a product that
// wraps to 0 would pass for an empty tensor.
void check_shape(const DLTensor& given, std::int64_t element_bytes) {
  std::int64_t bytes = element_bytes;
  for (int i = 0; i < given.ndim; ++i) {
    const std::int64_t size = given.shape[i];
    if (size < 0) refuse(indexed("shape", i), " is ", size, "; it must be at least 0");
    // A size of 0 does not excuse the others: strides are products of them.
    if (__builtin_mul_overflow(bytes, size > 0 ? size : 1, &bytes)) {
      refuse(indexed("shape", i), " is ", size,
             "; with the sizes before it the tensor exceeds the limit of 2^63 - 1 bytes");
    }
  }
}

// Strides, refused when an element would lie further away than 63 bits of bytes can say.
void check_strides(const DLTensor& given, std::int64_t element_bytes) {
  std::int64_t extent = 0;
  for (int i = 0; i < given.ndim; ++i) {
    const std::int64_t stride = given.strides[i];
    std::int64_t span = 0;
    const std::int64_t steps = given.shape[i] > 1 ? given.shape[i] - 1 : 0;
    if (steps == 0) continue;  // a stride that is never taken may be anything
    if (stride == std::numeric_limits<std::int64_t>::min() ||
        __builtin_mul_overflow(steps, stride < 0 ? -stride : stride, &span) ||
        __builtin_mul_overflow(span, element_bytes, &span) || __builtin_add_overflow(extent, span, &extent)) {
      refuse(indexed("strides", i), " is ", stride, "; with the size ", given.shape[i],
             " the tensor spans more than the limit of 2^63 - 1 bytes");
    }
  }
}

void* first_element(const DLTensor& given, std::int64_t element_bytes, bool empty) {
  if (given.data == nullptr) {
    if (!empty) refuse("dl_tensor.data is null; only a tensor with a size of 0 may be null");
    return nullptr;
  }
  const auto size = static_cast<std::uint64_t>(element_bytes);
  const auto base = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(given.data));
  std::uint64_t address = 0;
  if (__builtin_add_overflow(base, given.byte_offset, &address)) {
    refuse("dl_tensor.byte_offset is ", given.byte_offset,
           "; it must not lead past the end of the address space");
  }
  if (address % size != 0) {
    refuse("dl_tensor.data + byte_offset is ", address, " (byte_offset ", given.byte_offset,
           "); it must be a multiple of the element size, ", size);
  }
  return static_cast<char*>(given.data) + given.byte_offset;
}

Tensor import(const void* dl_tensor, TensorRole role) {
  const Ranks ranks = ranks_of(role);
  if (dl_tensor == nullptr) refuse("dl_tensor is null; it must point to a DLTensor");
  const DLTensor& given = *static_cast<const DLTensor*>(dl_tensor);
  if (given.ndim < ranks.least || given.ndim > ranks.most) {
    refuse("dl_tensor.ndim is ", given.ndim, "; it must be ", ranks.allowed);
  }
  if (given.shape == nullptr) refuse("dl_tensor.shape is null; it must point to ndim sizes");

  Tensor tensor;
  tensor.dtype = dtype_of(given.dtype, role);
  tensor.device = device_of(given.device);
  const auto element_bytes = static_cast<std::int64_t>(size_of(tensor.dtype));
  check_shape(given, element_bytes);
  const bool empty = std::find(given.shape, given.shape + given.ndim, 0) != given.shape + given.ndim;
  if (given.strides != nullptr && !empty) check_strides(given, element_bytes);

  // Dimensions that the other library does not have are of size 1, where strides do not matter: a
  // batch (and what else leads) in front, and for an LSE the last dimension.
  const bool trailing = role == TensorRole::lse && given.ndim < 4;
  const int first = 4 - given.ndim - (trailing ? 1 : 0);
  tensor.shape = {1, 1, 1, 1};
  tensor.strides = {0, 0, 0, 1};
  std::int64_t contiguous = 1;
  for (int i = given.ndim - 1; i >= 0; --i) {
    const int at = first + i;
    tensor.shape[at] = given.shape[i];
    tensor.strides[at] = given.strides != nullptr ? given.strides[i] : contiguous;
    contiguous *= given.shape[i] > 0 ? given.shape[i] : 1;  // cannot overflow: check_shape took the product
  }
  tensor.data = first_element(given, element_bytes, empty);
  return tensor;
}

}  // namespace

Tensor from_dlpack(const void* dl_tensor, TensorRole role) {
  return core::guarded([&] { return import(dl_tensor, role); });
}

}  // namespace tessera
