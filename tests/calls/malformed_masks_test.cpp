// Malformed lengths of packed sequences and block masks, and slopes.
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "malformed.h"

namespace tessera::test {
namespace {

using Cases = std::vector<Malformed>;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Cases lengths_cases() {
  Cases cases;
  auto add = [&](const std::string& name, Act act, const std::function<void(Call&)>& spoil,
                 const std::vector<std::string>& expected) {
    auto packed = [spoil](Call& call) {
      call.pack();
      spoil(call);
    };
    const bool with_data = act == Act::forward_with_data;
    cases.push_back({"forward_" + name, act, packed, expected});
    cases.push_back(
        {"backward_" + name, with_data ? Act::backward_with_data : Act::backward, packed, expected});
  };
  const Act act = Act::forward, with_data = Act::forward_with_data;
  add("q_null", with_data, [](Call& c) { c.attention.mask.lengths.q = nullptr; },
      {"attention.mask.lengths.q is null; it must point to 3 cumulative lengths"});
  add("k_null", with_data, [](Call& c) { c.attention.mask.lengths.k = nullptr; },
      {"attention.mask.lengths.k is null; it must point to 3 cumulative lengths"});
  add("count_negative", act, [](Call& c) { c.attention.mask.lengths.count = -1; },
      {"attention.mask.lengths.count is -1; it must be between"});
  add("count_huge", act, [](Call& c) { c.attention.mask.lengths.count = std::int64_t{1} << 40; },
      {"attention.mask.lengths.count is 1099511627776; it must be between"});
  add("q_starts_at_1", act, [](Call& c) { c.lengths_q[0] = 1; },
      {"attention.mask.lengths.q[0] is 1; it must be 0"});
  add("k_starts_below_0", act, [](Call& c) { c.lengths_k[0] = -5; },
      {"attention.mask.lengths.k[0] is -5; it must be 0"});
  add("q_decreasing", act, [](Call& c) { c.lengths_q[1] = 7; },
      {"attention.mask.lengths.q[2] is 6; it must not be less than the one before, 7"});
  add("k_decreasing", act, [](Call& c) { c.lengths_k[1] = -2; },
      {"attention.mask.lengths.k[1] is -2; it must not be less than the one before, 0"});
  add("q_ends_early", act, [](Call& c) { c.lengths_q[2] = 5; },
      {"attention.mask.lengths.q[2] is 5; it must be 6, the sequence size of q"});
  add("k_ends_late", act, [](Call& c) { c.lengths_k[2] = 11; },
      {"attention.mask.lengths.k[2] is 11; it must be 10, the sequence size of k"});
  add("max_q_too_small", act, [](Call& c) { c.attention.mask.lengths.max_q = 3; },
      {"attention.mask.lengths.max_q is 3; it must be at least 4, the longest sequence"});
  add("max_k_too_small", act, [](Call& c) { c.attention.mask.lengths.max_k = 4; },
      {"attention.mask.lengths.max_k is 4; it must be at least 5, the longest sequence"});
  add("max_q_negative", act, [](Call& c) { c.attention.mask.lengths.max_q = -1; },
      {"attention.mask.lengths.max_q is -1; it must be between 0 and 6"});
  add("max_k_too_large", act, [](Call& c) { c.attention.mask.lengths.max_k = 11; },
      {"attention.mask.lengths.max_k is 11; it must be between 0 and 10"});
  cases.push_back({"lengths_with_a_batch",
                   Act::forward,
                   [](Call& c) { c.attention.mask.lengths = {c.lengths_q.data(), c.lengths_k.data(), 2}; },
                   {"q.shape[0] (batch) is 2; it must be 1 when sequences are packed"}});
  cases.push_back(
      {"plan_without_longest",
       Act::custom,
       [](Call& c) {
         c.pack();
         c.attention.mask.lengths = {.count = 2};
         (void)plan(c.attention, c.forward);
       },
       {"attention.mask.lengths.max_q is 0; without cumulative lengths it must be at least the longest "
        "sequence"}});
  return cases;
}

Cases block_mask_cases() {
  Cases cases;
  auto fits = [](const char* name, BlockLayout layout, std::vector<std::string> expected) {
    return Malformed{name, Act::forward,
                     [layout](Call& call) { call.attention.mask.blocks = BlockMask::local(layout, 1); },
                     std::move(expected)};
  };
  cases.push_back(
      fits("mask_for_4_queries", {.q_length = 4, .k_length = 5, .block_q = 2, .block_k = 2},
           {"attention.mask.blocks has q_length 4; it must equal the q_length of the tensors, 3"}));
  cases.push_back(
      fits("mask_for_6_keys", {.q_length = 3, .k_length = 6, .block_q = 2, .block_k = 2},
           {"attention.mask.blocks has k_length 6; it must equal the k_length of the tensors, 5"}));
  cases.push_back(fits("mask_for_3_heads",
                       {.q_length = 3, .k_length = 5, .block_q = 2, .block_k = 2, .heads = 3},
                       {"attention.mask.blocks has 3 heads; it must have 1 or 4, the heads of q"}));
  cases.push_back({"mask_too_short_for_packed",
                   Act::forward,
                   [](Call& call) {
                     call.pack();
                     const BlockLayout layout{.q_length = 3, .k_length = 5, .block_q = 2, .block_k = 2};
                     call.attention.mask.blocks = BlockMask::butterfly(layout);
                   },
                   {"attention.mask.blocks has q_length 3; it must be at least the q_length of the longest "
                    "sequence, 4"}});

  const BlockLayout layout{.q_length = 8, .k_length = 8, .block_q = 2, .block_k = 2};
  auto add = [&](const std::string& name, const std::function<void()>& make,
                 std::vector<std::string> expected) {
    cases.push_back({name, Act::custom, [make](Call&) { make(); }, std::move(expected)});
  };
  auto add_layout = [&](const std::string& name, BlockLayout wrong, std::vector<std::string> expected) {
    add(name, [wrong] { (void)BlockMask::local(wrong, 1); }, std::move(expected));
  };
  add_layout("mask_no_queries", {.q_length = 0, .k_length = 8},
             {"BlockMask: q_length is 0; it must be at least 1"});
  add_layout("mask_negative_keys", {.q_length = 8, .k_length = -8},
             {"BlockMask: k_length is -8; it must be at least 1"});
  add_layout("mask_block_q_0", {.q_length = 8, .k_length = 8, .block_q = 0},
             {"BlockMask: block_q is 0; it must be at least 1"});
  add_layout("mask_block_k_0", {.q_length = 8, .k_length = 8, .block_k = 0},
             {"BlockMask: block_k is 0; it must be at least 1"});
  add_layout("mask_heads_0", {.q_length = 8, .k_length = 8, .heads = 0},
             {"BlockMask: heads is 0; it must be at least 1"});
  add_layout("mask_too_many_blocks", {.q_length = std::int64_t{1} << 40, .k_length = 8, .block_q = 1},
             {"BlockMask: q_length is 1099511627776", "at most 2147483647 are allowed"});
  add("mask_local_radius", [=] { (void)BlockMask::local(layout, -1); },
      {"BlockMask::local: radius is -1; it must be at least 0"});
  add("mask_strided_stride", [=] { (void)BlockMask::strided(layout, 0); },
      {"BlockMask::strided: stride is 0; it must be at least 1"});
  add("mask_fixed_stride", [=] { (void)BlockMask::fixed(layout, -3); },
      {"BlockMask::fixed: stride is -3; it must be at least 1"});
  add("mask_fixed_summary", [=] { (void)BlockMask::fixed(layout, 2, 3); },
      {"BlockMask::fixed: summary is 3; it must be in [0, 2]"});
  add("mask_big_bird_radius", [=] { (void)BlockMask::big_bird(layout, -1, 0, 0); },
      {"BlockMask::big_bird: radius is -1; it must be at least 0"});
  add("mask_big_bird_global", [=] { (void)BlockMask::big_bird(layout, 1, -2, 0); },
      {"BlockMask::big_bird: global is -2; it must be at least 0"});
  add("mask_big_bird_random", [=] { (void)BlockMask::big_bird(layout, 1, 0, -3); },
      {"BlockMask::big_bird: random is -3; it must be at least 0"});
  add("mask_density_0", [=] { (void)BlockMask::random(layout, 0); },
      {"BlockMask::random: density is 0", "it must be in (0, 1]"});
  add("mask_density_nan", [=] { (void)BlockMask::random(layout, kNaN); },
      {"BlockMask::random: density is nan", "it must be in (0, 1]"});
  add("mask_density_2", [=] { (void)BlockMask::random(layout, 2); },
      {"BlockMask::random: density is 2", "it must be in (0, 1]"});
  auto csr = [=](const std::vector<std::int64_t>& offsets, const std::vector<std::int32_t>& columns) {
    return [layout, offsets, columns] { (void)BlockMask::from_csr(layout, offsets, columns); };
  };
  add("csr_offsets_short", csr({0, 0, 0}, {}),
      {"BlockMask::from_csr: row_offsets has 3 entries; it must have 5"});
  add("csr_offsets_start", csr({1, 1, 1, 1, 1}, {0}),
      {"BlockMask::from_csr: row_offsets[0] is 1; it must be 0"});
  add("csr_offsets_descend", csr({0, 2, 1, 2, 2}, {0, 1}),
      {"BlockMask::from_csr: row_offsets[2] is 1", "must not descend"});
  add("csr_offsets_end", csr({0, 1, 1, 1, 1}, {0, 1}), {"BlockMask::from_csr: row_offsets ends with 1", "2"});
  add("csr_column_range", csr({0, 1, 1, 1, 1}, {4}),
      {"BlockMask::from_csr: columns[0] is 4; it must be in [0, 4)"});
  add("csr_column_negative", csr({0, 1, 1, 1, 1}, {-1}),
      {"BlockMask::from_csr: columns[0] is -1; it must be in [0, 4)"});
  add("csr_columns_repeat", csr({0, 2, 2, 2, 2}, {3, 3}),
      {"BlockMask::from_csr: columns[1] is 3", "strictly ascending"});
  add("blocks_short", [=] { (void)BlockMask::from_blocks(layout, std::vector<std::uint8_t>(15)); },
      {"BlockMask::from_blocks: kept has 15 entries; it must have 16"});
  add("dense_short", [=] { (void)BlockMask::from_dense(layout, std::vector<std::uint8_t>(63)); },
      {"BlockMask::from_dense: visible has 63 entries; it must have 64"});
  add("dense_partly_visible",
      [=] {
        std::vector<std::uint8_t> visible(64);
        visible[0] = 1;
        (void)BlockMask::from_dense(layout, visible);
      },
      {"BlockMask::from_dense: of the block at head 0, query block 0, key block 0 only 1 of 4",
       "as a whole or not at all"});
  add("mask_row_out_of_range", [=] { (void)BlockMask::butterfly(layout).row(0, 4); },
      {"BlockMask::row: q_block is 4; it must be in [0, 4)"});
  add("mask_column_head", [=] { (void)BlockMask::butterfly(layout).column(1, 0); },
      {"BlockMask::column: head is 1; it must be in [0, 1)"});
  add("mask_draw_head", [=] { (void)BlockMask::butterfly(layout).draw(-1); },
      {"BlockMask::draw: head is -1; it must be in [0, 1)"});
  add("two_diagonals", [] { (void)(causal() & window(4, 4, Align::top_left)); },
      {"Mask: the sides of & bound the band around different diagonals", "must name the same"});
  add("two_block_masks",
      [=] {
        (void)(block_sparse(BlockMask::butterfly(layout)) & block_sparse(BlockMask::butterfly(layout)));
      },
      {"Mask: both sides of & have a block mask; at most one may"});
  add("two_lengths", [] { (void)(packed({.count = 2}) & packed({.count = 3})); },
      {"Mask: both sides of & have lengths, of 2 and 3 sequences; at most one may"});
  add("slopes_for_no_heads", [] { (void)alibi_slopes(0); }, {"heads is 0; it must be between 1 and"});
  add("slopes_for_too_many_heads", [] { (void)alibi_slopes(std::int64_t{1} << 50); },
      {"heads is 1125899906842624; it must be between 1 and"});
  return cases;
}

class MalformedMask : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedMask, IsRefused) { expect_refused(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Lengths, MalformedMask, ::testing::ValuesIn(lengths_cases()), test_name);
INSTANTIATE_TEST_SUITE_P(BlockMasks, MalformedMask, ::testing::ValuesIn(block_mask_cases()), test_name);

}  // namespace
}  // namespace tessera::test
