// What the lanes of a warp, and the warps of a block, do together: votes, matrices, barriers.
#include <algorithm>
#include <bit>
#include <cstring>

#include "core/base/text.h"
#include "gpu_model/machine/block.h"
#include "gpu_model/machine/numbers.h"

namespace gpu_model {
namespace {

const char* name_of(Together what) {
  switch (what) {
    case Together::shuffle: return "shfl";
    case Together::vote: return "vote";
    case Together::sync_warp: return "__syncwarp";
    case Together::load_matrix: return "ldmatrix";
    case Together::store_matrix: return "stmatrix";
    case Together::mma: return "mma";
    case Together::wgmma_wait: return "wgmma.wait_group";
    case Together::elect: return "elect";
    case Together::barrier: return "a barrier";
  }
  return "";
}

// Gathers the lanes. True for the last one.
bool gather(Together what, void* own, Place at) {
  Warp& warp = *now.warp;
  if (warp.live != warp.all)
    fail("executes an instruction of the whole warp after lanes have left the kernel", at);
  if (warp.arrived == 0) warp.what = what;
  else if (warp.what != what) {
    fail(tessera::core::concat("executes ", name_of(what), " while other lanes of its warp execute ",
                               name_of(warp.what)),
         at);
  }
  warp.own[now.lane] = own;
  warp.arrived |= 1U << now.lane;
  if (warp.arrived != warp.all) return false;
  warp.arrived = 0;
  return true;
}

struct MatrixLane {
  std::uint32_t* to;
  const std::uint32_t* from;
  std::uint32_t address;
  bool transposed;
};

struct MmaLane {
  float* d;
  const std::uint32_t* a;
  std::uint32_t b0, b1;
  bool bf16, first;
};

void multiply(void* const (&lanes)[32]) {
  const auto* const* m = reinterpret_cast<const MmaLane* const*>(&lanes[0]);
  const bool bf16 = m[0]->bf16, first = m[0]->first;
  alignas(64) float a[16][16], b[16][8], d[16][8];
  const std::uint32_t* as[32];
  for (int l = 0; l < 32; ++l) {
    as[l] = m[l]->a;
    const int k = l % 4 * 2, n = l / 4;
    b[k][n] = number(m[l]->b0, bf16), b[k + 1][n] = number(m[l]->b0 >> 16, bf16);
    b[k + 8][n] = number(m[l]->b1, bf16), b[k + 9][n] = number(m[l]->b1 >> 16, bf16);
    for (int i = 0; i < 4; ++i) d[n + i / 2 * 8][k + i % 2] = first ? 0 : m[l]->d[i];
  }
  gather_a(a, as, bf16);
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 16; ++k)
      for (int n = 0; n < 8; ++n) d[row][n] += a[row][k] * b[k][n];
  for (int l = 0; l < 32; ++l)
    for (int i = 0; i < 4; ++i) m[l]->d[i] = d[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2];
}

}  // namespace

Place here() { return __builtin_return_address(0); }

void together(Together what, void* own, Compute compute, Place at) {
  if (!gather(what, own, at)) return stop(name_of(what), at);
  Warp& warp = *now.warp;
  if (warp.all != ~0U) {  // a block of fewer threads
    for (int lane = 0; lane < 32; ++lane) {
      if ((warp.all >> lane & 1) == 0) warp.own[lane] = own;
    }
  }
  now.block->shadow.meet(warp.clock);
  if (compute != nullptr) compute(warp.own);
  wake(warp, warp.all);
}

void sync_warp(unsigned mask, Place at) {
  if (mask != ~0U) fail("__syncwarp of a part of the warp is not modelled", at);
  together(
      Together::sync_warp, nullptr, [](void* const(&)[32]) { now.block->shadow.sync(now.warp->clock); }, at);
}

void shuffle(unsigned mask, const void* value, void* result, std::size_t bytes, int source, Place at) {
  if (mask != ~0U) fail("shfl of a part of the warp is not modelled", at);
  struct Lane {
    const void* value;
    void* result;
    std::size_t bytes;
    int source;
  } lane{value, result, bytes, source & 31};
  together(
      Together::shuffle, &lane,
      [](void* const(&lanes)[32]) {
        for (void* own : lanes) {
          const auto& to = *static_cast<Lane*>(own);
          std::memcpy(to.result, static_cast<Lane*>(lanes[to.source])->value, to.bytes);
        }
      },
      at);
}

std::uint32_t ballot(unsigned mask, bool condition, Place at) {
  if (mask != ~0U) fail("a vote of a part of the warp is not modelled", at);
  struct Lane {
    bool condition;
    std::uint32_t votes;
  } lane{condition, 0};
  together(
      Together::vote, &lane,
      [](void* const(&lanes)[32]) {
        std::uint32_t votes = 0;
        for (int l = 0; l < 32; ++l)
          votes |= static_cast<std::uint32_t>(static_cast<Lane*>(lanes[l])->condition) << l;
        for (int l = 0; l < 32; ++l) static_cast<Lane*>(lanes[l])->votes = votes;
      },
      at);
  return lane.votes;
}

