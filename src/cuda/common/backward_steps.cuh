// What the backward kernels share: the engine, runs of steps, the products on fragments, what is masked or not finite, and how
// results leave.
//
// Kernels that own keys hold S^T and dP^T: rows of a fragment are keys, columns queries. So P^T and dS^T are, packed, the A
// operands of dV += P^T dO and dK += dS^T Q.
#pragma once

#include <cstdint>

#include "cuda/common/head_options.cuh"
#include "cuda/common/host/images.h"
#include "cuda/common/instances.h"
#include "cuda/common/ptx/copy.cuh"
#include "cuda/common/ptx/mma.cuh"
#include "cuda/common/step_cursor.h"
#include "cuda/common/tile/fragment.h"
#include "cuda/common/tile/shared_tile.cuh"
#include "cuda/mma/backward/arguments.h"

namespace tessera::cuda::flash2 {

using ptx::Half16;
using ptx::Mma;

// The element type, the product that takes it and how rows are copied: what the kernels of a family have in common.
enum class Engine : int { sm75_fp16, sm80_fp16, sm80_bf16 };

constexpr Half16 type_of(Engine e) { return e == Engine::sm80_bf16 ? Half16::bf16 : Half16::fp16; }
constexpr Mma mma_of(Engine e) { return e == Engine::sm75_fp16 ? Mma::k8 : Mma::k16; }
constexpr bool copies_async(Engine e) { return e != Engine::sm75_fp16; }

// A number the compiler knows nothing about: what follows from it is computed where it is needed, not kept in a register
// through the whole loop.
__device__ __forceinline__ int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Keeps the assembler from mixing what comes before with what comes after: where registers do not suffice for both.
__device__ __forceinline__ void keep_apart() { __syncwarp(); }

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
inline constexpr bool kBefore90 =
    true;  // no reductions of four numbers at once; more registers for addresses
#else
inline constexpr bool kBefore90 = false;
#endif

// Waits for this thread's copies; nothing to wait for where they are plain loads and stores.
template <Engine E>
__device__ __forceinline__ void wait_copies() {
  if constexpr (copies_async(E)) ptx::wait_copies<0>();
}
template <Engine E>
__device__ __forceinline__ void commit_copies() {
  if constexpr (copies_async(E)) ptx::commit_copies();
}

// Rows [0, ...) of one head of a tensor, as a source of tiles.
template <Variant V>
__device__ __forceinline__ RowSource rows_of(const core::View& view, std::int64_t batch, int head,
                                             std::int64_t first_row, std::int64_t columns) {
  const auto* data = view.row<const std::uint16_t>(batch, head, first_row);
  bool aligned = true;
  if constexpr (V != Variant::plain) {
    aligned = ((reinterpret_cast<std::uintptr_t>(data) >> 1 | static_cast<std::uintptr_t>(view.row_stride) |
                static_cast<std::uintptr_t>(columns)) &
               7) == 0;
  }
  return {data, view.row_stride, static_cast<int>(columns), aligned};
}

// Neighbouring steps, taken from the last, which begins at `begin`, to the first; of their rows or columns [first, last)
// count. No more: first >= last.
struct Run {
  int begin, first, last;
};

// The runs of what is visible, from the last to the first.
class Runs {
 public:
  Runs() = default;
  __device__ explicit Runs(const core::VisibleColumns& visible)
      : visible_(visible), left_(visible.count < 0 ? 1 : visible.count) {}

  // The next run, whose steps begin where column + shift is a multiple of `width`.
  __device__ Run next(int width, int shift = 0) {
    while (left_ > 0) {
      int first = visible_.begin, last = visible_.end, length = 1;
      if (visible_.count < 0) {
        left_ = 0;
      } else {  // neighbouring blocks of the mask
        const std::int32_t* kept = visible_.kept;
        while (length < left_ && kept[left_ - length - 1] == kept[left_ - length] - 1) ++length;
        const std::int64_t from = std::int64_t{kept[left_ - length]} * visible_.block;
        left_ -= length;
        first = static_cast<int>(max(std::int64_t{first}, min(from, std::int64_t{last})));
        last = static_cast<int>(min(std::int64_t{last}, from + std::int64_t{length} * visible_.block));
      }
      if (first < last) return {(last - 1 + shift) / width * width - shift, first, last};
    }
    return {};
  }

