#include "support/build.h"

#include <cstdlib>
#include <iostream>
#include <string_view>

namespace tessera::test {

int scaled(int full, int reduced, const std::string& what, int least) {
  const char* asked = std::getenv("TESSERA_TEST_REDUCED");
  if (!kReduced && asked == nullptr) return full;
  if (least != 0 && asked != nullptr && std::string_view(asked) == "2") reduced = least;
  std::cout << "note: " << (kReduced ? "sanitizer or debug build" : "TESSERA_TEST_REDUCED is set") << ": "
            << what << ' ' << reduced << " instead of " << full << '\n';
  return reduced;
}

}  // namespace tessera::test
