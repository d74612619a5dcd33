#include "lab/terminal/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace tessera::lab {

std::string significant(double value, int digits) {
  if (!std::isfinite(value)) return fmt::format("{}", value);
  if (value == 0) return "0";
  const double magnitude = std::fabs(value);
  if (magnitude < 1e-4) return fmt::format("{:.{}e}", value, std::max(0, digits - 2));
  // Rounding may carry into a further digit (99.96 is 100, not 100.0), so round before counting
  // digits.
  const int before = static_cast<int>(std::floor(std::log10(magnitude))) + 1;
  const double unit = std::pow(10.0, before - digits);
  const double rounded = std::round(magnitude / unit) * unit;
  const int carried = static_cast<int>(std::floor(std::log10(rounded) + 1e-12)) + 1;
  return fmt::format("{:.{}f}", value, std::max(0, digits - carried));
}

std::string bytes_text(double bytes) {
  constexpr std::array<const char*, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  while (bytes >= 1023.5 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  if (unit == 0) return fmt::format("{:.0f} B", bytes);
  return fmt::format("{} {}", significant(bytes, bytes >= 999.5 ? 4 : 3), kUnits[unit]);
}

std::string count_text(double count, const std::string& unit) {
  constexpr std::array<const char*, 7> kPrefixes = {"", "k", "M", "G", "T", "P", "E"};
  std::size_t prefix = 0;
  while (count >= 999.5 && prefix + 1 < kPrefixes.size()) {
    count /= 1000;
    ++prefix;
  }
  const std::string number =
      prefix == 0 && count == std::floor(count) ? fmt::format("{:.0f}", count) : significant(count);
  const std::string suffix = kPrefixes[prefix] + unit;
  return suffix.empty() ? number : number + " " + suffix;
}

std::string duration_text(double seconds) {
  if (seconds < 1e-3) return significant(seconds * 1e6) + " us";
  if (seconds < 1) return significant(seconds * 1e3) + " ms";
  if (seconds < 99.5) return significant(seconds) + " s";
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  return fmt::format("{} min {:02} s", whole / 60, whole % 60);
}

std::string clock_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(std::max(0.0, seconds)));
  if (whole >= 3600) {
    return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  }
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

std::string error_text(double error) { return error == 0 ? "0" : fmt::format("{:.1e}", error); }

}  // namespace tessera::lab