 private:
  core::VisibleColumns visible_;
  int left_;  // kept blocks, or the one range, still to come
};

// Scores of 16 * Tiles rows of `own` by 8 * Blocks rows of `streamed`, added to `out` or, First, instead of it. Addresses
// are those of the lane.
template <Engine E, int Columns, bool First, int Tiles, int Blocks>
__device__ __forceinline__ void issue_scores(float (&out)[Tiles][Blocks][4], std::uint32_t own,
                                             std::uint32_t streamed) {
  using Tile = SharedTile<Columns>;
#pragma unroll
  for (int step = 0; step < Columns / 16; ++step) {
    std::uint32_t a[Tiles][4];
#pragma unroll
    for (int m = 0; m < Tiles; ++m) ptx::load_matrix(a[m], Tile::at(own, m * 16, step));
#pragma unroll
    for (int j = 0; j < Blocks; j += 2) {
      std::uint32_t b[4];
      ptx::load_matrix(b, Tile::at(streamed, j * 8, step));
#pragma unroll
      for (int m = 0; m < Tiles; ++m) {
        if (First && step == 0) {
          ptx::mma_first<mma_of(E), type_of(E)>(out[m][j], a[m], b[0], b[1]);
          ptx::mma_first<mma_of(E), type_of(E)>(out[m][j + 1], a[m], b[2], b[3]);
        } else {
          ptx::mma<mma_of(E), type_of(E)>(out[m][j], a[m], b[0], b[1]);
          ptx::mma<mma_of(E), type_of(E)>(out[m][j + 1], a[m], b[2], b[3]);
        }
      }
    }
  }
}

// sums += left x rows of a tile, 16 rows per A operand from `row` on; `right` is the lane's address in row 0 and the first
// of the columns.
template <Engine E, int Columns, int Tiles, int Blocks, int Steps>
__device__ __forceinline__ void issue_sums(float (&sums)[Tiles][Blocks][4],
                                           const std::uint32_t (&left)[Tiles][Steps][4], std::uint32_t right,
                                           int row) {
#pragma unroll
  for (int n = 0; n < Steps; ++n) {
#pragma unroll
    for (int j = 0; j < Blocks; j += 2) {
      std::uint32_t b[4];
      ptx::load_matrix_transposed(b, SharedTile<Columns>::at(right, row + n * 16, j / 2));
#pragma unroll
      for (int m = 0; m < Tiles; ++m) {
        ptx::mma<mma_of(E), type_of(E)>(sums[m][j], left[m][n], b[0], b[1]);
        ptx::mma<mma_of(E), type_of(E)>(sums[m][j + 1], left[m][n], b[2], b[3]);
      }
    }
  }
}

// Rows [first, last) of a tile without what is not finite: zeros instead. For blocks of scores in which something is masked,
// whose 0 must not meet a NaN or an infinity in the products that follow. What such a number reaches rightly is NaN by its
// own score.
template <Half16 Type, int Columns, int Threads>
__device__ __forceinline__ void clear_not_finite(std::uint32_t tile, int first, int last) {
  constexpr std::uint32_t kExponent = Type == Half16::bf16 ? 0x7F80 : 0x7C00;
  constexpr int kRowChunks = Columns / 8;
#pragma unroll 1
  for (int at = first * kRowChunks + static_cast<int>(threadIdx.x); at < last * kRowChunks; at += Threads) {
    const uint4 x = ptx::load_shared(tile + at * 16);
    std::uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (std::uint32_t& word : words) {
      if ((word & kExponent) == kExponent) word &= 0xFFFF0000U;
      if ((word >> 16 & kExponent) == kExponent) word &= 0xFFFFU;
    }
    ptx::store_shared(tile + at * 16, uint4{words[0], words[1], words[2], words[3]});
  }
}

// The columns of a step that one row of a fragment sees, counted from the first column of the step.
struct SeenRange {
  int first;
  unsigned count;
  __device__ __forceinline__ bool operator()(int column) const {
    return static_cast<unsigned>(column - first) < count;
  }
};
__device__ __forceinline__ SeenRange seen_range(int first, int last) {
  return {first, static_cast<unsigned>(last > first ? last - first : 0)};
}

// Two packed A operands per 16 columns from accumulators side by side.
template <Half16 Type, int Tiles, int Pairs, int Blocks>
__device__ __forceinline__ void pack_operands(std::uint32_t (&packed)[Tiles][Pairs][4],
                                              const float (&x)[Tiles][Blocks][4]) {
  static_assert(Blocks == 2 * Pairs);
#pragma unroll
  for (int m = 0; m < Tiles; ++m) {
#pragma unroll
    for (int n = 0; n < Pairs; ++n) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float(&from)[4] = x[m][2 * n + r / 2];
        packed[m][n][r] = ptx::pack<Type>(from[r % 2 * 2], from[r % 2 * 2 + 1]);
      }
    }
  }
}

