// The values of command-line options, from text: numbers, lists, ranges, sizes, masks. A function
// that refuses a value throws a UsageError that names the option, the value and what is allowed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lab/problem/problem.h"
#include "lab/terminal/errors.h"

namespace tessera::lab {

// What an integer option allows, both ends inclusive.
struct IntegerBounds {
  std::int64_t lowest = 1;
  std::int64_t highest = std::int64_t{1} << 40;
};

// One integer; "4k" is 4096.
std::int64_t parse_integer(const std::string& option, const std::string& text, IntegerBounds bounds);

// A list of integers and ranges: "256,512", "256..4096" (doubling), "64..256+64" (adding),
// "1..27*3" (multiplying). Never empty.
std::vector<std::int64_t> parse_integers(const std::string& option, const std::string& text,
                                         IntegerBounds bounds);

// One finite number in [lowest, highest], or [lowest, highest) when `open`.
struct NumberBounds {
  double lowest = 0;
  double highest = 1e30;
  bool open = false;
};
double parse_number(const std::string& option, const std::string& text, NumberBounds bounds);
std::vector<double> parse_numbers(const std::string& option, const std::string& text, NumberBounds bounds);

// A number of bytes: "16GiB", "1.5 GB", "800MiB", "4096". At least 1.
std::size_t parse_bytes(const std::string& option, const std::string& text);

// A list of words out of `allowed`, as indices into it. '-' and '_' are the same.
std::vector<std::size_t> parse_choices(const std::string& option, const std::string& text,
                                       std::span<const std::string_view> allowed);

// A list of yes and no (also true/false, on/off, 1/0).
std::vector<bool> parse_switches(const std::string& option, const std::string& text);

// A window "L,R": how many keys are visible before and after the diagonal, -1: all. "none" is the
// window -1,-1.
Window parse_window(const std::string& option, const std::string& text);

// A list of presets: a comma followed by a letter starts the next one.
std::vector<BlockPreset> parse_block_masks(const std::string& option, const std::string& text);

}  // namespace tessera::lab