void barrier(int id, int threads, bool wait, bool* any, Place at) {
  if (id < 0 || id >= kNamedBarriers)
    fail(tessera::core::concat("named barrier ", id, " does not exist"), at);
  struct Lane {
    int id;
    bool condition;
  } lane{id, any != nullptr && *any};
  if (!gather(Together::barrier, &lane, at)) {
    stop("a barrier", at);
    if (any != nullptr) *any = now.warp->any;
    return;
  }
  Block& block = *now.block;
  Warp& warp = *now.warp;
  NamedBarrier& barrier = block.named[static_cast<std::size_t>(id)];
  if (barrier.arrived == 0) barrier.expected = threads, barrier.any = false, barrier.knowledge = {};
  if (barrier.expected != threads) {
    fail(tessera::core::concat("barrier ", id, " of ", threads, " threads, which others execute with ",
                               barrier.expected),
         at);
  }
  for (int l = 0; l < 32; ++l) {
    if ((warp.all >> l & 1) == 0) continue;
    const Lane& other = *static_cast<Lane*>(warp.own[l]);
    if (other.id != id) fail("lanes of a warp meet at different barriers", at);
    barrier.any = barrier.any || other.condition;
  }
  barrier.arrived += std::popcount(warp.all);
  block.shadow.release_all(warp.clock, barrier.knowledge, wait);
  if (barrier.arrived > barrier.expected)
    fail(tessera::core::concat("more threads than expected at barrier ", id), at);
  if (wait) barrier.waiting.push_back(&warp);
  else wake(warp, warp.all);
  if (barrier.arrived == barrier.expected) {
    barrier.arrived = 0;
    for (Warp* waiting : barrier.waiting) {
      block.shadow.acquire(waiting->clock, barrier.knowledge);
      waiting->any = barrier.any;
      wake(*waiting, waiting->all);
    }
    barrier.waiting.clear();
  } else if (wait) {
    stop("a barrier", at);
  }
  if (any != nullptr) *any = warp.any;
}

void load_matrix(std::uint32_t (&r)[4], std::uint32_t from, bool transposed, Place at) {
  MatrixLane lane{r, nullptr, from, transposed};
  if (from % 16 != 0) fail("ldmatrix of an address that is no multiple of 16", at);
  now.block->shadow.read(now.warp->clock, kEveryLane, from, 16, Proxy::generic, at);
  together(
      Together::load_matrix, &lane,
      [](void* const(&lanes)[32]) {
        for (int matrix = 0; matrix < 4; ++matrix) {
          std::uint16_t x[8][8];
          for (int row = 0; row < 8; ++row) {
            const auto& named = *static_cast<MatrixLane*>(lanes[8 * matrix + row]);
            std::memcpy(x[row], at_address(named.address), 16);
          }
          for (int l = 0; l < 32; ++l) {
            const auto& own = *static_cast<MatrixLane*>(lanes[l]);
            const int i = l / 4, j = l % 4 * 2;
            own.to[matrix] = own.transposed ? x[j][i] | static_cast<std::uint32_t>(x[j + 1][i]) << 16
                                            : x[i][j] | static_cast<std::uint32_t>(x[i][j + 1]) << 16;
          }
        }
      },
      at);
}

void store_matrix(std::uint32_t to, const std::uint32_t (&r)[4], bool transposed, Place at) {
  MatrixLane lane{nullptr, r, to, transposed};
  if (to % 16 != 0) fail("stmatrix to an address that is no multiple of 16", at);
  now.block->shadow.write(now.warp->clock, now.lane, to, 16, at);
  together(
      Together::store_matrix, &lane,
      [](void* const(&lanes)[32]) {
        for (int matrix = 0; matrix < 4; ++matrix) {
          std::uint16_t x[8][8];
          for (int l = 0; l < 32; ++l) {
            const auto& own = *static_cast<MatrixLane*>(lanes[l]);
            const int i = l / 4, j = l % 4 * 2;
            const auto low = static_cast<std::uint16_t>(own.from[matrix]);
            const auto high = static_cast<std::uint16_t>(own.from[matrix] >> 16);
            if (own.transposed) x[j][i] = low, x[j + 1][i] = high;
            else x[i][j] = low, x[i][j + 1] = high;
          }
          for (int row = 0; row < 8; ++row) {
            const auto& named = *static_cast<MatrixLane*>(lanes[8 * matrix + row]);
            std::memcpy(at_address(named.address), x[row], 16);
          }
        }
      },
      at);
}

void mma(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1, bool bf16,
         bool first, Place at) {
  MmaLane lane{d, a, b0, b1, bf16, first};
  together(Together::mma, &lane, &multiply, at);
}

}  // namespace gpu_model
