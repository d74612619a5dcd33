#include "support/build.h"

#include <cstdlib>
#include <iostream>

namespace tessera::test {

int scaled(int full, int reduced, const std::string& what) {
  const bool asked = std::getenv("TESSERA_TEST_REDUCED") != nullptr;
  if (!kReduced && !asked) return full;
  std::cout << "note: " << (kReduced ? "sanitizer or debug build" : "TESSERA_TEST_REDUCED is set") << ": "
            << what << ' ' << reduced << " instead of " << full << '\n';
  return reduced;
}

}  // namespace tessera::test
