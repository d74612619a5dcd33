#include "support/build.h"

#include <iostream>

namespace tessera::test {

int scaled(int full, int reduced, const std::string& what) {
  if (!kReduced) return full;
  std::cout << "note: sanitizer or debug build: " << what << ' ' << reduced << " instead of " << full << '\n';
  return reduced;
}

}  // namespace tessera::test
