// Philox4x32-7 (Salmon et al., SC 2011) and the dropout bit of every element.
#pragma once

#include <array>
#include <cstdint>

#include "core/base/host_device.h"

namespace tessera::core {

struct PhiloxBlock {
  std::uint32_t word[4];
};

inline constexpr std::uint32_t kPhiloxMultiplier0 = 0xD2511F53, kPhiloxMultiplier1 = 0xCD9E8D57;
inline constexpr std::uint32_t kPhiloxWeyl0 = 0x9E3779B9, kPhiloxWeyl1 = 0xBB67AE85;

// The paper recommends ten, with a margin: seven pass every test of BigCrush and cost 30 % less.
inline constexpr int kPhiloxRounds = 7;

// One round; `round` counts from 0 and chooses the keys.
TESSERA_HD constexpr PhiloxBlock philox_round(const PhiloxBlock& counter, std::uint32_t key0,
                                              std::uint32_t key1, int round) {
  const std::uint64_t product0 = std::uint64_t{kPhiloxMultiplier0} * counter.word[0];
  const std::uint64_t product1 = std::uint64_t{kPhiloxMultiplier1} * counter.word[2];
  const auto step = static_cast<std::uint32_t>(round);
  return {{static_cast<std::uint32_t>(product1 >> 32) ^ counter.word[1] ^ (key0 + step * kPhiloxWeyl0),
           static_cast<std::uint32_t>(product1),
           static_cast<std::uint32_t>(product0 >> 32) ^ counter.word[3] ^ (key1 + step * kPhiloxWeyl1),
           static_cast<std::uint32_t>(product0)}};
}

// Philox on a 128-bit counter with a 64-bit key.
template <int Rounds = kPhiloxRounds>
TESSERA_HD constexpr PhiloxBlock philox4x32(PhiloxBlock counter, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < Rounds; ++round) counter = philox_round(counter, key0, key1, round);
  return counter;
}

// The random stream of one (batch entry, head), in global coordinates. One Philox call turns (seed,
// offset, batch, head) into a 128-bit value: two words become the key, two the upper half of the
// counter of the element calls, whose lower half is (row, call). So no coordinate is ever squeezed
// into fewer than 32 bits.
struct DropoutStream {
  std::uint32_t key0 = 0, key1 = 0, high0 = 0, high1 = 0;
};

TESSERA_HD constexpr DropoutStream dropout_stream(std::uint64_t seed, std::uint64_t offset,
                                                  std::int64_t batch, std::int64_t head) {
  const PhiloxBlock block =
      philox4x32({{static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(offset >> 32),
                   static_cast<std::uint32_t>(batch), static_cast<std::uint32_t>(head)}},
                 static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
  return {block.word[0], block.word[1], block.word[2], block.word[3]};
}

// Elements of a row share a call in groups of eight, such that in the m16n8 accumulator layout one
// GPU thread owns all of them. Pair t of a 32-column group holds columns {8m + 2t, 8m + 2t + 1 : m
// = 0..3}. Each has 15 bits, the lower ones of a half of word m; the even column has the low half.
// The sixteenth bit is unused, so that on a GPU one comparison of two fp16 numbers decides about
// two elements.
inline constexpr int kDropoutGroup = 32;
inline constexpr int kDropoutBits = 15;
inline constexpr std::uint32_t kDropoutSteps = 1U << kDropoutBits;  // of probability, from 0 to 1

TESSERA_HD constexpr PhiloxBlock dropout_call(const DropoutStream& stream, std::int64_t row,
                                              std::int64_t column_group, int pair) {
  return philox4x32({{static_cast<std::uint32_t>(column_group * 4 + pair), static_cast<std::uint32_t>(row),
                      stream.high0, stream.high1}},
                    stream.key0, stream.key1);
}

// The random bits of one of the two columns of a word.
TESSERA_HD constexpr std::uint32_t dropout_half(std::uint32_t word, int half) {
  return word >> (16 * half) & ((1U << kDropoutBits) - 1);
}

// The random bits of one element, by the definition above.
TESSERA_HD constexpr std::uint32_t dropout_bits(const DropoutStream& stream, std::int64_t row,
                                                std::int64_t column) {
  const int within = static_cast<int>(column % kDropoutGroup);
  const PhiloxBlock block = dropout_call(stream, row, column / kDropoutGroup, within % 8 / 2);
  return dropout_half(block.word[within / 8], within % 2);
}

// The bits of the 32 columns of one group, at once.
TESSERA_HD constexpr void dropout_group_bits(const DropoutStream& stream, std::int64_t row,
                                             std::int64_t column_group,
                                             std::uint16_t (&bits)[kDropoutGroup]) {
  for (int pair = 0; pair < 4; ++pair) {
    const PhiloxBlock block = dropout_call(stream, row, column_group, pair);
    for (int m = 0; m < 4; ++m) {
      bits[8 * m + 2 * pair] = static_cast<std::uint16_t>(dropout_half(block.word[m], 0));
      bits[8 * m + 2 * pair + 1] = static_cast<std::uint16_t>(dropout_half(block.word[m], 1));
    }
  }
}

// An element is kept when its bits reach the threshold: round(probability * 2^15).
TESSERA_HD constexpr std::uint32_t dropout_threshold(double probability) {
  return static_cast<std::uint32_t>(probability * kDropoutSteps + 0.5);
}

// By what a kept element is multiplied: one over the probability, in whole steps, of being kept, so
// that the mean over all random bits is the element itself. The threshold must be less than
// kDropoutSteps.
constexpr double dropout_keep_scale(std::uint32_t threshold) {
  return static_cast<double>(kDropoutSteps) / (kDropoutSteps - threshold);
}

}  // namespace tessera::core
