// wgmma: issued lane by lane, done when its group is waited for. Until then the accumulators hold
// NaN, and a plain access to them, or a write to what the product reads, is an error.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/base/text.h"
#include "gpu_model/machine/block.h"
#include "gpu_model/machine/numbers.h"

namespace gpu_model {
namespace {

constexpr int kDepth = 16;  // of the contraction
constexpr int kMostColumns = 256;
constexpr int kARegisters = 4;

std::uint32_t swizzled(std::uint32_t address) { return address ^ (address >> 3 & 0x70); }

// A matrix descriptor with the swizzle over 128 bytes (PTX ISA: matrix descriptor).
struct Descriptor {
  std::uint32_t address, leading, stride;
  explicit Descriptor(std::uint64_t bits)
      : address(static_cast<std::uint32_t>(bits & 0x3FFF) << 4),
        leading(static_cast<std::uint32_t>(bits >> 16 & 0x3FFF) << 4),
        stride(static_cast<std::uint32_t>(bits >> 32 & 0x3FFF) << 4) {}

  // 16 bytes of 8 numbers: contraction k to k + 8 of `outer`, where the contraction is contiguous;
  [[nodiscard]] std::uint32_t contiguous(int outer, int k) const {
    return swizzled(address + static_cast<std::uint32_t>(outer / 8) * stride +
                    static_cast<std::uint32_t>(outer % 8 * 128 + k * 2));
  }
  // and columns `outer` to outer + 8 of contraction k, where the columns are.
  [[nodiscard]] std::uint32_t by_rows(int outer, int k) const {
    return swizzled(address + static_cast<std::uint32_t>(outer / 64) * leading +
                    static_cast<std::uint32_t>(k / 8) * stride +
                    static_cast<std::uint32_t>(k % 8 * 128 + outer % 64 * 2));
  }
};

// Calls visit(address) for each 16 bytes that a warp reads of the operands.
template <typename Visit>
void for_chunks(const WgmmaOperands& o, int warp, Visit&& visit) {
  const Descriptor b(o.b_descriptor);
  if (o.b_by_rows) {
    for (int k = 0; k < kDepth; ++k)
      for (int n = 0; n < o.columns; n += 8) visit(b.by_rows(n, k));
  } else {
    for (int n = 0; n < o.columns; ++n)
      for (int k = 0; k < kDepth; k += 8) visit(b.contiguous(n, k));
  }
  if (o.a != nullptr) return;
  const Descriptor a(o.a_descriptor);
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < kDepth; k += 8) visit(a.contiguous(warp % 4 * 16 + row, k));
}

const std::uint16_t* chunk(std::uint32_t address) {
  return reinterpret_cast<const std::uint16_t*>(at_address(address));
}

bool accumulates(const std::vector<Product>& products, const float* d) {
  return std::any_of(products.begin(), products.end(), [&](const Product& p) { return p.operands.d == d; });
}

// Once for each warp: the order of what the product reads.
void check_operands(const WgmmaOperands& o, Place at) {
  Thread& thread = *now.thread;
  Warp& warp = *now.warp;
  if (thread.products_issued++ != warp.products_checked) return;
  ++warp.products_checked;
  if (o.b_descriptor >> 62 != 1 || (o.a == nullptr && o.a_descriptor >> 62 != 1))
    fail("wgmma with another swizzle than that over 128 bytes is not modelled", at);
  for_chunks(o, warp.index, [&](std::uint32_t address) {
    if (address + 16 > now.block->dynamic_end) fail("wgmma reads beyond shared memory", at);
    now.block->shadow.begin_read(warp.clock, kEveryLane, address, 16, at);
  });
}

// The 16 rows of a warp.
void multiply(Product* const (&lanes)[32]) {
  const WgmmaOperands& o = lanes[0]->operands;
  static thread_local float a[16][kDepth], b[kDepth][kMostColumns], d[16][kMostColumns];
  const Descriptor left(o.a_descriptor), right(o.b_descriptor);
  if (o.a != nullptr) {
    const std::uint32_t* registers[32];
    for (int l = 0; l < 32; ++l) registers[l] = lanes[l]->operands.a;
    gather_a(a, registers, o.bf16);
  } else {
    for (int row = 0; row < 16; ++row)
      for (int k = 0; k < kDepth; ++k)
        a[row][k] = number(chunk(left.contiguous(now.warp->index % 4 * 16 + row, k / 8 * 8))[k % 8], o.bf16);
  }
  for (int k = 0; k < kDepth; k += o.b_by_rows ? 1 : 8) {
    for (int n = 0; n < o.columns; n += o.b_by_rows ? 8 : 1) {
      const std::uint16_t* x = chunk(o.b_by_rows ? right.by_rows(n, k) : right.contiguous(n, k));
      for (int e = 0; e < 8; ++e) (o.b_by_rows ? b[k][n + e] : b[k + e][n]) = number(x[e], o.bf16);
    }
  }
  for (int l = 0; l < 32; ++l) {
    const Product& p = *lanes[l];
    const float* from = p.before.empty() ? p.operands.d : p.before.data();
    for (int j = 0; j < o.columns / 8; ++j)
      for (int i = 0; i < 4; ++i)
        d[l / 4 + i / 2 * 8][8 * j + l % 4 * 2 + i % 2] = o.first ? 0 : from[4 * j + i];
  }
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < kDepth; ++k) {
      const float x = a[row][k];
      for (int n = 0; n < o.columns; ++n) d[row][n] += x * b[k][n];
    }
  }
  for (int l = 0; l < 32; ++l) {
    float* to = lanes[l]->operands.d;
    for (int j = 0; j < o.columns / 8; ++j)
      for (int i = 0; i < 4; ++i) to[4 * j + i] = d[l / 4 + i / 2 * 8][8 * j + l % 4 * 2 + i % 2];
  }
}

