#include "lab/commands/parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "lab/terminal/text.h"

namespace tessera::lab {
namespace {

// A range that expands to more is a slip of the keyboard.
constexpr std::size_t kMostValues = 10'000;

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

[[noreturn]] void refuse(const std::string& option, std::string_view text, std::string_view allowed) {
  throw UsageError(fmt::format("{} '{}': {}", option, text, allowed));
}

std::optional<std::int64_t> read_integer(std::string_view text) {
  text = trim(text);
  if (!text.empty() && text.front() == '+') text.remove_prefix(1);
  std::int64_t unit = 1;
  if (!text.empty() && (text.back() == 'k' || text.back() == 'K')) {
    unit = 1024;
    text.remove_suffix(1);
  }
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return {};
  if (value > std::numeric_limits<std::int64_t>::max() / unit) return {};
  if (value < std::numeric_limits<std::int64_t>::min() / unit) return {};
  return value * unit;
}

std::optional<double> read_number(std::string_view text) {
  text = trim(text);
  if (text.empty()) return {};
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(value)) return {};
  return value;
}

std::string describe(IntegerBounds bounds) {
  if (bounds.highest == IntegerBounds{}.highest) {
    return fmt::format("an integer of at least {}", bounds.lowest);
  }
  return fmt::format("an integer from {} to {}", bounds.lowest, bounds.highest);
}

// "A..B", "A..B+S" or "A..B*F", already known to contain "..".
void append_range(const std::string& option, const std::string& text, IntegerBounds bounds,
                  std::vector<std::int64_t>& values) {
  const std::size_t dots = text.find("..");
  const std::string rest = text.substr(dots + 2);
  const std::size_t sign = rest.find_first_of("+*");
  const bool adds = sign != std::string::npos && rest[sign] == '+';
  const auto first = read_integer(text.substr(0, dots));
  const auto last = read_integer(rest.substr(0, sign));
  const auto step =
      sign == std::string::npos ? std::optional<std::int64_t>(2) : read_integer(rest.substr(sign + 1));
  if (!first || !last || !step) {
    refuse(option, text, "a range is A..B (doubling), A..B+S (adding S) or A..B*F (multiplying by F)");
  }
  if (*first > *last || *first < bounds.lowest || *last > bounds.highest) {
    refuse(option, text,
           "both ends of the range must be " + describe(bounds) + ", the first not above the last");
  }
  if (adds ? *step < 1 : *step < 2 || *first < 1) {
    refuse(option, text, "a range adds at least 1, or multiplies a positive number by at least 2");
  }
  for (std::int64_t value = *first;; value = adds ? value + *step : value * *step) {
    values.push_back(value);
    if (values.size() > kMostValues) refuse(option, text, fmt::format("more than {} values", kMostValues));
    if (adds ? value > *last - *step : value > *last / *step) return;
  }
}

struct PresetForm {
  std::string_view name;
  std::size_t fewest;
  std::size_t most;
  std::string_view form;
};

constexpr std::array<PresetForm, 7> kPresets = {{{"none", 0, 0, "none"},
                                                 {"local", 1, 1, "local:RADIUS"},
                                                 {"strided", 1, 1, "strided:STRIDE"},
                                                 {"fixed", 1, 2, "fixed:STRIDE[,SUMMARY]"},
                                                 {"bigbird", 3, 3, "bigbird:RADIUS,GLOBAL,RANDOM"},
                                                 {"butterfly", 0, 0, "butterfly"},
                                                 {"random", 1, 1, "random:DENSITY"}}};

std::string preset_forms() {
  std::string forms;
  for (const PresetForm& preset : kPresets) {
    forms += (forms.empty() ? "" : ", ") + std::string(preset.form);
  }
  return forms;
}

BlockPreset parse_block_mask(const std::string& option, const std::string& text) {
  const std::size_t colon = text.find(':');
  BlockPreset preset{lower(trim(std::string_view(text).substr(0, colon))), {}};
  const auto* const form = std::find_if(kPresets.begin(), kPresets.end(),
                                        [&](const PresetForm& p) { return p.name == preset.name; });
  if (form == kPresets.end()) refuse(option, text, "must be one of " + preset_forms());
  if (colon != std::string::npos) {
    for (const std::string& part : split(text.substr(colon + 1), ',')) {
      const auto number = read_number(part);
      const bool density = form->name == "random";
      const bool right =
          number && (density ? *number > 0 && *number <= 1
                             : *number >= 0 && *number < 1e9 && *number == std::floor(*number));
      if (!right) {
        refuse(option, text,
               fmt::format("expected {}, {}", form->form,
                           density ? "the density above 0 and at most 1" : "with integers of at least 0"));
      }
      preset.numbers.push_back(*number);
    }
  }
  if (preset.numbers.size() < form->fewest || preset.numbers.size() > form->most) {
    refuse(option, text, fmt::format("expected {}", form->form));
  }
  return preset;
}

}  // namespace

