#include "api/tensor_checks.h"

#include <cstdint>

#include "api/overlap.h"
#include "core/base/checked.h"
#include "cuda/common/host/gpus.h"

namespace tessera::api {
namespace {

constexpr std::int64_t kMaxSize = std::int64_t{1} << 48;

// "q.shape[3] (head_dim)"
std::string size_name(const Argument& argument, int dimension) {
  return core::concat(argument.name, ".shape[", dimension, "] (", dimension_name(argument.role, dimension),
                      ")");
}

// Products of sizes (tokens, bytes, elements) must fit a signed 64-bit number, also where strides
// of 0 keep the memory small, and where a size of 0 leaves no element: kernels multiply the others.
void check_count(const Argument& argument) {
  const Extents& s = argument.tensor.shape;
  if (core::product_below(kMostElements, {s[0], s[1], s[2], s[3]})) return;
  refuse(argument.name, ".shape is ", describe(s), "; it must have fewer than 2^59 elements",
         holds_nothing(s) ? " (sizes of 0 count as 1)" : "");
}

// Every element's byte offset from `data` must fit a signed 64-bit number, whichever way the
// strides point.
void check_span(const Argument& argument) {
  const Tensor& tensor = argument.tensor;
  if (holds_nothing(tensor.shape)) return;
  std::int64_t span = 0;
  for (int i = 0; i < 4; ++i) {
    if (tensor.shape[i] == 1) continue;
    std::int64_t reach = 0;
    bool overflow = tensor.strides[i] == INT64_MIN;
    const std::int64_t stride = tensor.strides[i] < 0 && !overflow ? -tensor.strides[i] : tensor.strides[i];
    overflow = overflow || __builtin_mul_overflow(stride, tensor.shape[i] - 1, &reach);
    overflow = overflow || __builtin_add_overflow(span, reach, &span);
    overflow = overflow || span > (INT64_MAX >> 4);  // room for the element size and for differences
    if (overflow) {
      refuse(argument.name, ".strides is ", describe(tensor.strides), " with shape ", describe(tensor.shape),
             "; byte offsets must fit in 63 bits");
    }
  }
}

}  // namespace

bool holds_nothing(const Extents& shape) {
  return shape[0] == 0 || shape[1] == 0 || shape[2] == 0 || shape[3] == 0;
}

const char* dimension_name(TensorRole role, int dimension) {
  static constexpr const char* kNames[4][4] = {
      {"batch", "sequence", "heads", "head_dim"},
      {"batch", "heads", "sequence", "1"},
      {"batch", "heads", "query sequence", "key sequence"},
      {"batch", "heads", "query sequence", "key sequence"},
  };
  return kNames[static_cast<int>(role)][dimension];
}

void check_gpu(const char* name, Device device) {
  if (device.type != DeviceType::cuda || cuda::unusable(device.index).empty()) return;
  if (const int count = cuda::device_count(); count > 0 && device.index >= count) {
    refuse(name, " is ", device, "; this machine has ", count, count == 1 ? " GPU" : " GPUs",
           ", counted from cuda:0");
  }
}

void check_tensor(const Argument& argument, Data data) {
  const Tensor& tensor = argument.tensor;
  if (!tensor.given()) refuse(argument.name, " is not given; it is required");
  const bool boolean = argument.role == TensorRole::visible;
  if (tensor.dtype > DType::boolean) {
    refuse(argument.name, ".dtype is ", static_cast<int>(tensor.dtype), "; it must be ",
           boolean ? "bool" : "fp64, fp32, fp16 or bf16");
  }
  if (boolean && tensor.dtype != DType::boolean) {
    refuse(argument.name, ".dtype is ", name(tensor.dtype),
           "; it must be bool; pass numbers that are added to the scores as bias");
  }
  if (!boolean && tensor.dtype == DType::boolean) {
    refuse(argument.name,
           ".dtype is bool; it must be fp64, fp32, fp16 or bf16; pass a boolean mask as visible");
  }
  check_known(tensor.device, argument.name, ".");
  for (int i = 0; i < 4; ++i) {
    if (tensor.shape[i] < 0 || tensor.shape[i] > kMaxSize) {
      refuse(size_name(argument, i), " is ", tensor.shape[i], "; it must be between 0 and 2^48");
    }
  }
  if (argument.role == TensorRole::tokens) {
    if (tensor.shape[3] < 1 || tensor.shape[3] > kMaxHeadDim) {
      refuse(size_name(argument, 3), " is ", tensor.shape[3], "; it must be between 1 and ", kMaxHeadDim);
    }
    if (tensor.shape[2] < 1) refuse(size_name(argument, 2), " is 0; it must be at least 1");
  }
  if (tensor.shape[3] > 1 && tensor.strides[3] != 1 && !holds_nothing(tensor.shape)) {
    refuse(argument.name, ".strides[3] is ", tensor.strides[3],
           "; the last dimension must be contiguous (stride 1)");
  }
  check_count(argument);
  check_span(argument);
  if (data == Data::optional || holds_nothing(tensor.shape)) return;
  if (tensor.data == nullptr) {
    refuse(argument.name, ".data is null with shape ", describe(tensor.shape),
           "; only a tensor without elements may be null");
  }
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.data);
  if (address % size_of(tensor.dtype) != 0) {
    refuse(argument.name, ".data is ", tensor.data, "; it must be aligned to ", size_of(tensor.dtype),
           " bytes, the size of one ", name(tensor.dtype));
  }
}

void check_size(const Argument& argument, int dimension, std::int64_t expected, std::string_view as) {
  if (argument.tensor.shape[dimension] == expected) return;
  refuse(size_name(argument, dimension), " is ", argument.tensor.shape[dimension], "; it must be ", expected,
         ", ", as);
}

void check_device(const Argument& argument, Device expected) {
  if (argument.tensor.device == expected) return;
  refuse(argument.name, ".device is ", argument.tensor.device, "; it must be ", expected, ", as q");
}

void check_writable(const Argument& argument) {
  if (argument.tensor.read_only) {
    refuse(argument.name, " is read-only (made from a pointer to const); an output must be writable");
  }
  if (addresses_twice(argument.tensor)) {
    refuse(argument.name, ".strides is ", describe(argument.tensor.strides), " with shape ",
           describe(argument.tensor.shape), "; an output may not address one element twice");
  }
}

core::View view_of(const Argument& argument) {
  const Tensor& tensor = argument.tensor;
  const bool nothing = holds_nothing(tensor.shape);
  auto stride = [&](int dimension) {  // one that is never taken may be anything
    return tensor.shape[dimension] > 1 && !nothing ? tensor.strides[dimension] : std::int64_t{0};
  };
  if (argument.role == TensorRole::tokens) return {tensor.data, stride(0), stride(2), stride(1)};
  return {tensor.data, stride(0), stride(1), stride(2)};
}

std::string describe(const Extents& extents) {
  return core::concat("(", extents[0], ", ", extents[1], ", ", extents[2], ", ", extents[3], ")");
}

}  // namespace tessera::api

namespace tessera {

void check_elements(std::size_t elements, const Extents& shape) {
  std::uint64_t expected = 1;
  bool overflow = false;
  for (const std::int64_t size : shape) {
    if (size < 0) core::refuse("shape is ", api::describe(shape), "; no size may be negative");
    overflow = __builtin_mul_overflow(expected, static_cast<std::uint64_t>(size), &expected) || overflow;
  }
  if (!overflow && expected == elements) return;
  core::refuse("shape is ", api::describe(shape), "; it must have ", elements,
               " elements, as the memory has");
}

}  // namespace tessera