// The products of the oldest group of every lane.
void finish_group(Thread* const (&threads)[32]) {
  const std::size_t count = threads[0]->product_groups.front().size();
  for (std::size_t i = 0; i < count; ++i) {
    Product* lanes[32];
    for (int l = 0; l < 32; ++l) {
      auto& group = threads[l]->product_groups.front();
      if (group.size() != count)
        fail("lanes of a warp have issued different products", group.empty() ? nullptr : group[0].at);
      lanes[l] = &group[i];
      if (lanes[l]->operands.b_descriptor != lanes[0]->operands.b_descriptor ||
          lanes[l]->operands.a_descriptor != lanes[0]->operands.a_descriptor)
        fail("lanes of a warp name different operands", lanes[l]->at);
    }
    multiply(lanes);
    for_chunks(lanes[0]->operands, now.warp->index, [&](std::uint32_t address) {
      now.block->shadow.end_read(now.warp->clock, kEveryLane, address, 16);
    });
  }
  for (Thread* thread : threads) thread->product_groups.erase(thread->product_groups.begin());
}

// What is still in flight after some groups have ended.
void mark_operands(Thread& thread) {
  OperandRegisters& r = thread.operands;
  for (std::uint8_t& state : r.state) state &= OperandRegisters::written;
  auto mark = [&](const Product& p) {
    std::uint8_t* d = r.of(p.operands.d);
    for (int i = 0; i < p.operands.columns / 2; ++i) d[i] |= OperandRegisters::accumulates;
    for (int i = 0; p.operands.a != nullptr && i < kARegisters; ++i)
      r.of(p.operands.a)[i] |= OperandRegisters::is_read;
  };
  for (const auto& group : thread.product_groups) std::for_each(group.begin(), group.end(), mark);
  std::for_each(thread.products.begin(), thread.products.end(), mark);
}

}  // namespace

void OperandRegisters::include(const void* from, std::size_t words) {
  const auto first = reinterpret_cast<std::uintptr_t>(from), last = first + words * 4;
  if (state.empty()) begin = end = first;
  if (first < begin) state.insert(state.begin(), (begin - first) / 4, 0), begin = first;
  if (last > end) state.resize((last - begin) / 4, 0), end = last;
}

void check_registers(Thread& thread, std::uintptr_t from, std::size_t bytes, bool write, Place at) {
  OperandRegisters& r = thread.operands;
  const std::uintptr_t first = std::max(from, r.begin), last = std::min(from + bytes, r.end);
  for (std::uintptr_t x = first & ~std::uintptr_t{3}; x < last; x += 4) {
    std::uint8_t& state = r.state[(x - r.begin) / 4];
    if ((state & OperandRegisters::accumulates) != 0) fail("uses the accumulators of a wgmma in flight", at);
    if (write && (state & OperandRegisters::is_read) != 0)
      fail("writes registers that a wgmma in flight reads", at);
    if (write) state |= OperandRegisters::written;
  }
}

void wgmma_fence() {
  for (std::uint8_t& state : now.thread->operands.state) state &= ~OperandRegisters::written;
}

void wgmma(const WgmmaOperands& o, Place at) {
  Thread& thread = *now.thread;
  OperandRegisters& r = thread.operands;
  const auto words = static_cast<std::size_t>(o.columns / 2);
  r.include(o.d, words);
  if (o.a != nullptr) r.include(o.a, kARegisters);
  Product product{o, {}, at};
  bool chained = accumulates(thread.products, o.d);
  for (const auto& group : thread.product_groups) chained = chained || accumulates(group, o.d);
  auto fresh = [&](const void* from, std::size_t count) {
    const std::uint8_t* state = r.of(from);
    return std::none_of(state, state + count,
                        [](std::uint8_t s) { return (s & OperandRegisters::written) != 0; });
  };
  if (!(chained || fresh(o.d, words)) || !(o.a == nullptr || fresh(o.a, kARegisters)))
    fail("wgmma with registers that were written after the last wgmma.fence", at);
  if (!chained) {
    product.before.assign(o.d, o.d + words);
    std::fill(o.d, o.d + words, std::nanf(""));
  }
  check_operands(o, at);
  thread.products.push_back(std::move(product));
  for (std::size_t i = 0; i < words; ++i) r.of(o.d)[i] |= OperandRegisters::accumulates;
  for (int i = 0; o.a != nullptr && i < kARegisters; ++i) r.of(o.a)[i] |= OperandRegisters::is_read;
}

void wgmma_commit() {
  now.thread->product_groups.push_back(std::move(now.thread->products));
  now.thread->products.clear();
}

void wgmma_wait(int pending, Place at) {
  struct Lane {
    Thread* thread;
    int pending;
  } lane{now.thread, pending};
  together(
      Together::wgmma_wait, &lane,
      [](void* const(&lanes)[32]) {
        Thread* threads[32];
        for (int l = 0; l < 32; ++l) threads[l] = static_cast<Lane*>(lanes[l])->thread;
        const auto left = static_cast<std::size_t>(static_cast<Lane*>(lanes[0])->pending);
        while (threads[0]->product_groups.size() > left) finish_group(threads);
        for (Thread* thread : threads) mark_operands(*thread);
      },
      at);
}

}  // namespace gpu_model
