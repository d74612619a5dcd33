// One line that says what runs, how far it is and how long it will take.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>

namespace tessera::lab {

// "[ 25%] flash2 forward, seq 1024 (0:12 left)". The time left follows from the share that is done;
// nothing is said about it before there is something to go by.
std::string progress_text(const std::string& what, double share, double elapsed_seconds);

// On a terminal the line is rewritten in place and leaves nothing behind; elsewhere a plain line
// appears now and then, so that a log shows that the command lives.
class Progress {
 public:
  explicit Progress(std::FILE* stream = stderr);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `share` of the whole work is done, and `what` runs now.
  void show(const std::string& what, double share);

  // Takes the line away, so that something else can be printed.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  std::FILE* stream_;
  bool rewrites_;
  bool visible_ = false;
  Clock::time_point start_;
  Clock::time_point last_;
};

}  // namespace tessera::lab