// Stores rows [0, rows) of a tile into a tensor by `threads` threads, of which this is number `thread`: whole chunks, or
// number by number.
template <int Columns>
__device__ __forceinline__ void store_rows(std::uint32_t tile, std::uint16_t* to, std::int64_t stride,
                                           int first, int last, int columns, bool aligned, int thread,
                                           int threads) {
  constexpr int kChunks = Columns / 8;
  for (int at = first * kChunks + thread; at < last * kChunks; at += threads) {
    const int row = at / kChunks, chunk = at % kChunks;
    if (chunk * 8 >= columns) continue;
    const uint4 x = ptx::load_shared(tile + SharedTile<Columns>::offset(row, chunk));
    std::uint16_t* target = to + row * stride + chunk * 8;
    if (aligned) {
      *reinterpret_cast<uint4*>(target) = x;
    } else {
      const std::uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        if (chunk * 8 + e < columns) target[e] = static_cast<std::uint16_t>(words[e / 2] >> (e % 2 * 16));
      }
    }
  }
}

// Accumulators of 16 * Tiles rows times `factor` into a tile, rounded; `chunk` is that of their first column.
template <Half16 Type, int Columns, int Tiles, int Blocks>
__device__ __forceinline__ void stage_rows(std::uint32_t tile, int row, int chunk,
                                           const float (&x)[Tiles][Blocks][4], float factor) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int m = 0; m < Tiles; ++m) {
#pragma unroll
    for (int j = 0; j < Blocks; ++j) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int at = row + m * 16 + lane / 4 + 8 * h;
        ptx::store_shared(tile + SharedTile<Columns>::offset(at, chunk + j) + lane % 4 * 4,
                          ptx::pack<Type>(x[m][j][2 * h] * factor, x[m][j][2 * h + 1] * factor));
      }
    }
  }
}

// dQ of a block of queries is summed over the tiles of keys by reductions. Fragment f of the block: 128 numbers, together
// where the hardware adds four at once, else such that each of four reductions of a warp covers 128 bytes. Which of the two
// is up to who adds: cuda.flash2's kernels of all files are compiled for the same GPUs, cuda.hopper's for one.
enum class SumsLayout : int { fours, apart };
inline constexpr SumsLayout kOwnLayout = kBefore90 ? SumsLayout::apart : SumsLayout::fours;

__device__ __forceinline__ void reduce_fragment(float* to, const float (&x)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900  // PTX ISA: red.global.add.v4.f32
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to + lane * 4), "f"(x[0]),
               "f"(x[1]), "f"(x[2]), "f"(x[3])
               : "memory");
#else
#pragma unroll
  for (int e = 0; e < 4; ++e) atomicAdd(to + e * 32 + lane, x[e]);
#endif
}
template <SumsLayout Layout>
__device__ __forceinline__ void load_fragment(float (&x)[4], const float* from) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if constexpr (Layout == SumsLayout::fours) {
    const float4 four = *reinterpret_cast<const float4*>(from + lane * 4);
    x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] = from[e * 32 + lane];
  }
}

// The place of fragment (16 queries, 8 columns) in a block of dQ sums.
__device__ __forceinline__ int fragment_offset(int head_dim, int row, int column) {
  return (row / 16 * (head_dim / 8) + column / 8) * 128;
}

}  // namespace tessera::cuda::flash2
