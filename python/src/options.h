// Options: the description of a call without its data, and the library's enumerations by name.
#pragma once

#include <nanobind/nanobind.h>

#include <string_view>

#include "tessera/attention.h"

namespace tessera::python {

namespace nb = nanobind;

// What Python sees as `Options`.
struct Options {
  Attention attention{};  // without the members that point to memory: slopes, lengths, dropout state
};

// The enumerator with the name `text`. Throws Error (invalid_argument), which lists the names.
Algorithm algorithm_of(std::string_view text);
Direction direction_of(std::string_view text);
DType dtype_of(std::string_view text);
// "cpu", "cuda" or "cuda:1".
Device device_of(std::string_view text);

// Each file adds its part to the module.
void add_block_mask(nb::module_& module);
void add_options(nb::module_& module);
void add_calls(nb::module_& module);
void add_plan(nb::module_& module);
void add_command(nb::module_& module);  // where the build has the command

}  // namespace tessera::python
