#include "call.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/base/float16.h"

namespace tessera::fuzz {
namespace {

constexpr std::int64_t kMostElements = std::int64_t{1} << 20;  // of a tensor that has memory

std::size_t size_of(std::int32_t dtype) {
  return dtype == TSR_FP64 ? 8 : dtype == TSR_FP32 ? 4 : dtype == TSR_BOOL ? 1 : 2;
}

bool known(std::int32_t dtype) { return dtype >= TSR_FP64 && dtype <= TSR_BOOL; }

void store(std::byte* at, std::int32_t dtype, float value) {
  const double wide = value;
  const core::Half half = core::to_half(value);
  const core::BFloat16 brain = core::to_bfloat16(value);
  switch (dtype) {
    case TSR_FP64: std::memcpy(at, &wide, 8); return;
    case TSR_FP16: std::memcpy(at, &half, 2); return;
    case TSR_BF16: std::memcpy(at, &brain, 2); return;
    case TSR_BOOL:
      *at = value < -0.5F ? std::byte{0} : static_cast<std::byte>(1 + static_cast<int>(value + 1));
      return;
    default: std::memcpy(at, &value, 4);
  }
}

double load(const std::byte* at, std::int32_t dtype) {
  double wide = 0;
  float value = 0;
  core::Half half{};
  core::BFloat16 brain{};
  switch (dtype) {
    case TSR_FP64: return std::memcpy(&wide, at, 8), wide;
    case TSR_FP16: return std::memcpy(&half, at, 2), core::to_float(half);
    case TSR_BF16: return std::memcpy(&brain, at, 2), core::to_float(brain);
    case TSR_BOOL: return *at != std::byte{0} ? 1 : 0;
    default: return std::memcpy(&value, at, 4), value;
  }
}

// How many elements below and above its first one a tensor addresses; false: too
// many, or a size is negative.
bool extent_of(const tsr_tensor& t, std::int64_t& below, std::int64_t& above) {
  below = above = 0;
  for (const std::int64_t size : t.shape) {
    if (size < 0) return false;
    if (size == 0) return true;
  }
  for (int i = 0; i < 4; ++i) {
    if (t.shape[i] == 1) continue;
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(i == 3 ? 1 : t.strides[i], t.shape[i] - 1, &reach)) return false;
    if (reach > kMostElements || reach < -kMostElements) return false;
    (reach < 0 ? below : above) += reach;
  }
  return above - below < kMostElements;
}

// Legal, but a mask of so many blocks takes seconds and gigabytes.
bool too_large(const tsr_block_layout& layout) {
  constexpr std::int64_t kMostBlocks = 1 << 12;
  auto blocks = [](std::int64_t length, std::int64_t block) { return block > 0 ? length / block : 0; };
  return blocks(layout.q_length, layout.block_q) > kMostBlocks ||
         blocks(layout.k_length, layout.block_k) > kMostBlocks || layout.heads > kMostBlocks;
}

std::shared_ptr<tsr_block_mask> choose_block_mask(Bytes& bytes, const Sizes& s) {
  tsr_block_layout layout = TSR_BLOCK_LAYOUT_INIT;
  layout.q_length = bytes.mostly(s.longest_q, 32);
  layout.k_length = bytes.mostly(s.longest_k, 32);
  layout.block_q = bytes.mostly(bytes.between(1, 40), 32);
  layout.block_k = bytes.mostly(bytes.between(1, 40), 32);
  layout.heads = bytes.mostly(bytes.one_in(2) ? s.q_heads : 1, 32);
  if (too_large(layout)) return nullptr;
  tsr_block_mask* mask = nullptr;
  std::int64_t numbers[3];
  for (std::int64_t& number : numbers) number = bytes.mostly(bytes.between(-1, 5), 16);
  const std::uint32_t seed = bytes.word();
  const double density = static_cast<double>(bytes.between(0, 110)) / 100;
  switch (bytes.byte() % 7) {
    case 0: tsr_block_mask_local(&layout, numbers[0], &mask); break;
    case 1: tsr_block_mask_strided(&layout, numbers[0], &mask); break;
    case 2: tsr_block_mask_fixed(&layout, numbers[0], numbers[1], &mask); break;
    case 3: tsr_block_mask_big_bird(&layout, numbers[0], numbers[1], numbers[2], seed, &mask); break;
    case 4: tsr_block_mask_butterfly(&layout, &mask); break;
    case 5: tsr_block_mask_random(&layout, density, seed, &mask); break;
    default: {
      std::vector<std::int64_t> offsets{bytes.mostly(0, 16)};
      std::vector<std::int32_t> columns;
      for (std::int64_t rows = bytes.between(0, 20); rows > 0; --rows) {
        const std::int64_t kept = bytes.between(0, 3);
        for (std::int64_t j = 0; j < kept; ++j)
          columns.push_back(static_cast<std::int32_t>(bytes.mostly(j, 32)));
        offsets.push_back(bytes.mostly(static_cast<std::int64_t>(columns.size()), 32));
      }
      tsr_block_mask_from_csr(&layout, offsets.data(), offsets.size(), columns.data(), columns.size(), &mask);
    }
  }
  return {mask, tsr_block_mask_release};
}

}  // namespace

