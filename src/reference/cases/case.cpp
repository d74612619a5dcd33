#include "reference/cases/case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <random>
#include <sstream>

#include "reference/oracle/elements.h"

namespace tessera::reference {
namespace {

// Normally distributed numbers that are the same on every platform, which std::normal_distribution
// is not.
class Normal {
 public:
  explicit Normal(std::uint64_t seed) : engine_(seed) {}

  double operator()() {
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    const double radius = std::sqrt(-2 * std::log(uniform()));
    const double angle = 2 * std::numbers::pi * uniform();
    spare_ = radius * std::sin(angle);
    has_spare_ = true;
    return radius * std::cos(angle);
  }

 private:
  double uniform() { return (static_cast<double>(engine_() >> 11) + 0.5) * 0x1p-53; }

  std::mt19937_64 engine_;
  double spare_ = 0;
  bool has_spare_ = false;
};

BlockMask make_blocks(const CaseSpec& spec) {
  const BlockLayout layout{.q_length = spec.q_length,
                           .k_length = spec.k_length,
                           .block_q = spec.block_q,
                           .block_k = spec.block_k,
                           .heads = spec.blocks == BlockKind::random_per_head ? spec.q_heads : 1};
  switch (spec.blocks) {
    case BlockKind::none: break;
    case BlockKind::local: return BlockMask::local(layout, 1);
    case BlockKind::strided: return BlockMask::strided(layout, 2);
    case BlockKind::fixed: return BlockMask::fixed(layout, 2);
    case BlockKind::big_bird: return BlockMask::big_bird(layout, 1, 1, 1, spec.seed);
    case BlockKind::butterfly: return BlockMask::butterfly(layout);
    case BlockKind::random:
    case BlockKind::random_per_head: return BlockMask::random(layout, 0.4, spec.seed);
  }
  return {};
}

Extents bias_shape(const CaseSpec& s) {
  switch (s.bias) {
    case BiasKind::full: return {s.batch, s.q_heads, s.q_length, s.k_length};
    case BiasKind::per_head: return {1, s.q_heads, s.q_length, s.k_length};
    case BiasKind::per_batch: return {s.batch, 1, s.q_length, s.k_length};
    case BiasKind::row: return {1, 1, 1, s.k_length};
    case BiasKind::none: break;
  }
  return {};
}

Extents visible_shape(const CaseSpec& s) {
  switch (s.visible) {
    case VisibleKind::full: return {s.batch, s.q_heads, s.q_length, s.k_length};
    case VisibleKind::per_head: return {1, s.q_heads, s.q_length, s.k_length};
    case VisibleKind::per_batch: return {s.batch, 1, s.q_length, s.k_length};
    case VisibleKind::row: return {1, 1, 1, s.k_length};
    case VisibleKind::padding: return {s.batch, 1, 1, s.k_length};
    case VisibleKind::none: break;
  }
  return {};
}

// Lengths that reach `longest`, are otherwise anything from 0 on, and include an empty sequence if
// there are three or more. Returned as cumulative lengths from 0.
std::vector<std::int32_t> cumulative_lengths(std::int64_t sequences, std::int64_t longest,
                                             std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::vector<std::int32_t> cumulative{0};
  const auto n = static_cast<std::uint64_t>(sequences);
  const std::uint64_t full = n == 0 ? 0 : engine() % n;
  const std::uint64_t empty = n < 3 ? full : (full + 1 + engine() % (n - 1)) % n;
  for (std::uint64_t s = 0; s < n; ++s) {
    std::uint64_t length = engine() % static_cast<std::uint64_t>(longest + 1);
    if (s == empty) length = 0;
    if (s == full) length = static_cast<std::uint64_t>(longest);
    cumulative.push_back(cumulative.back() + static_cast<std::int32_t>(length));
  }
  return cumulative;
}

void fill(const Tensor& t, double value) {
  for (std::int64_t a = 0; a < t.shape[0]; ++a) {
    for (std::int64_t b = 0; b < t.shape[1]; ++b) {
      for (std::int64_t c = 0; c < t.shape[2]; ++c) {
        for (std::int64_t d = 0; d < t.shape[3]; ++d) write(t, a, b, c, d, value);
      }
    }
  }
}

const char* name_of(BiasKind kind) {
  constexpr const char* kNames[] = {"none", "full", "per_head", "per_batch", "row"};
  return kNames[static_cast<int>(kind)];
}

const char* name_of(VisibleKind kind) {
  constexpr const char* kNames[] = {"none", "full", "per_head", "per_batch", "row", "padding"};
  return kNames[static_cast<int>(kind)];
}

const char* name_of(BlockKind kind) {
  constexpr const char* kNames[] = {"none",     "local",     "strided", "fixed",
                                    "big_bird", "butterfly", "random",  "random_per_head"};
  return kNames[static_cast<int>(kind)];
}

}  // namespace

std::string describe(const CaseSpec& s) {
  std::ostringstream text;
  text << '{';
  if (!s.name.empty()) text << s.name << ": ";
  text << name(s.dtype) << " batch=" << s.batch << " q_length=" << s.q_length << " k_length=" << s.k_length
       << " q_heads=" << s.q_heads << " kv_heads=" << s.kv_heads << " qk_dim=" << s.qk_dim
       << " v_dim=" << s.v_dim;
  if (s.left != -1) text << " left=" << s.left;
  if (s.right != -1) text << " right=" << s.right;
  if (s.align != Align::bottom_right) text << " top_left";
  if (s.diagonal) text << " diagonal=" << *s.diagonal;
  if (s.blocks != BlockKind::none) {
    text << " blocks=" << name_of(s.blocks) << ' ' << s.block_q << 'x' << s.block_k;
  }
  if (s.packed) text << " packed";
  if (s.bias != BiasKind::none) {
    text << " bias=" << name_of(s.bias) << (s.bias_in_accumulator_type ? " (accumulator type)" : "");
  }
  if (s.visible != VisibleKind::none) text << " visible=" << name_of(s.visible);
  if (s.alibi) text << " alibi" << (s.alibi_per_batch ? " per batch" : "");
  if (s.softcap != 0) text << " softcap=" << s.softcap;
  if (s.dropout != 0) text << " dropout=" << s.dropout << (s.dropout_state ? " (by pointer)" : "");
  if (s.grad_lse) text << " grad_lse";
  const Origin& o = s.origin;
  if (o.row != 0 || o.column != 0 || o.batch != 0 || o.head != 0) {
    text << " origin=" << o.row << ',' << o.column << ',' << o.batch << ',' << o.head;
  }
  if (s.input_scale != 1) text << " input_scale=" << s.input_scale;
  if (s.scale) text << " scale=" << *s.scale;
  text << " seed=" << s.seed << '}';
  return text.str();
}

Case::Case(const CaseSpec& spec) : spec_(spec) {
  attention.scale = spec.scale;
  attention.mask.left = spec.left;
  attention.mask.right = spec.right;
  attention.mask.align = spec.align;
  attention.mask.diagonal = spec.diagonal;
  attention.mask.blocks = make_blocks(spec);
  attention.softcap = spec.softcap;
  attention.origin = spec.origin;
  if (spec.alibi) {
    // The slopes of the ALiBi paper for a power of two heads; any positive numbers would do.
    const std::int64_t copies = spec.alibi_per_batch ? spec.batch : 1;
    for (std::int64_t h = 0; h < copies * spec.q_heads; ++h) {
      slopes_.push_back(std::exp2(-8.0F * static_cast<float>(h % spec.q_heads + 1) /
                                  static_cast<float>(spec.q_heads + h / spec.q_heads)));
    }
    attention.alibi = {.slopes = slopes_.data(), .batch_stride = spec.alibi_per_batch ? spec.q_heads : 0};
  }
  if (spec.dropout > 0) {
    attention.dropout = {.probability = spec.dropout, .seed = 77 + spec.seed, .offset = 5};
    if (spec.dropout_state) {
      dropout_state_ = std::make_unique<std::uint64_t[]>(2);
      dropout_state_[0] = 99 + spec.seed;
      dropout_state_[1] = std::uint64_t{1} << 40;
      attention.dropout.state = dropout_state_.get();
    }
  }
  if (spec.packed) make_lengths();
  make_tensors();
  poison();
}

void Case::make_lengths() {
  cumulative_q_ = cumulative_lengths(spec_.batch, spec_.q_length, spec_.seed * 2);
  cumulative_k_ = cumulative_lengths(spec_.batch, spec_.k_length, spec_.seed * 2 + 1);
  attention.mask.lengths = {.q = cumulative_q_.data(), .k = cumulative_k_.data(), .count = spec_.batch};
  if (spec_.seed % 2 == 0) {  // stating the longest is optional: try both
    attention.mask.lengths.max_q = spec_.q_length;
    attention.mask.lengths.max_k = spec_.k_length;
  }
}

void Case::make_tensors() {
  const CaseSpec& s = spec_;
  const std::int64_t batch = s.packed ? 1 : s.batch;
  const std::int64_t q_tokens = s.packed ? cumulative_q_.back() : s.q_length;
  const std::int64_t k_tokens = s.packed ? cumulative_k_.back() : s.k_length;
  const Extents q_shape{batch, q_tokens, s.q_heads, s.qk_dim};
  const Extents k_shape{batch, k_tokens, s.kv_heads, s.qk_dim};
  const Extents v_shape{batch, k_tokens, s.kv_heads, s.v_dim};
  const Extents out_shape{batch, q_tokens, s.q_heads, s.v_dim};
  const Extents lse_shape{batch, s.q_heads, q_tokens, 1};
  const DType accumulator = accumulator_of(s.dtype);

  forward.q = random_tensor(s.dtype, q_shape, s.input_scale, 1);
  forward.k = random_tensor(s.dtype, k_shape, s.input_scale, 2);
  forward.v = random_tensor(s.dtype, v_shape, s.input_scale, 3);
  forward.out = allocate(s.dtype, out_shape);
  forward.lse = allocate(accumulator, lse_shape);
  if (s.bias != BiasKind::none) {
    const DType dtype = s.bias_in_accumulator_type ? accumulator : s.dtype;
    forward.bias = random_tensor(dtype, bias_shape(s), 1, 4);
    backward.grad_bias = allocate(dtype, bias_shape(s));
  }
  if (s.visible != VisibleKind::none) forward.visible = visible_tensor();
  backward.visible = forward.visible;
  backward.q = forward.q;
  backward.k = forward.k;
  backward.v = forward.v;
  backward.bias = forward.bias;
  backward.out = forward.out;
  backward.lse = forward.lse;
  backward.grad_out = random_tensor(s.dtype, out_shape, 1, 5);
  if (s.grad_lse) backward.grad_lse = random_tensor(accumulator, lse_shape, 1, 6);
  backward.grad_q = allocate(s.dtype, q_shape);
  backward.grad_k = allocate(s.dtype, k_shape);
  backward.grad_v = allocate(s.dtype, v_shape);
}

Tensor Case::allocate(DType dtype, const Extents& shape) {
  const auto bytes = static_cast<std::size_t>(count(shape)) * size_of(dtype);
  buffers_.push_back(std::make_unique<std::byte[]>(bytes));
  void* data = buffers_.back().get();
  return tensor(data, dtype, shape);
}

Tensor Case::random_tensor(DType dtype, const Extents& shape, double deviation, std::uint64_t stream) {
  const Tensor result = allocate(dtype, shape);
  Normal normal(spec_.seed * 1000003 + stream);
  const std::int64_t elements = count(shape);
  for (std::int64_t e = 0; e < elements; ++e) write(result, 0, 0, 0, e, deviation * normal());
  return result;
}

Tensor Case::visible_tensor() {
  const Tensor mask = allocate(DType::boolean, visible_shape(spec_));
  auto* element = static_cast<std::uint8_t*>(mask.data);
  std::mt19937_64 engine(spec_.seed * 1000003 + 7);
  const Extents& shape = mask.shape;
  for (std::int64_t line = 0; line < shape[0] * shape[1] * shape[2]; ++line) {
    const std::int64_t i = line % shape[2], head = line / shape[2], keys = shape[3];
    const auto length = static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(keys + 1));
    for (std::int64_t j = 0; j < keys; ++j) {
      // Patches of 50 x 70: hidden, visible, and two that are random.
      const std::int64_t patch = (head * 5 + i / 50 * 3 + j / 70 + static_cast<std::int64_t>(spec_.seed)) % 4;
      bool seen = patch == 1 || (patch > 1 && engine() % 8 < 5);
      if (shape[2] > 1 && i % 16 == 11) seen = false;
      if (spec_.visible == VisibleKind::padding) seen = line % 2 == 0 ? j < length : j >= length;
      *element++ = seen ? static_cast<std::uint8_t>(1 + engine() % 255) : 0;
    }
  }
  return mask;
}

void Case::poison() {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const Tensor& t :
       {forward.out, forward.lse, backward.grad_q, backward.grad_k, backward.grad_v, backward.grad_bias}) {
    if (t.given()) fill(t, nan);
  }
}

}  // namespace tessera::reference
