#include "lab/commands/parse.h"
#include "lab/terminal/text.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

namespace tessera::lab {
namespace {

using Integers = std::vector<std::int64_t>;

// The message of the UsageError that `call` throws; fails the test when it throws none.
template <typename Call>
std::string refusal(Call&& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return {};
}

TEST(ParseIntegers, ListsAndSuffixes) {
  EXPECT_EQ(parse_integers("--seq", "256", {}), (Integers{256}));
  EXPECT_EQ(parse_integers("--seq", "256, 512,1k", {}), (Integers{256, 512, 1024}));
  EXPECT_EQ(parse_integers("--seq", "64K", {}), (Integers{65536}));
  EXPECT_EQ(parse_integers("--threads", "0,2", {0, 64}), (Integers{0, 2}));
}

TEST(ParseIntegers, Ranges) {
  EXPECT_EQ(parse_integers("--seq", "256..2048", {}), (Integers{256, 512, 1024, 2048}));
  EXPECT_EQ(parse_integers("--seq", "3..20", {}), (Integers{3, 6, 12}));
  EXPECT_EQ(parse_integers("--dim", "64..256+64", {1, 256}), (Integers{64, 128, 192, 256}));
  EXPECT_EQ(parse_integers("--seq", "1..27*3", {}), (Integers{1, 3, 9, 27}));
  EXPECT_EQ(parse_integers("--seq", "5..5", {}), (Integers{5}));
  EXPECT_EQ(parse_integers("--seq", "1k..4k,100", {}), (Integers{1024, 2048, 4096, 100}));
  EXPECT_EQ(parse_integers("--threads", "0..4+2", {0, 8}), (Integers{0, 2, 4}));
}

TEST(ParseIntegers, RefusalsNameOptionValueAndWhatIsAllowed) {
  EXPECT_EQ(refusal([] { parse_integers("--dim", "300", {1, 256}); }),
            "--dim '300': must be an integer from 1 to 256");
  EXPECT_EQ(refusal([] { parse_integers("--seq", "12x", {}); }),
            "--seq '12x': must be an integer of at least 1");
  EXPECT_EQ(refusal([] { parse_integers("--seq", "", {}); }), "--seq '': must be an integer of at least 1");
  for (const char* text : {"1,,2", "0", "-4", "1.5", "99999999999999999999", "9223372036854775807k", "k",
                           "8..4", "0..8", "1..", "..8", "1..8+0", "1..8*1", "1..8+x", "1..100000+1"}) {
    const std::string message = refusal([&] { parse_integers("--seq", text, {}); });
    EXPECT_EQ(message.rfind("--seq '", 0), 0U) << message;
  }
}

TEST(ParseNumbers, Bounds) {
  EXPECT_EQ(parse_numbers("--dropout", "0,0.5", {0, 1, true}), (std::vector<double>{0, 0.5}));
  EXPECT_EQ(parse_number("--softcap", "30", {}), 30);
  EXPECT_EQ(refusal([] { parse_numbers("--dropout", "1", {0, 1, true}); }),
            "--dropout '1': must be a number from 0 to below 1");
  for (const char* text : {"", "nan", "inf", "-1", "0.5x", "1e999"}) {
    refusal([&] { parse_number("--softcap", text, {}); });
  }
}

TEST(ParseBytes, UnitsAndRefusals) {
  EXPECT_EQ(parse_bytes("--memory-budget", "16GiB"), std::size_t{16} << 30);
  EXPECT_EQ(parse_bytes("--memory-budget", "1.5 GiB"), std::size_t{3} << 29);
  EXPECT_EQ(parse_bytes("--memory-budget", "8gb"), std::size_t{8'000'000'000});
  EXPECT_EQ(parse_bytes("--memory-budget", "800MiB"), std::size_t{800} << 20);
  EXPECT_EQ(parse_bytes("--memory-budget", "4096"), std::size_t{4096});
  EXPECT_EQ(parse_bytes("--memory-budget", "12 B"), std::size_t{12});
  EXPECT_EQ(
      refusal([] { parse_bytes("--memory-budget", "16 GX"); }),
      "--memory-budget '16 GX': must be a positive size such as 16GiB, 512MiB, 8GB or a number of bytes");
  for (const char* text : {"", "GiB", "0", "-1GiB", "1e30TiB", "99999999TiB", "1..2GiB"}) {
    refusal([&] { parse_bytes("--memory-budget", text); });
  }
}

TEST(ParseChoices, WordsInAnyCase) {
  static constexpr std::array<std::string_view, 2> kNames = {"bottom_right", "top_left"};
  EXPECT_EQ(parse_choices("--align", "top-left,Bottom_Right", kNames), (std::vector<std::size_t>{1, 0}));
  EXPECT_EQ(refusal([] { parse_choices("--align", "centre", kNames); }),
            "--align 'centre': must be one of bottom_right, top_left");
}

TEST(ParseSwitches, YesAndNo) {
  EXPECT_EQ(parse_switches("--causal", "no,yes"), (std::vector<bool>{false, true}));
  EXPECT_EQ(parse_switches("--causal", "true,0,ON"), (std::vector<bool>{true, false, true}));
  EXPECT_EQ(refusal([] { parse_switches("--causal", "maybe"); }),
            "--causal 'maybe': must be yes, no or both (no,yes)");
}

TEST(ParseWindow, PairsAndNone) {
  EXPECT_EQ(parse_window("--window", "128,0"), (Window{128, 0}));
  EXPECT_EQ(parse_window("--window", "-1, 5"), (Window{-1, 5}));
  EXPECT_EQ(parse_window("--window", "none"), Window{});
  for (const char* text : {"128", "1,2,3", "a,b", "-2,0", ""}) {
    const std::string message = refusal([&] { parse_window("--window", text); });
    EXPECT_NE(message.find("LEFT,RIGHT"), std::string::npos) << message;
  }
}

TEST(ParseBlockMasks, PresetsAndLists) {
  const auto one = parse_block_masks("--block-mask", "bigbird:1,1,2");
  ASSERT_EQ(one.size(), 1U);
  EXPECT_EQ(one[0], (BlockPreset{"bigbird", {1, 1, 2}}));
  EXPECT_EQ(to_string(one[0]), "bigbird:1,1,2");
  const auto many = parse_block_masks("--block-mask", "none,local:2,fixed:4,1,fixed:3,butterfly,random:0.25");
  ASSERT_EQ(many.size(), 6U);
  EXPECT_EQ(many[1], (BlockPreset{"local", {2}}));
  EXPECT_EQ(many[2], (BlockPreset{"fixed", {4, 1}}));
  EXPECT_EQ(many[3], (BlockPreset{"fixed", {3}}));
  EXPECT_EQ(many[5], (BlockPreset{"random", {0.25}}));
  EXPECT_EQ(refusal([] { parse_block_masks("--block-mask", "local"); }),
            "--block-mask 'local': expected local:RADIUS");
  for (const char* text : {"", "diagonal:1", "local:x", "local:1,2", "local:-1", "strided:1.5", "random:0",
                           "random:1.5", "butterfly:1", "bigbird:1,1", "local:"}) {
    refusal([&] { parse_block_masks("--block-mask", text); });
  }
}

TEST(Text, SplitOneLineNearest) {
  EXPECT_EQ(split("a, b,,c", ','), (std::vector<std::string>{"a", "b", "", "c"}));
  EXPECT_EQ(split("", ','), (std::vector<std::string>{""}));
  EXPECT_EQ(one_line("no kernel\n  a: x\n  b: y\n"), "no kernel; a: x; b: y");
  const std::vector<std::string> options = {"--seq", "--seq-k", "--heads", "--dtype"};
  EXPECT_EQ(nearest("--sek", options), "--seq");
  EXPECT_EQ(nearest("--head", options), "--heads");
  EXPECT_EQ(nearest("--nothing-like-it", options), "");
}

}  // namespace
}  // namespace tessera::lab
