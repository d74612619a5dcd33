// Numbers as people read them: three significant digits and a unit.
#pragma once

#include <cstddef>
#include <string>

namespace tessera::lab {

// Three significant digits, never in exponent form for everyday sizes: "0.0123", "4.56", "123",
// "45600".
std::string significant(double value, int digits = 3);

// "512 B", "1.50 KiB", "16.0 GiB".
std::string bytes_text(double bytes);

// "525 k", "1.05 M", "34.4 G" followed by the unit: count_text(flops, "FLOP") is "34.4 GFLOP".
std::string count_text(double count, const std::string& unit = "");

// "850 us", "12.3 ms", "4.56 s", "2 min 05 s".
std::string duration_text(double seconds);

// Minutes and seconds for progress lines: "0:07", "12:40", "1:02:03".
std::string clock_text(double seconds);

// "3.1e-07"; "0" for exactly nothing.
std::string error_text(double error);

}  // namespace tessera::lab
