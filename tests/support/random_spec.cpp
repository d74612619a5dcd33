#include "support/random_spec.h"

#include <algorithm>
#include <initializer_list>
#include <random>

namespace tessera::test {
namespace {

using reference::BiasKind;
using reference::BlockKind;
using reference::CaseSpec;
using reference::VisibleKind;

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed * 0x9E3779B97F4A7C15 + 1) {}

  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool percent(int chance) { return between(0, 99) < chance; }
  template <typename T>
  T one_of(std::initializer_list<T> choices) {
    return choices.begin()[between(0, static_cast<std::int64_t>(choices.size()) - 1)];
  }

 private:
  std::mt19937_64 engine_;
};

// Sequence lengths: often at the edge of a tile, sometimes 0.
std::int64_t random_length(Dice& dice) {
  if (dice.percent(3)) return 0;
  if (dice.percent(40)) {
    const auto edge = dice.one_of<std::int64_t>({1, 8, 16, 32, 48, 64, 96, 128});
    return std::max<std::int64_t>(1, edge + dice.between(-1, 1));
  }
  return dice.between(1, 80);
}

std::int64_t random_dim(Dice& dice) {
  if (dice.percent(50)) return dice.one_of<std::int64_t>({1, 8, 16, 31, 32, 33, 64});
  return dice.percent(95) ? dice.between(1, 48) : dice.between(1, 256);
}

// Seldom, because it costs: rows long enough for what cuts keys, the chunks of a
// backward pass (from 512 keys on) and the splits of cpu.decode (256 to 4096 keys,
// by the bytes of one). Few queries and heads keep the oracle quick. Of a seed of
// its own, so that all other problems stay what they are.
void make_long(std::uint64_t seed, CaseSpec& s) {
  Dice dice(seed ^ 0xA24BAED4963EE407);
  if (!dice.percent(6) || s.q_length == 0) return;
  s.batch = std::min<std::int64_t>(s.batch, 1);
  s.kv_heads = 1;
  s.q_heads = dice.between(1, 2);
  if (dice.percent(25)) {
    s.q_length = dice.between(130, 300);
    s.k_length = dice.between(130, 600);
  } else {
    s.q_length = dice.percent(50) ? dice.between(1, 16) : dice.between(17, 40);
    s.k_length = dice.percent(50) ? dice.one_of<std::int64_t>({512, 1024, 2048}) + dice.between(-1, 1)
                                  : dice.between(300, 2100);
    if (s.q_length <= 16 && dice.percent(80)) {  // keys of many bytes, of which a split has few
      s.qk_dim = s.v_dim = dice.one_of<std::int64_t>({64, 128, 250});
      s.k_length = std::max(s.k_length, dice.between(1000, 2100));
    }
  }
}

void choose_mask(Dice& dice, CaseSpec& s) {
  if (dice.percent(30)) s.right = 0;
  if (dice.percent(25)) s.left = dice.between(0, 70);
  if (dice.percent(20)) s.right = dice.between(0, 40);
  if (dice.percent(30)) s.align = Align::top_left;
  if (dice.percent(20)) s.diagonal = dice.between(-60, 60);
  if (dice.percent(20) && s.q_length > 0 && s.k_length > 0) {
    s.blocks = dice.one_of({BlockKind::local, BlockKind::strided, BlockKind::fixed, BlockKind::big_bird,
                            BlockKind::butterfly, BlockKind::random, BlockKind::random_per_head});
    s.block_q = dice.one_of<std::int64_t>({7, 16, 32, 40, 64});
    s.block_k = dice.one_of<std::int64_t>({5, 16, 24, 32, 64});
  }
  if (dice.percent(25)) {
    s.packed = true;
    s.batch = dice.between(1, 5);
  }
}

void choose_scores(Dice& dice, CaseSpec& s) {
  if (dice.percent(30)) {
    s.bias = dice.one_of({BiasKind::full, BiasKind::per_head, BiasKind::per_batch, BiasKind::row});
    s.bias_in_accumulator_type = dice.percent(50);
  }
  if (dice.percent(20)) {
    s.alibi = true;
    s.alibi_per_batch = dice.percent(30);
  }
  if (dice.percent(20)) s.softcap = dice.one_of({0.5, 3.0, 30.0});
  if (dice.percent(30)) {
    s.dropout = dice.one_of({0.01, 0.1, 0.5, 0.85});
    s.dropout_state = dice.percent(30);
  }
  s.grad_lse = dice.percent(30);
  if (dice.percent(10)) s.scale = dice.one_of({0.0, 1.0, -0.1, 0.02});
  if (dice.percent(15)) s.input_scale = dice.one_of({0.05, 3.0});
  if (dice.percent(30)) {
    s.origin = {.row = dice.between(0, 3000),
                .column = dice.between(0, 3000),
                .batch = dice.between(0, 5),
                .head = dice.between(0, 9)};
    if (dice.percent(60)) s.origin.column = s.origin.row + dice.between(0, 50);  // near the diagonal
  }
}

// Of a seed of its own, so that all other problems stay what they are.
void choose_visible(std::uint64_t seed, CaseSpec& s) {
  Dice dice(seed ^ 0x9FB21C651E98DF25);
  if (!dice.percent(25)) return;
  s.visible = dice.one_of({VisibleKind::full, VisibleKind::per_head, VisibleKind::per_batch, VisibleKind::row,
                           VisibleKind::padding});
}

}  // namespace

CaseSpec random_spec(std::uint64_t seed) {
  Dice dice(seed);
  CaseSpec s{.name = "random", .feature = "random", .seed = seed};
  s.dtype = dice.one_of({DType::fp64, DType::fp32, DType::fp16, DType::bf16});
  s.batch = dice.percent(2) ? 0 : dice.between(1, 2);
  s.q_length = random_length(dice);
  s.k_length = dice.percent(50) ? s.q_length : random_length(dice);
  s.kv_heads = dice.between(1, 2);
  s.q_heads = s.kv_heads * dice.between(1, 3);
  s.qk_dim = random_dim(dice);
  s.v_dim = dice.percent(70) ? s.qk_dim : random_dim(dice);
  make_long(seed, s);
  choose_mask(dice, s);
  choose_scores(dice, s);
  choose_visible(seed, s);
  return s;
}

CaseSpec random_spec(std::uint64_t seed, DType dtype) {
  CaseSpec spec = random_spec(seed);
  spec.dtype = dtype;
  return spec;
}

}  // namespace tessera::test
