// A method: one way to compute a problem.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lab/problem/problem.h"

namespace tessera::lab {

struct Method {
  Algorithm algorithm = Algorithm::automatic;  // as requested
  std::string label{};       // what rows and figures call the method; empty: the algorithm's name
  std::string kernel{};      // forced, as TESSERA_KERNEL does; empty: the registry chooses
  std::string baseline{};    // one of lab/baselines instead of the library; empty: the library
  std::string stage{};       // of the baseline "unfused": the part that is timed; else a word for rows
  std::int64_t block_k = 0;  // keys per tile, forced as TESSERA_BLOCK_K does; 0: the kernel chooses
  friend bool operator==(const Method&, const Method&) = default;
};

// The label, or the algorithm's name.
std::string name(const Method& method);

// One method for each of the algorithms, in their order.
std::vector<Method> methods_of(const std::vector<Algorithm>& algorithms);

// Every algorithm that some kernel implements for the device and one of the directions of the
// problems. Where there is none: `automatic`, whose row then says what is missing.
std::vector<Algorithm> algorithms_here(const std::vector<Problem>& problems);

}  // namespace tessera::lab
