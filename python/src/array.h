// Arrays of other libraries, without a copy: what an object says about its memory,
// for the time of a call.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "dlpack_abi.h"
#include "tessera/tensor.h"

namespace tessera::python {

namespace nb = nanobind;

// Throws Error (invalid_argument), which Python sees as a ValueError.
[[noreturn]] void refuse(const std::string& text);

// The order of the dimensions of q, k, v, out and their gradients.
enum class Layout { sequence_first, heads_first };

// The stream of a call, and what it passes to the libraries of its arrays.
struct Stream {
  std::optional<std::uintptr_t>
      asked{};  // what the caller passed; work on its arrays is already ordered on it
};

// Memory borrowed by Python's buffer protocol. Released also when the constructor
// of its owner throws.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer() {
    if (held_) PyBuffer_Release(&*held_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // Whether the object lends its memory. Clears the Python exception when it does not.
  bool take(nb::handle object) {
    Py_buffer view;
    if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
      PyErr_Clear();
      return false;
    }
    held_ = view;
    return true;
  }
  [[nodiscard]] const Py_buffer& view() const noexcept { return *held_; }

 private:
  std::optional<Py_buffer> held_;
};

// Borrows the memory of an array until it is destroyed (with the GIL held). The
// ways in, fastest first: DLPack's C exchange table (PyTorch from 2.10 on), the
// buffer protocol (NumPy, JAX on the CPU), `__dlpack__`.
class Array {
 public:
  // Throws TypeError when `object` is not an array, and passes on what its library raises.
  Array(const char* name, nb::handle object, const Stream& stream);
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  [[nodiscard]] const dlpack::Tensor& view() const noexcept { return view_; }
  [[nodiscard]] bool read_only() const noexcept { return read_only_; }
  [[nodiscard]] bool on_gpu() const noexcept {
    return view_.device.type == dlpack::kCuda || view_.device.type == dlpack::kCudaManaged;
  }
  [[nodiscard]] tessera::Device device() const noexcept {
    return on_gpu() ? tessera::Device::cuda(view_.device.index) : tessera::Device::cpu();
  }
  // The type as array libraries call it: "float32", "int64", "float8_e4m3fn".
  [[nodiscard]] std::string dtype_name() const;
  // The first element.
  [[nodiscard]] void* data() const noexcept { return static_cast<char*>(view_.data) + view_.byte_offset; }
  // The current stream of the array's library; empty when it cannot be asked.
  [[nodiscard]] std::optional<std::uintptr_t> current_stream() const;
  // The functions of the array's library, when they include an allocator; else null.
  [[nodiscard]] const dlpack::Exchange* lender() const noexcept {
    return exchange_ != nullptr && exchange_->allocate != nullptr ? exchange_ : nullptr;
  }

  // The array as a tensor of the library. Throws Error (invalid_argument) naming the argument.
  [[nodiscard]] tessera::Tensor tensor(TensorRole role, Layout layout = Layout::sequence_first) const;

  // A contiguous one-dimensional array of `T`, or of another type of the same size, `also`.
  template <typename T>
  [[nodiscard]] std::span<const T> flat(dlpack::Type type, std::optional<dlpack::Type> also = {}) const {
    check_flat(type, also);
    return {static_cast<const T*>(data()), static_cast<std::size_t>(view_.shape[0])};
  }

 private:
  bool by_exchange(nb::handle object);
  bool by_buffer(nb::handle object);
  bool by_dlpack(nb::handle object, const Stream& stream);
  // Whether the array has a type that its library cannot export. Every use then
  // fails and names the type.
  bool has_foreign_type(nb::handle object);
  void check_flat(dlpack::Type type, std::optional<dlpack::Type> also) const;

  const char* name_;
  dlpack::Tensor view_{};
  bool read_only_ = false;
  const dlpack::Exchange* exchange_ = nullptr;
  nb::object capsule_;            // by_dlpack: owns what view_ points to
  Buffer buffer_;                 // by_buffer: the same
  std::int64_t strides_[8] = {};  // by_buffer: in elements
  std::string other_type_;        // the name of a type that DLPack has no code for; usually empty
};

}  // namespace tessera::python
