// Static data that is never destroyed.
#pragma once

#include <utility>

namespace tessera::core {

// What `make` returns, for as long as the process lives:
//
//   static const std::vector<Target>& targets = core::immortal(find_targets);
//
// A call may come from a destructor that runs after those of static data: an ordinary static table would be gone by
// then. Every static object of the library whose destructor does something is made this way or is a Lazy (lazy.h), as
// everything must be that calls on the CPU use: a child that is forked while another thread makes it does without.
template <typename Make>
auto& immortal(Make&& make) {
  return *new auto(std::forward<Make>(make)());
}

}  // namespace tessera::core
