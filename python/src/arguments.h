// Numbers, words and switches from Python. Each function throws Error
// (invalid_argument), a ValueError in Python, which names the argument, its value
// and what is allowed. Arrays are refused, even of one element: options are cached
// for later calls, but an array may change, and its gradient would be lost.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <type_traits>

namespace tessera::python {

namespace nb = nanobind;

// The value as an error shows it: its repr, or the type of an array.
std::string shown(nb::handle value);

// An integer of 64 bits, from anything with `__index__`.
std::int64_t integer(const char* name, nb::handle value);
// An integer from 0 to 2^64 - 1.
std::uint64_t bits64(const char* name, nb::handle value);
// A number, from anything with `__float__`. `none` is the text for arguments that may also be None.
double real(const char* name, nb::handle value, const char* none = "");
// True or False.
bool truth(const char* name, nb::handle value);
// A number of threads, which fits an int.
int thread_count(nb::handle value);
// A string.
std::string word(const char* name, nb::handle value);

// The one of these that makes a `T`.
template <typename T>
T argument(const char* name, nb::handle value) {
  if constexpr (std::is_same_v<T, double>) return real(name, value);
  else if constexpr (std::is_same_v<T, std::uint64_t>) return bits64(name, value);
  else {
    static_assert(std::is_same_v<T, std::int64_t>);
    return integer(name, value);
  }
}

}  // namespace tessera::python
