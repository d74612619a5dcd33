// Lines of source for addresses of code.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "core/base/text.h"
#include "gpu_model/machine/block.h"

namespace gpu_model {
namespace {

// The frames of an address, innermost first, two lines of text each: function and "file:line". The
// program is linked at fixed addresses, so that addr2line knows them.
std::string frames_of(Place at) {
  constexpr std::uintptr_t kBack = 1;  // a return address is behind the call
  const std::string command = tessera::core::concat(
      "addr2line -ifC -e /proc/", getpid(), "/exe ",
      reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(at) - kBack), " 2>/dev/null");
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {};
  std::string text;
  char part[4096];
  while (std::fgets(part, sizeof part, pipe) != nullptr) text += part;
  pclose(pipe);
  return text;
}

std::string source_line(const std::string& file, int number) {
  std::ifstream stream(file);
  std::string line;
  for (int i = 0; i < number && std::getline(stream, line); ++i) {
  }
  const std::size_t first = line.find_first_not_of(' ');
  return first == std::string::npos ? "" : line.substr(first);
}

}  // namespace

namespace {

// Without template arguments and parameters.
std::string short_name(const std::string& function) {
  std::string text;
  int depth = 0;
  for (const char letter : function) {
    if (letter == '(' && depth == 0) break;
    depth -= letter == '>';
    if (depth == 0 && letter != '<' && letter != '>') text += letter;
    depth += letter == '<';
  }
  return text;
}

// The innermost line of a kernel, else of anything but the twins; without either the function,
// where the compiler has merged code of several lines.
std::string look_up(Place at) {
  std::istringstream frames(frames_of(at));
  std::string function, frame, outside, innermost;
  while (std::getline(frames, function) && std::getline(frames, frame)) {
    frame = frame.substr(0, frame.find(" ("));
    if (innermost.empty()) innermost = short_name(function);
    const std::size_t colon = frame.rfind(':'), own = frame.rfind("/src/cuda/");
    const int line = colon == std::string::npos ? 0 : std::atoi(frame.c_str() + colon + 1);
    if (line == 0) continue;
    const std::string file = frame.substr(0, colon);
    const std::string text = tessera::core::concat(own == std::string::npos ? file : file.substr(own + 1),
                                                   ":", line, ": ", source_line(file, line));
    if (own != std::string::npos) return text;
    const bool twin =
        file.find("/tests/gpu_model/include/") != std::string::npos || file.ends_with("/gpu_model/device.h");
    if (outside.empty() && !twin) outside = text;
  }
  return outside.empty() ? innermost : outside;
}

}  // namespace

std::string describe(Place at) {
  if (at == nullptr) return "the end of the kernel";
  static std::map<Place, std::string> known;  // addr2line takes a while
  const auto found = known.find(at);
  return found != known.end() ? found->second : known.emplace(at, look_up(at)).first->second;
}

}  // namespace gpu_model
