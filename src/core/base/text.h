// Text for messages: values of any printable type, one after the other.
#pragma once

#include <locale>
#include <sstream>
#include <string>

namespace tessera::core {

template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream stream;
  stream.imbue(std::locale::classic());  // numbers look the same whatever locale the program has set
  stream.exceptions(std::ios::badbit);   // running out of memory must not just cut the text short
  stream.precision(10);
  (stream << ... << parts);
  return stream.str();
}

}  // namespace tessera::core
