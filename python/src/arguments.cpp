#include "arguments.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <limits>

#include "array.h"

namespace tessera::python {
namespace {

[[noreturn]] void refuse_value(const char* name, nb::handle value, const std::string& allowed) {
  refuse(std::string(name) + " is " + shown(value) + "; it must be " + allowed);
}

bool is_array(nb::handle value) { return nb::hasattr(value, "__dlpack__"); }

// The value as Python's int; null when it is none.
nb::object index_of(nb::handle value) {
  if (PyLong_Check(value.ptr())) return nb::borrow(value);
  if (PyIndex_Check(value.ptr()) == 0 || is_array(value)) return {};
  nb::object number = nb::steal(PyNumber_Index(value.ptr()));
  if (!number.is_valid()) PyErr_Clear();
  return number;
}

}  // namespace

std::string shown(nb::handle value) {
  if (is_array(value)) return "an array (" + std::string(nb::inst_name(value).c_str()) + ")";
  constexpr std::size_t longest = 80;
  std::string text = nb::repr(value).c_str();
  return text.size() <= longest ? text : text.substr(0, longest) + "...";
}

std::int64_t integer(const char* name, nb::handle value) {
  const nb::object number = index_of(value);
  if (!number.is_valid()) refuse_value(name, value, "an integer");
  int overflow = 0;
  const long long result = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow != 0) refuse_value(name, value, "from -2^63 to 2^63 - 1");
  return result;
}

std::uint64_t bits64(const char* name, nb::handle value) {
  const nb::object number = index_of(value);
  if (!number.is_valid()) refuse_value(name, value, "an integer from 0 to 2^64 - 1");
  const unsigned long long result = PyLong_AsUnsignedLongLong(number.ptr());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    refuse_value(name, value, "from 0 to 2^64 - 1");
  }
  return result;
}

double real(const char* name, nb::handle value, const char* none) {
  if (PyFloat_Check(value.ptr())) return PyFloat_AsDouble(value.ptr());
  if (is_array(value)) {
    refuse_value(name, value,
                 "a number" + std::string(none) +
                     ": the value of an array may change, and its gradient would be lost; pass float(" +
                     name + ")");
  }
  const double result = PyFloat_AsDouble(value.ptr());
  if (PyErr_Occurred() == nullptr) return result;
  PyErr_Clear();
  refuse_value(name, value, "a number" + std::string(none));
}

bool truth(const char* name, nb::handle value) {
  if (value.is(Py_True) || value.is(Py_False)) return value.is(Py_True);
  const int result = is_array(value) ? -1 : PyObject_IsTrue(value.ptr());
  if (result >= 0) return result != 0;
  PyErr_Clear();
  refuse_value(name, value, "True or False");
}

int thread_count(nb::handle value) {
  const std::int64_t count = integer("threads", value);
  constexpr int most = std::numeric_limits<int>::max();
  if (count > most) refuse_value("threads", value, "at most " + std::to_string(most));
  // The library refuses negative numbers.
  return static_cast<int>(std::max<std::int64_t>(count, std::numeric_limits<int>::min()));
}

std::string word(const char* name, nb::handle value) {
  if (nb::isinstance<nb::str>(value)) return nb::cast<std::string>(value);
  refuse_value(name, value, "a string");
}

}  // namespace tessera::python
