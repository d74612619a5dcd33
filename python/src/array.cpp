#include "array.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/error.h"

namespace tessera::python {
namespace {

// The exchange table of a type, or null. Looked up once per type. The types are few and stay alive.
const dlpack::Exchange* exchange_of(PyTypeObject* type) {
  static auto& known =
      *new std::vector<std::pair<PyTypeObject*, const dlpack::Exchange*>>;  // outlives Python
  for (const auto& [known_type, exchange] : known) {
    if (known_type == type) return exchange;
  }
  const dlpack::Exchange* exchange = nullptr;
  nb::object capsule =
      nb::getattr(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__", nb::none());
  if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api") != 0) {
    exchange =
        static_cast<const dlpack::Exchange*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    while (exchange != nullptr && exchange->version.major > 1) exchange = exchange->previous;
    if (exchange != nullptr && (exchange->version.major != 1 || exchange->view_of_object == nullptr))
      exchange = nullptr;
  }
  Py_INCREF(reinterpret_cast<PyObject*>(type));
  known.emplace_back(type, exchange);
  return exchange;
}

// The element type of a buffer, by the letters of Python's `struct` module; no value: another one.
std::optional<dlpack::Type> type_of_format(const char* format, Py_ssize_t item_bytes) {
  std::string_view letters = format != nullptr ? format : "B";
  if (letters.size() == 2 && std::string_view("@=<").find(letters[0]) != std::string_view::npos) {
    letters.remove_prefix(1);
  }
  if (letters.size() != 1) return {};
  std::uint8_t code = 0;
  if (std::string_view("efd").find(letters[0]) != std::string_view::npos) code = dlpack::kFloat;
  else if (std::string_view("bhilq").find(letters[0]) != std::string_view::npos) code = dlpack::kInt;
  else if (std::string_view("BHILQ").find(letters[0]) != std::string_view::npos) code = dlpack::kUInt;
  else if (letters[0] == '?') code = dlpack::kBool;
  else return {};
  return dlpack::Type{code, static_cast<std::uint8_t>(8 * item_bytes), 1};
}

bool same(const dlpack::Type& a, const dlpack::Type& b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

std::string name_of(const dlpack::Type& type) {
  constexpr std::array<const char*, 7> kinds{"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
  constexpr std::array<const char*, 11> small{// DLPack's codes from 7 on
                                              "float8_e3m4",     "float8_e4m3",     "float8_e4m3b11fnuz",
                                              "float8_e4m3fn",   "float8_e4m3fnuz", "float8_e5m2",
                                              "float8_e5m2fnuz", "float8_e8m0fnu",  "float6_e2m3fn",
                                              "float6_e3m2fn",   "float4_e2m1fn"};
  if (type.code >= kinds.size() + small.size()) return "a type of DLPack's code " + std::to_string(type.code);
  if (type.code >= kinds.size()) return small[type.code - kinds.size()];
  if (type.code == dlpack::kBool) return "bool";
  std::string text = kinds[type.code] + std::to_string(type.bits);
  if (type.lanes != 1) text += " in vectors of " + std::to_string(type.lanes);
  return text;
}

}  // namespace

void refuse(const std::string& text) { throw Error(ErrorCode::invalid_argument, text); }

Array::Array(const char* name, nb::handle object, const Stream& stream) : name_(name) {
  if (by_exchange(object) || by_buffer(object) || by_dlpack(object, stream)) return;
  const std::string type = nb::str(nb::getattr(object.type(), "__name__")).c_str();
  const bool traced = type.ends_with("Tracer");  // JAX's
  throw nb::type_error(
      (std::string(name) + " is of type " + type +
       (traced ? "; inside jax.jit, grad and vmap arrays have no memory; call tessera outside of "
                 "them, or through jax.pure_callback"
               : "; it must be an array with __dlpack__ (PyTorch, NumPy, CuPy, JAX)"))
          .c_str());
}

bool Array::by_exchange(nb::handle object) {
  exchange_ = exchange_of(Py_TYPE(object.ptr()));
  if (exchange_ == nullptr) return false;
  if (exchange_->view_of_object(object.ptr(), &view_) != 0) nb::raise_python_error();
  return true;
}

bool Array::by_buffer(nb::handle object) {
  if (PyObject_CheckBuffer(object.ptr()) == 0) return false;
  nb::object source = nb::borrow(object);
  bool bfloat = false;
  if (nb::object dtype = nb::getattr(object, "dtype", nb::none()); !dtype.is_none()) {
    // NumPy knows bfloat16 from the package ml_dtypes, but neither its buffers nor its DLPack do.
    nb::object number = nb::getattr(dtype, "num", nb::none());
    if (number.is_none() || nb::cast<int>(number) >= 256) {
      bfloat = std::string_view(nb::str(nb::getattr(dtype, "name", nb::str(""))).c_str()) == "bfloat16";
      if (bfloat && nb::hasattr(source, "view") && !number.is_none()) source = source.attr("view")("uint16");
    }
  }
  if (!buffer_.take(source))
    return false;  // __dlpack__ may work, and has the better error text if it does not
  const Py_buffer& buffer = buffer_.view();
  std::optional<dlpack::Type> type = type_of_format(buffer.format, buffer.itemsize);
  if (!type) {  // the first use of the type refuses it by name
    other_type_ = nb::str(nb::getattr(object, "dtype", nb::str(buffer.format))).c_str();
    type = dlpack::Type{dlpack::kOpaque, 0, 1};
  }
  if (bfloat && type->bits == 16) type->code = dlpack::kBfloat;
  if (buffer.ndim > static_cast<int>(std::size(strides_))) {
    refuse(std::string(name_) + ".ndim is " + std::to_string(buffer.ndim) + "; it must be at most " +
           std::to_string(std::size(strides_)));
  }
  for (int i = 0; i < buffer.ndim; ++i) {
    if (buffer.strides[i] % buffer.itemsize != 0 && buffer.shape[i] > 1 && buffer.len > 0) {
      refuse(std::string(name_) + ".strides[" + std::to_string(i) + "] is " +
             std::to_string(buffer.strides[i]) + " bytes; it must be a multiple of the element size, " +
             std::to_string(buffer.itemsize));
    }
    strides_[i] = buffer.strides[i] / buffer.itemsize;
  }
  static_assert(sizeof(Py_ssize_t) == sizeof(std::int64_t));
  view_ = {buffer.buf,
           {dlpack::kCpu, 0},
           buffer.ndim,
           *type,
           reinterpret_cast<std::int64_t*>(buffer.shape),
           strides_,
           0};
  read_only_ = buffer.readonly != 0;
  return true;
}

bool Array::has_foreign_type(nb::handle object) {
  other_type_ = nb::str(nb::getattr(object, "dtype", nb::str(""))).c_str();
  constexpr std::array<std::string_view, 4> known{"float64", "float32", "float16", "bfloat16"};
  if (std::find(known.begin(), known.end(), other_type_) != known.end()) other_type_.clear();
  view_ = {.data = nullptr,
           .device = {dlpack::kCpu, 0},
           .ndim = 0,
           .dtype = {dlpack::kOpaque, 0, 1},
           .shape = nullptr,
           .strides = nullptr,
           .byte_offset = 0};
  return !other_type_.empty();
}

bool Array::by_dlpack(nb::handle object, const Stream& stream) {
  nb::object source = nb::borrow(object);
  if (!nb::hasattr(source, "__dlpack__") || !nb::hasattr(source, "__dlpack_device__")) return false;
  // PyTorch before 2.10: __dlpack__ fails for tensors that require a gradient.
  if (nb::object needs = nb::getattr(source, "requires_grad", nb::none());
      !needs.is_none() && nb::cast<bool>(needs)) {
    source = source.attr("detach")();
  }
  nb::dict arguments;
  const int device = nb::cast<int>(nb::object(source.attr("__dlpack_device__")()[0]));
  if (device == dlpack::kCuda || device == dlpack::kCudaManaged) {
    // -1: the caller passed a stream, so nobody waits. 1: the array's library waits for the legacy
    // default stream.
    arguments["stream"] = stream.asked ? -1 : 1;
  }
  arguments["max_version"] = nb::make_tuple(1, 1);
  try {
    capsule_ = source.attr("__dlpack__")(**arguments);
  } catch (nb::python_error& error) {
    if (error.matches(PyExc_BufferError) && has_foreign_type(source)) return true;
    if (!error.matches(PyExc_TypeError)) throw;  // a library without versions
    nb::del(arguments["max_version"]);
    capsule_ = source.attr("__dlpack__")(**arguments);
  }
  // The capsule keeps its name: its own destructor frees the tensor.
  if (PyCapsule_IsValid(capsule_.ptr(), "dltensor_versioned") != 0) {
    const auto* managed =
        static_cast<dlpack::ManagedVersioned*>(PyCapsule_GetPointer(capsule_.ptr(), "dltensor_versioned"));
    if (managed->version.major != 1) {
      refuse(std::string(name_) + " comes as DLPack " + std::to_string(managed->version.major) +
             "; it must be 1 or older");
    }
    view_ = managed->tensor;
    read_only_ = (managed->flags & dlpack::kReadOnly) != 0;
    return true;
  }
  if (PyCapsule_IsValid(capsule_.ptr(), "dltensor") == 0) return false;
  view_ = static_cast<dlpack::Managed*>(PyCapsule_GetPointer(capsule_.ptr(), "dltensor"))->tensor;
  return true;
}

std::string Array::dtype_name() const { return other_type_.empty() ? name_of(view_.dtype) : other_type_; }

std::optional<std::uintptr_t> Array::current_stream() const {
  if (exchange_ == nullptr || exchange_->current_stream == nullptr || !on_gpu()) return {};
  void* stream = nullptr;
  if (exchange_->current_stream(dlpack::kCuda, view_.device.index, &stream) != 0) nb::raise_python_error();
  return reinterpret_cast<std::uintptr_t>(stream);
}

Tensor Array::tensor(TensorRole role, Layout layout) const {
  const bool boolean = view_.dtype.code == dlpack::kBool || same(view_.dtype, {dlpack::kUInt, 8, 1});
  if (role == TensorRole::visible && !boolean) {
    refuse(std::string(name_) + ".dtype is " + dtype_name() +
           "; it must be bool or uint8; pass numbers that are added to the scores as bias");
  }
  if (role == TensorRole::bias && view_.dtype.code == dlpack::kBool) {
    refuse(std::string(name_) +
           ".dtype is bool; it must be float64, float32, float16 or bfloat16; pass a boolean "
           "mask as visible");
  }
  if (role != TensorRole::visible && view_.dtype.code != dlpack::kFloat &&
      view_.dtype.code != dlpack::kBfloat) {
    refuse(std::string(name_) + ".dtype is " + dtype_name() +
           "; it must be float64, float32, float16 or bfloat16");
  }
  Tensor result;
  try {
    result = from_dlpack(&view_, role);
  } catch (const Error& error) {  // the same text, with the name and the layout of the argument
    std::string text = error.what();
    auto replace = [&](std::string_view what, std::string_view by) {
      for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size()) {
        text.replace(at, what.size(), by);
      }
    };
    replace("dl_tensor", name_);
    if (layout == Layout::heads_first) replace("sequence, heads, head_dim", "heads, sequence, head_dim");
    throw Error(error.code(), text);
  }
  result.read_only = read_only_;
  if (role == TensorRole::tokens && layout == Layout::heads_first) {
    std::swap(result.shape[1], result.shape[2]);
    std::swap(result.strides[1], result.strides[2]);
  }
  return result;
}

void Array::check_flat(dlpack::Type type, std::optional<dlpack::Type> also) const {
  if (!same(view_.dtype, type) && !(also && same(view_.dtype, *also))) {
    refuse(std::string(name_) + ".dtype is " + dtype_name() + "; it must be " + name_of(type) +
           (also ? " or " + name_of(*also) : ""));
  }
  if (view_.ndim != 1) {
    refuse(std::string(name_) + ".ndim is " + std::to_string(view_.ndim) + "; it must be 1");
  }
  if (view_.strides != nullptr && view_.shape[0] > 1 && view_.strides[0] != 1) {
    refuse(std::string(name_) + ".strides[0] is " + std::to_string(view_.strides[0]) +
           "; it must be 1 (contiguous)");
  }
}

}  // namespace tessera::python
