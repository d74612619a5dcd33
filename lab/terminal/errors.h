// The two ways in which a command fails by itself: wrong input, and output that cannot be written.
#pragma once

#include <stdexcept>

namespace tessera::lab {

// The user typed something invalid, or named a file that is. One line; exit code 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A file or standard output could not be written. Exit code 1.
class OutputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace tessera::lab