// ---- tensors ------------------------------------------------------------------------------------

Buffer::Buffer(Bytes& bytes, std::int32_t dtype, const std::int64_t (&shape)[4], bool output,
               std::uint32_t seed)
    : tensor_(tsr_tensor_contiguous(nullptr, dtype, shape[0], shape[1], shape[2], shape[3])) {
  choose_layout(bytes, output);
  choose_mistake(bytes);
  allocate(seed);
}

void Buffer::choose_layout(Bytes& bytes, bool output) {
  std::int64_t* const stride = tensor_.strides;
  const std::int64_t* const shape = tensor_.shape;
  auto at_least_1 = [](std::int64_t size) { return std::max<std::int64_t>(size, 1); };
  switch (bytes.byte() % 8) {
    case 1:  // heads before the sequence
      stride[1] = shape[3];
      stride[2] = stride[1] * at_least_1(shape[1]);
      stride[0] = stride[2] * at_least_1(shape[2]);
      break;
    case 2: {  // gaps
      const std::int64_t gap = bytes.between(0, 5);
      stride[2] = shape[3] + gap;
      stride[1] = stride[2] * at_least_1(shape[2]) + gap;
      stride[0] = stride[1] * at_least_1(shape[1]);
      break;
    }
    case 3:
      if (!output) stride[bytes.between(0, 2)] = 0;
      break;
    case 4: {
      std::int64_t& reversed = stride[bytes.between(0, 2)];
      reversed = -reversed;
      break;
    }
    case 5:
      if (bytes.one_in(4)) stride[bytes.between(0, 3)] = bytes.hostile();
      break;
    default: break;
  }
}

void Buffer::choose_mistake(Bytes& bytes) {
  if (bytes.one_in(64)) tensor_.shape[bytes.between(0, 3)] = bytes.mostly(bytes.between(0, 9), 2);
  if (bytes.one_in(128)) tensor_.dtype = static_cast<std::int32_t>(bytes.between(-1, 4));
  if (bytes.one_in(128)) tensor_.device.type = static_cast<std::int32_t>(bytes.between(-1, 2));
  if (bytes.one_in(128)) tensor_.device.index = static_cast<std::int32_t>(bytes.between(-1, 2));
  if (bytes.one_in(128)) tensor_.read_only = 1;
}

void Buffer::allocate(std::uint32_t seed) {
  std::int64_t below = 0, above = 0;
  if (!extent_of(tensor_, below, above)) return;
  const std::int32_t dtype = known(tensor_.dtype) ? tensor_.dtype : TSR_FP32;
  const auto elements = static_cast<std::size_t>(above - below + 1);
  memory_ = std::make_unique<std::byte[]>(elements * size_of(dtype));
  for (std::size_t i = 0; i < elements; ++i) {
    seed = seed * 1664525U + 1013904223U;
    store(memory_.get() + i * size_of(dtype), dtype, static_cast<float>((seed >> 8) % 2001) / 1000 - 1);
  }
  tensor_.data = memory_.get() - below * static_cast<std::int64_t>(size_of(dtype));
}

std::vector<double> Buffer::values() const {
  std::vector<double> all;
  const tsr_tensor& t = tensor_;
  auto step = [&](int i, std::int64_t index) { return t.shape[i] > 1 ? index * t.strides[i] : 0; };
  for (std::int64_t a = 0; a < t.shape[0]; ++a) {
    for (std::int64_t b = 0; b < t.shape[1]; ++b) {
      for (std::int64_t c = 0; c < t.shape[2]; ++c) {
        for (std::int64_t d = 0; d < t.shape[3]; ++d) {
          const std::int64_t at = step(0, a) + step(1, b) + step(2, c) + d;
          all.push_back(
              load(static_cast<const std::byte*>(t.data) + at * static_cast<std::int64_t>(size_of(t.dtype)),
                   t.dtype));
        }
      }
    }
  }
  return all;
}

// ---- the call -----------------------------------------------------------------------------------

