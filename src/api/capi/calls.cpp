// The C interface: status and error text, tensors, the two calls, and what this build has.
#include "tessera/capi.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "api/capi/support.h"
#include "api/capi/translate.h"
#include "tessera/tessera.h"

namespace tessera::api {
namespace {

constexpr std::size_t kErrorCapacity = 4096;
thread_local char last_error[kErrorCapacity] = "";

}  // namespace

void set_last_error(const char* text) noexcept {
  const std::size_t length = std::min(std::strlen(text), kErrorCapacity - 1);
  std::memcpy(last_error, text, length);
  last_error[length] = '\0';
}

void copy_text(std::string_view text, char* buffer, std::size_t capacity, std::size_t* length) {
  if (buffer == nullptr && length == nullptr)
    refuse("buffer and length are null; at least one of them is required");
  if (length != nullptr) *length = text.size();
  if (buffer == nullptr) return;
  if (capacity <= text.size()) {
    refuse("capacity is ", capacity, "; it must be at least ", text.size() + 1);
  }
  std::memcpy(buffer, text.data(), text.size());
  buffer[text.size()] = '\0';
}

}  // namespace tessera::api

using namespace tessera;
using namespace tessera::api;

// The lists own copies of what the library says, and the arrays of texts that C programs read.
struct tsr_kernel_list {
  std::vector<KernelInfo> kernels;
  std::vector<std::vector<const char*>> features, missing;
};

struct tsr_device_list {
  std::vector<DeviceInfo> devices;
};

namespace {

std::vector<const char*> texts_of(const std::vector<std::string>& strings) {
  std::vector<const char*> texts;
  texts.reserve(strings.size());
  for (const std::string& string : strings) texts.push_back(string.c_str());
  return texts;
}

void check_index(std::size_t index, std::size_t count) {
  if (index >= count) {
    refuse("index is ", index, "; it must be less than ", count);
  }
}

// a * b for sizes, INT64_MAX when that does not fit.
std::int64_t saturating_product(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<std::int64_t>::max() : product;
}

}  // namespace

// --- status --------------------------------------------------------------------------------------

const char* tsr_last_error(void) { return last_error; }

const char* tsr_status_name(tsr_status status) {
  if (status == TSR_OK) return "ok";
  if (status == TSR_INTERNAL_ERROR) return "internal_error";
  return status >= TSR_INVALID_ARGUMENT && status <= TSR_DEVICE_FAILURE ? name(static_cast<ErrorCode>(status))
                                                                        : "unknown";
}

// --- tensors -------------------------------------------------------------------------------------

tsr_tensor tsr_tensor_contiguous(void* data, tsr_dtype dtype, int64_t size0, int64_t size1, int64_t size2,
                                 int64_t size3) {
  const std::int64_t inner = saturating_product(size2, size3);
  return {data,  dtype, 0, {size0, size1, size2, size3}, {saturating_product(size1, inner), inner, size3, 1},
          {0, 0}};
}

tsr_status tsr_tensor_from_dlpack(const void* dl_tensor, tsr_role role, tsr_tensor* result) {
  return guarded([&] {
    require(result, "result");
    const Tensor tensor = from_dlpack(dl_tensor, role_from(role));
    *result = {tensor.data,
               static_cast<tsr_dtype>(tensor.dtype),
               tensor.read_only ? 1 : 0,
               {tensor.shape[0], tensor.shape[1], tensor.shape[2], tensor.shape[3]},
               {tensor.strides[0], tensor.strides[1], tensor.strides[2], tensor.strides[3]},
               to_c(tensor.device)};
  });
}

const char* tsr_dtype_name(tsr_dtype dtype) {
  return dtype >= TSR_FP64 && dtype <= TSR_BF16 ? name(static_cast<DType>(dtype)) : "unknown";
}

// --- the calls -----------------------------------------------------------------------------------

tsr_status tsr_forward(const tsr_attention* attention, const tsr_forward_tensors* tensors,
                       const tsr_execution* execution) {
  return guarded([&] {
    const TranslatedExecution translated(execution);
    forward(attention_from(attention), tensors_from(tensors), translated.get());
  });
}

tsr_status tsr_backward(const tsr_attention* attention, const tsr_backward_tensors* tensors,
                        const tsr_execution* execution) {
  return guarded([&] {
    const TranslatedExecution translated(execution);
    backward(attention_from(attention), tensors_from(tensors), translated.get());
  });
}

// --- what this build and this machine have -------------------------------------------------------

tsr_status tsr_kernel_list_create(tsr_kernel_list** list, size_t* count) {
  return guarded([&] {
    require(list, "list");
    auto made = std::make_unique<tsr_kernel_list>();
    made->kernels = kernels();
    for (const KernelInfo& kernel : made->kernels) {
      made->features.push_back(texts_of(kernel.features));
      made->missing.push_back(texts_of(kernel.missing));
    }
    if (count != nullptr) *count = made->kernels.size();
    *list = made.release();
  });
}

tsr_status tsr_kernel_list_get(const tsr_kernel_list* list, size_t index, tsr_kernel_info* info) {
  return guarded([&] {
    require(list, "list");
    require(info, "info");
    check_struct_size(info->struct_size, sizeof(std::size_t), "info", "TSR_KERNEL_INFO_INIT");
    check_index(index, list->kernels.size());
    const KernelInfo& kernel = list->kernels[index];
    write_versioned(info, tsr_kernel_info{0, kernel.name.c_str(), list->features[index].data(),
                                          list->missing[index].data(), kernel.features.size(),
                                          kernel.missing.size(), static_cast<tsr_algorithm>(kernel.algorithm),
                                          static_cast<tsr_direction>(kernel.direction),
                                          static_cast<tsr_device_type>(kernel.device), 0});
  });
}

void tsr_kernel_list_release(tsr_kernel_list* list) { delete list; }

tsr_status tsr_device_list_create(tsr_device_list** list, size_t* count) {
  return guarded([&] {
    require(list, "list");
    auto made = std::make_unique<tsr_device_list>();
    made->devices = devices();
    if (count != nullptr) *count = made->devices.size();
    *list = made.release();
  });
}

tsr_status tsr_device_list_get(const tsr_device_list* list, size_t index, tsr_device_info* info) {
  return guarded([&] {
    require(list, "list");
    require(info, "info");
    check_struct_size(info->struct_size, sizeof(std::size_t), "info", "TSR_DEVICE_INFO_INIT");
    check_index(index, list->devices.size());
    const DeviceInfo& device = list->devices[index];
    write_versioned(info,
                    tsr_device_info{0, device.name.c_str(), device.description.c_str(), to_c(device.device)});
  });
}

void tsr_device_list_release(tsr_device_list* list) { delete list; }

tsr_status tsr_alibi_slopes(int64_t heads, float* slopes) {
  return guarded([&] {
    require(slopes, "slopes");
    const std::vector<float> values = alibi_slopes(heads);
    std::copy(values.begin(), values.end(), slopes);
  });
}

const char* tsr_version(void) { return version(); }

tsr_status tsr_build_info(char* buffer, size_t capacity, size_t* length) {
  return guarded([&] { copy_text(build_info(), buffer, capacity, length); });
}

const char* tsr_algorithm_name(tsr_algorithm algorithm) {
  return algorithm >= TSR_AUTOMATIC && algorithm <= TSR_MINIMAL ? name(static_cast<Algorithm>(algorithm))
                                                                : "unknown";
}

const char* tsr_direction_name(tsr_direction direction) {
  return direction == TSR_FORWARD || direction == TSR_BACKWARD ? name(static_cast<Direction>(direction))
                                                               : "unknown";
}
