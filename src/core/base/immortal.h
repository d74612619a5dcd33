// Static data that is never destroyed.
#pragma once

#include <utility>

namespace tessera::core {

// The value of make(), for the life of the process:
//
//   static const std::vector<Target>& targets = core::immortal(find_targets);
//
// A call may come from a destructor that runs after those of static data: an ordinary static table
// would be gone by then. Every static object of the library whose destructor does something is made
// this way or is a Lazy (lazy.h). What calls on the CPU use must be Lazy: a child that is forked
// while another thread makes the value does not have to wait.
template <typename Make>
auto& immortal(Make&& make) {
  return *new auto(std::forward<Make>(make)());
}

}  // namespace tessera::core