Call::Call(Bytes& bytes) : dtype(bytes.byte() % 4) {
  choose_sizes(bytes);
  choose_mask(bytes);
  choose_scores(bytes);
  make_tensors(bytes);
}

void Call::choose_sizes(Bytes& bytes) {
  Sizes& s = sizes;
  s.batch = s.sequences = bytes.one_in(8) ? bytes.between(0, 4) : bytes.between(1, 2);
  s.kv_heads = bytes.between(1, 3);
  s.q_heads = s.kv_heads * bytes.between(1, 3);
  s.q_length = s.longest_q = bytes.between(0, bytes.one_in(12) ? 300 : 40);
  s.k_length = s.longest_k = bytes.between(0, bytes.one_in(12) ? 600 : 70);
  s.qk_dim = bytes.between(1, bytes.one_in(8) ? 256 : 40);
  s.v_dim = bytes.one_in(2) ? s.qk_dim : bytes.between(1, bytes.one_in(8) ? 256 : 40);
  if (bytes.one_in(12)) {  // few queries and heads, but all chunks and splits of keys that there are
    s.batch = s.sequences = s.kv_heads = 1;
    s.q_heads = bytes.between(1, 2);
    s.q_length = s.longest_q = bytes.between(1, 8);
    s.k_length = s.longest_k = bytes.between(600, 4096);
  }
  if (!bytes.one_in(4)) return;
  const std::int64_t count = bytes.between(0, 5);
  tsr_attention& a = description.attention;
  s.batch = 1, s.sequences = count, s.longest_q = s.longest_k = 0;
  auto lengths = [&](std::int64_t most, std::int64_t& longest, std::int64_t& total) {
    auto sums = std::make_unique<std::int32_t[]>(static_cast<std::size_t>(count) + 1);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t length = bytes.between(0, most);
      longest = std::max(longest, length);
      sums[static_cast<std::size_t>(i) + 1] =
          sums[static_cast<std::size_t>(i)] + static_cast<std::int32_t>(length);
    }
    total = sums[static_cast<std::size_t>(count)];
    if (bytes.one_in(24))
      sums[static_cast<std::size_t>(bytes.between(0, count))] = static_cast<std::int32_t>(bytes.hostile());
    return sums;
  };
  description.lengths_q = lengths(30, s.longest_q, s.q_length);
  description.lengths_k = lengths(50, s.longest_k, s.k_length);
  a.lengths_q = description.lengths_q.get();
  a.lengths_k = description.lengths_k.get();
  a.lengths_count = count;
  if (bytes.one_in(3)) a.lengths_max_q = bytes.mostly(s.longest_q, 8), a.lengths_max_k = s.longest_k;
}

void Call::choose_mask(Bytes& bytes) {
  tsr_attention& a = description.attention;
  if (bytes.one_in(2)) a.right = bytes.mostly(bytes.one_in(2) ? 0 : bytes.between(-1, 60), 16);
  if (bytes.one_in(3)) a.left = bytes.mostly(bytes.between(-1, 60), 16);
  if (bytes.one_in(4)) a.has_diagonal = 1, a.diagonal = bytes.mostly(bytes.between(-60, 60), 8);
  a.align = bytes.one_in(40) ? 2 : bytes.byte() % 2;
  if (bytes.one_in(4)) {
    a.origin_row = bytes.mostly(bytes.between(0, 500), 16);
    a.origin_column = bytes.mostly(bytes.between(0, 500), 16);
    a.origin_batch = bytes.between(0, 5);
    a.origin_head = bytes.between(0, 9);
  }
  if (!bytes.one_in(4)) return;
  description.mask = choose_block_mask(bytes, sizes);
  a.block_mask = description.mask.get();
}

void Call::choose_scores(Bytes& bytes) {
  tsr_attention& a = description.attention;
  constexpr std::int32_t kAlgorithms[] = {TSR_AUTOMATIC, TSR_FLASH2, TSR_FLASH1, TSR_STANDARD};
  a.algorithm =
      bytes.one_in(64) ? static_cast<std::int32_t>(bytes.between(-1, 7)) : kAlgorithms[bytes.byte() % 4];
  a.deterministic = bytes.byte() % 2;
  if (bytes.one_in(3)) a.has_scale = 1, a.scale = static_cast<double>(bytes.between(-20, 20)) / 10;
  if (a.has_scale != 0 && bytes.one_in(32)) a.scale = std::numeric_limits<double>::infinity();
  if (bytes.one_in(4)) a.softcap = static_cast<double>(bytes.between(0, 50)) / 10;
  if (bytes.one_in(4)) {
    const std::int64_t stride = bytes.one_in(3) ? bytes.between(0, 12) : 0;
    const std::int64_t count = sizes.q_heads + std::max<std::int64_t>(sizes.sequences - 1, 0) * stride;
    description.slopes = std::make_unique<float[]>(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) {
      description.slopes[static_cast<std::size_t>(i)] = static_cast<float>(bytes.between(-10, 100)) / 100;
    }
    a.alibi_slopes = description.slopes.get();
    a.alibi_batch_stride = stride;
  }
  if (!bytes.one_in(4)) return;
  a.dropout_probability = static_cast<double>(bytes.between(0, 100)) / 100;
  a.dropout_seed = bytes.word();
  if (!bytes.one_in(2)) return;
  description.state = std::make_unique<std::uint64_t[]>(2);
  description.state[0] = bytes.word();
  a.dropout_state = description.state.get();
}

