// The `tessera` command as a function.
#pragma once

namespace tessera::lab {

// Exit codes: 0 done; 1 something failed; 2 wrong arguments; 128 + signal when interrupted.
int run_application(int argc, const char* const* argv);

}  // namespace tessera::lab
