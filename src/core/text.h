// Text for messages: values of any printable type, one after the other.
#pragma once

#include <sstream>
#include <string>

namespace tessera::core {

template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream stream;
  stream.precision(10);
  (stream << ... << parts);
  return stream.str();
}

}  // namespace tessera::core
