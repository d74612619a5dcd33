// The values of command-line options as text: numbers, lists, ranges, sizes, masks. Every function names the
// option, the value and what is allowed when it refuses one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::lab {

// The user typed something that cannot be: one line, exit code 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What an integer option allows, both ends inclusive.
struct IntegerBounds {
  std::int64_t lowest = 1;
  std::int64_t highest = std::int64_t{1} << 40;
};

// One integer; "4k" is 4096.
std::int64_t parse_integer(const std::string& option, const std::string& text, IntegerBounds bounds);

// A list of integers and ranges: "256,512", "256..4096" (doubling), "64..256+64" (adding), "1..27*3"
// (multiplying). Never empty.
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

// A window "L,R": keys seen before and after the diagonal, -1: all. "none" is the window -1,-1.
struct Window {
  std::int64_t left = -1;
  std::int64_t right = -1;
  friend bool operator==(const Window&, const Window&) = default;
};
Window parse_window(const std::string& option, const std::string& text);

// A block-mask preset and its numbers, as in "bigbird:1,1,2".
struct BlockPreset {
  std::string name = "none";
  std::vector<double> numbers;
  friend bool operator==(const BlockPreset&, const BlockPreset&) = default;
};
std::string to_string(const BlockPreset& preset);

// A list of presets: a comma followed by a letter starts the next one.
std::vector<BlockPreset> parse_block_masks(const std::string& option, const std::string& text);

// The parts between commas, without surrounding blanks. Empty parts stay.
std::vector<std::string> split(std::string_view text, char separator);

// Lines joined by "; ": what the library says on several lines, as one.
std::string one_line(std::string_view text);

// The candidate that differs least from `word`, or nothing when none is near: for "did you mean".
std::string nearest(std::string_view word, std::span<const std::string> candidates);

}  // namespace tessera::lab
