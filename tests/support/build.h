// How much a test may do in this kind of build.
#pragma once

#include <string>

namespace tessera::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(NDEBUG)
inline constexpr bool kReduced = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool kReduced = true;
#else
inline constexpr bool kReduced = false;
#endif
#else
inline constexpr bool kReduced = false;
#endif

// `full` in a release build, `reduced` under a sanitizer or without optimisation,
// where the same work takes ten times as long, and where TESSERA_TEST_REDUCED is set:
// under an emulator. With TESSERA_TEST_REDUCED=2 it is `least`, if given: what an
// emulator can do in a minute. Says on standard output when less than everything runs.
int scaled(int full, int reduced, const std::string& what, int least = 0);

}  // namespace tessera::test