void Call::make_tensors(Bytes& bytes) {
  const Sizes& s = sizes;
  std::uint32_t seed = bytes.word();
  auto make = [&](std::int32_t type, const std::int64_t(&shape)[4], bool output) {
    return Buffer(bytes, type, shape, output, seed++);
  };
  const std::int32_t wide = dtype == TSR_FP64 ? TSR_FP64 : TSR_FP32;
  const std::int64_t of_q[4] = {s.batch, s.q_length, s.q_heads, s.qk_dim},
                     of_k[4] = {s.batch, s.k_length, s.kv_heads, s.qk_dim};
  const std::int64_t of_v[4] = {s.batch, s.k_length, s.kv_heads, s.v_dim},
                     of_out[4] = {s.batch, s.q_length, s.q_heads, s.v_dim};
  const std::int64_t of_rows[4] = {s.batch, s.q_heads, s.q_length, 1};
  q = make(dtype, of_q, false), k = make(dtype, of_k, false), v = make(dtype, of_v, false);
  out = make(dtype, of_out, true), lse = make(wide, of_rows, true);
  grad_out = make(dtype, of_out, false), grad_lse = make(wide, of_rows, false);
  grad_q = make(dtype, of_q, true), grad_k = make(dtype, of_k, true), grad_v = make(dtype, of_v, true);
  forward.q = q.tensor(), forward.k = k.tensor(), forward.v = v.tensor();
  forward.out = out.tensor(), forward.lse = lse.tensor();
  const std::int64_t sequences = description.attention.lengths_count != 0 ? s.sequences : s.batch;
  if (bytes.one_in(4)) {
    has_bias = true;
    const std::int64_t of_bias[4] = {bytes.one_in(2) ? 1 : sequences, bytes.one_in(2) ? 1 : s.q_heads,
                                     bytes.one_in(2) ? 1 : s.longest_q, s.longest_k};
    const std::int32_t type = bytes.one_in(2) ? dtype : wide;
    bias = make(type, of_bias, false), grad_bias = make(type, of_bias, true);
    forward.bias = bias.tensor();
  }
  const tsr_tensor** const given[] = {&forward.q, &forward.k, &forward.v, &forward.out, &forward.lse};
  if (bytes.one_in(64)) *given[bytes.byte() % 5] = nullptr;
  if (bytes.one_in(64)) forward.out = *given[bytes.byte() % 3];  // over an input
  const std::uint8_t wanted = bytes.byte();
  backward = {sizeof backward,
              forward.q,
              forward.k,
              forward.v,
              forward.bias,
              forward.out,
              forward.lse,
              grad_out.tensor(),
              (wanted & 1) != 0 ? grad_lse.tensor() : nullptr,
              (wanted & 2) != 0 ? nullptr : grad_q.tensor(),
              (wanted & 4) != 0 ? nullptr : grad_k.tensor(),
              (wanted & 8) != 0 ? nullptr : grad_v.tensor(),
              has_bias && (wanted & 16) == 0 ? grad_bias.tensor() : nullptr,
              nullptr};
  if (!bytes.one_in(4)) return;
  has_visible = true;
  const std::int64_t of_visible[4] = {bytes.one_in(2) ? 1 : sequences, bytes.one_in(2) ? 1 : s.q_heads,
                                      bytes.one_in(2) ? 1 : s.longest_q, s.longest_k};
  visible = make(TSR_BOOL, of_visible, false);
  forward.visible = backward.visible = visible.tensor();
}

bool Call::can_run() const {
  for (const Buffer* buffer : {&q, &k, &v, &out, &lse, &grad_out, &grad_lse, &grad_q, &grad_k, &grad_v}) {
    if (!buffer->exists()) return false;
  }
  return (!has_bias || (bias.exists() && grad_bias.exists())) && (!has_visible || visible.exists());
}

}  // namespace tessera::fuzz