std::int64_t parse_integer(const std::string& option, const std::string& text, IntegerBounds bounds) {
  const auto value = read_integer(text);
  if (!value || *value < bounds.lowest || *value > bounds.highest) {
    refuse(option, text, "must be " + describe(bounds));
  }
  return *value;
}

std::vector<std::int64_t> parse_integers(const std::string& option, const std::string& text,
                                         IntegerBounds bounds) {
  std::vector<std::int64_t> values;
  for (const std::string& part : split(text, ',')) {
    if (part.find("..") != std::string::npos) {
      append_range(option, part, bounds, values);
    } else {
      values.push_back(parse_integer(option, part, bounds));
    }
  }
  return values;
}

double parse_number(const std::string& option, const std::string& text, NumberBounds bounds) {
  const auto value = read_number(text);
  if (!value || *value < bounds.lowest || *value > bounds.highest ||
      (bounds.open && *value == bounds.highest)) {
    if (bounds.highest == NumberBounds{}.highest) {
      refuse(option, text, fmt::format("must be a number of at least {}", bounds.lowest));
    }
    refuse(option, text,
           fmt::format("must be a number from {} to {}{}", bounds.lowest, bounds.open ? "below " : "",
                       bounds.highest));
  }
  return *value;
}

std::vector<double> parse_numbers(const std::string& option, const std::string& text, NumberBounds bounds) {
  std::vector<double> values;
  for (const std::string& part : split(text, ',')) values.push_back(parse_number(option, part, bounds));
  return values;
}

std::size_t parse_bytes(const std::string& option, const std::string& text) {
  struct Unit {
    std::string_view name;
    double bytes;
  };
  constexpr std::array<Unit, 10> kUnits = {{{"", 1},
                                            {"b", 1},
                                            {"kib", 0x1p10},
                                            {"mib", 0x1p20},
                                            {"gib", 0x1p30},
                                            {"tib", 0x1p40},
                                            {"kb", 1e3},
                                            {"mb", 1e6},
                                            {"gb", 1e9},
                                            {"tb", 1e12}}};
  const std::size_t letters = std::min(text.find_first_not_of("0123456789.+ "), text.size());
  const auto number = read_number(std::string_view(text).substr(0, letters));
  const std::string unit = lower(trim(std::string_view(text).substr(letters)));
  const auto* const found =
      std::find_if(kUnits.begin(), kUnits.end(), [&](const Unit& u) { return u.name == unit; });
  const double bytes = number && found != kUnits.end() ? *number * found->bytes : 0;
  if (bytes < 1 || bytes > 0x1p62) {
    refuse(option, text, "must be a positive size such as 16GiB, 512MiB, 8GB or a number of bytes");
  }
  return static_cast<std::size_t>(bytes);
}

std::vector<std::size_t> parse_choices(const std::string& option, const std::string& text,
                                       std::span<const std::string_view> allowed) {
  std::vector<std::size_t> chosen;
  for (const std::string& part : split(text, ',')) {
    std::string word = lower(part);
    std::replace(word.begin(), word.end(), '-', '_');
    const auto found = std::find(allowed.begin(), allowed.end(), word);
    if (found == allowed.end()) {
      refuse(option, part, fmt::format("must be one of {}", fmt::join(allowed, ", ")));
    }
    chosen.push_back(static_cast<std::size_t>(found - allowed.begin()));
  }
  return chosen;
}

std::vector<bool> parse_switches(const std::string& option, const std::string& text) {
  static constexpr std::array<std::string_view, 4> kYes = {"yes", "true", "on", "1"};
  static constexpr std::array<std::string_view, 4> kNo = {"no", "false", "off", "0"};
  std::vector<bool> values;
  for (const std::string& part : split(text, ',')) {
    const std::string word = lower(part);
    const bool yes = std::find(kYes.begin(), kYes.end(), word) != kYes.end();
    const bool no = std::find(kNo.begin(), kNo.end(), word) != kNo.end();
    if (!yes && !no) refuse(option, part, "must be yes, no or both (no,yes)");
    values.push_back(yes);
  }
  return values;
}

Window parse_window(const std::string& option, const std::string& text) {
  if (lower(trim(text)) == "none") return {};
  const std::vector<std::string> parts = split(text, ',');
  std::optional<std::int64_t> left, right;
  if (parts.size() == 2) {
    left = read_integer(parts[0]);
    right = read_integer(parts[1]);
  }
  if (!left || !right || *left < -1 || *right < -1) {
    refuse(option, text, "must be LEFT,RIGHT, each -1 (all) or more, or none; repeat the option to sweep");
  }
  return {*left, *right};
}

std::vector<BlockPreset> parse_block_masks(const std::string& option, const std::string& text) {
  std::vector<std::string> items;
  for (const std::string& part : split(text, ',')) {
    const bool continues =
        !items.empty() && !part.empty() && std::isalpha(static_cast<unsigned char>(part.front())) == 0;
    if (continues) items.back() += "," + part;
    else items.push_back(part);
  }
  std::vector<BlockPreset> presets;
  presets.reserve(items.size());
  for (const std::string& item : items) presets.push_back(parse_block_mask(option, item));
  return presets;
}

}  // namespace tessera::lab
