// Lists and lines as text.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::lab {

// The text without the blanks around it.
std::string_view trim(std::string_view text);

// The parts between separators, without surrounding blanks. Empty parts stay.
std::vector<std::string> split(std::string_view text, char separator);

// The lines of a text on one line, joined by "; ": errors of the library may have several.
std::string one_line(std::string_view text);

// The candidate that differs least from `word`, for "did you mean"; empty when none is near.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

// "1 point", "3 points".
std::string counted(std::size_t count, const std::string& noun);

}  // namespace tessera::lab
