// The bytes of a fuzzer as a source of decisions. When they run out every decision
// is 0, the most ordinary one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace tessera::fuzz {

class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}

  std::uint8_t byte() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  std::uint32_t word() {
    std::uint32_t value = 0;
    for (int i = 0; i < 4; ++i) value = value << 8 | byte();
    return value;
  }
  // A number from `low` to `high`; `low` where high is smaller.
  std::int64_t between(std::int64_t low, std::int64_t high) {
    if (high <= low) return low;
    const std::uint64_t count = static_cast<std::uint64_t>(high - low) + 1;
    return low + static_cast<std::int64_t>((count <= 256 ? byte() : word()) % count);
  }
  // True once in `count` times; false without bytes.
  bool one_in(int count) { return byte() % count == count - 1; }
  // A number at which arithmetic on sizes goes wrong.
  std::int64_t hostile() {
    constexpr std::int64_t kNumbers[] = {0,
                                         1,
                                         -1,
                                         2,
                                         -2,
                                         256,
                                         257,
                                         INT64_MAX,
                                         INT64_MIN,
                                         INT64_MAX - 1,
                                         INT64_MIN + 1,
                                         std::int64_t{1} << 31,
                                         std::int64_t{1} << 32,
                                         (std::int64_t{1} << 32) - 1,
                                         std::int64_t{1} << 48,
                                         (std::int64_t{1} << 48) + 1,
                                         std::int64_t{1} << 59,
                                         std::int64_t{1} << 62,
                                         -(std::int64_t{1} << 32),
                                         -(std::int64_t{1} << 62)};
    return kNumbers[byte() % (sizeof kNumbers / sizeof *kNumbers)];
  }
  // `usual`, or once in `count` times something hostile.
  std::int64_t mostly(std::int64_t usual, int count) { return one_in(count) ? hostile() : usual; }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};

}  // namespace tessera::fuzz
