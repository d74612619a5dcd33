// Drives a libFuzzer target with random bytes, in builds without libFuzzer.
//
//   capi_fuzz [--seconds N] [--seed N]    as many inputs as fit into N seconds of CPU time
//                                         (default 10)
//   capi_fuzz FILE...                     these inputs, which libFuzzer kept
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

std::vector<std::uint8_t> random_input(std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::vector<std::uint8_t> input(64 + engine() % 448);
  for (std::uint8_t& byte : input) byte = static_cast<std::uint8_t>(engine() >> 32);
  return input;
}

char replay[64];  // how to repeat the input that is being tried

void name_the_input(int) { (void)!write(STDERR_FILENO, replay, std::strlen(replay)); }

}  // namespace

int main(int argc, char** argv) {
  double seconds = 10;
  std::uint64_t seed = 1;
  int files = 0;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--seconds") == 0 && i + 1 < argc) {
      seconds = std::atof(argv[++i]);
    } else if (std::strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else {
      std::ifstream file(argv[i], std::ios::binary);
      const std::vector<char> input{std::istreambuf_iterator<char>(file), {}};
      LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
      ++files;
    }
  }
  if (files > 0) return 0;
  std::signal(SIGABRT, name_the_input);
  std::uint64_t inputs = 0;
  do {
    const std::uint64_t current = seed + inputs++;
    std::snprintf(replay, sizeof replay, "replay: --seconds 0 --seed %llu\n",
                  static_cast<unsigned long long>(current));
    const std::vector<std::uint8_t> input = random_input(current);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  } while (static_cast<double>(std::clock()) / CLOCKS_PER_SEC < seconds);
  std::printf("%llu inputs from seed %llu on\n", static_cast<unsigned long long>(inputs),
              static_cast<unsigned long long>(seed));
  return 0;
}
