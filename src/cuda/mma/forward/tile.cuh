// The state of a thread of the forward kernel, and the steps that it goes through. kernel.cuh
// explains the schedule.
#pragma once

#include <cstdint>

#include "cuda/common/dropout_columns.h"
#include "cuda/common/features.cuh"
#include "cuda/common/ptx/mma.cuh"
#include "cuda/common/ptx/shared_memory.cuh"
#include "cuda/common/step_cursor.h"
#include "cuda/common/tile/shared_tile.cuh"
#include "cuda/mma/forward/config.h"
#include "cuda/mma/forward/tile_info.cuh"

namespace tessera::cuda::mma::forward {

template <Config C>
class QueryTile {
 public:
  __device__ explicit QueryTile(const Arguments& arguments);

  __device__ bool empty() const { return info().empty(); }

  __device__ bool compute(bool careful);

 private:
  static constexpr int kM = C.m_tiles, kN = C.chunk / 8, kChunks = C.block_k / C.chunk;
  static constexpr int kK = C.head_dim / 16, kD = C.head_dim / 8;
  static constexpr bool kAsync = C.mma == ptx::Mma::k16;
  static constexpr bool kPlain = C.variant == Variant::plain, kFeatured = !kPlain;
  static constexpr bool kDropout = C.variant == Variant::dropout;
  // Without cp.async, and if registers allow, the next step waits in registers while this one is
  // computed.
  static constexpr bool kHold = !kAsync && C.head_dim < 256;
  static_assert(kAsync || kHold || C.stages == 1);
  static_assert(!C.q_makes_room || (C.q_in_registers && kHold));
  // The first step is copied before the thread block knows the rest of its tile.
  static constexpr bool kStartEarly = kPlain && kAsync && C.stages == 2;
  static constexpr unsigned kWarp = 0xFFFFFFFF;
  // A bound for the sum over the columns of a step that a lane holds of a row: then no P is larger.
  static constexpr float kSpeculationLimit = C.type == ptx::Half16::bf16 ? 1e15F : 3e4F;
  // Speculation needs a second chunk whose products hide the exponentials. Features leave no
  // registers for it, and with ALiBi it would rarely succeed.
  static constexpr bool kSpeculate = kChunks > 1 && kPlain;
  // Copies are issued after the first products, which hide their address arithmetic, where
  // registers allow.
  static constexpr bool kCopyLate = C.head_dim == 64 && kPlain;
  // P of a step that will be undone must be finite. The conversion takes care of that
  // (pack_finite), except on Turing, and at head_dim 128 in bf16, where it would take one register
  // too many.
  static constexpr bool kClampExponent =
      C.mma == ptx::Mma::k8 || (C.type == ptx::Half16::bf16 && C.head_dim != 64);
  static constexpr float kLargestExponent = C.type == ptx::Half16::bf16 ? 80.0F : 15.99F;
  // A maximum that grows by less than 2^kLazy is not worth rescaling O.
  static constexpr float kLazy = 8;

  using Tile = SharedTile<C.head_dim>;
  using BiasTile = SharedTile<C.block_k>;
  template <int Width>  // in columns
  using Scores = float[kM][Width / 8][4];
  template <int Width>
  using Probabilities = std::uint32_t[kM][Width / 16][4];
  using RowValues = float[kM][2];  // of rows lane / 4 and lane / 4 + 8 of every m16 tile

  using Walk = StepWalk<WalkOrder::descending, const VisibleColumns&>;

  // The columns [begin, begin + block_k); rows of the tile see at most [first, last) of them.
  struct Step {
    int begin, first, last;
  };
  // The rows of K and V of the next step on their way to shared memory.
  struct Held {
    HeldRows<C.head_dim, C.block_k, C.threads()> k, v;
  };

  // Which elements dropout keeps in this lane's rows, in the columns from `column` on. A random
  // word serves two columns, in the order of the accumulator, so that one call serves 32 columns; a
  // chunk of 16 uses half of a call. kTight: one bit an element, which takes more instructions but
  // one register instead of 16.
  class Kept {
   public:
    static constexpr int kWords = C.search_width() / 8;
    static constexpr bool kTight = C.head_dim == 128 && kM == 2;
    static_assert(!kDropout || kWords == 2 || kWords == 4);

    Kept() = default;
    __device__ __forceinline__ Kept(const QueryTile& tile, int column) {
      // A multiple of the chunk.
      const auto shifted = static_cast<unsigned>(column + tile.a_.column_shift);
      const uint4 x = ptx::load_shared(ptx::shared_address(&info().dropout));
      const core::DropoutStream stream{x.x, x.y, x.z, x.w};
      const DropoutColumns columns =
          dropout_columns(stream, tile.a_.origin_group + shifted / core::kDropoutGroup, tile.lane_ % 4);
      const bool second = kWords == 2 && shifted % core::kDropoutGroup != 0;
      if constexpr (kTight) words_[0] = 0;
#pragma unroll
      for (int row = 0; row < 2 * kM; ++row) {
        const core::PhiloxBlock block = dropout_call(
            stream, columns,
            tile.a_.origin_row + static_cast<unsigned>(info().begin + tile.row(row / 2, row % 2)));
#pragma unroll
        for (int j = 0; j < kWords; ++j) {
          const std::uint32_t word = second ? block.word[(j + 2) % 4] : block.word[j];
          if constexpr (kTight) words_[0] |= kept_halves(tile.a_.features, word) & (0x10001U << at(row, j));
          else words_[at(row, j)] = word;
        }
      }
      if constexpr (kTight) words_[0] = ptx::opaque(words_[0]);
    }

    // 0xFFFF for each kept element of the pair of columns from 8 j on.
    __device__ __forceinline__ std::uint32_t mask(const QueryTile& tile, int mi, int half, int j) const {
      if constexpr (kTight) return ptx::signs_of_halves(words_[0] << (15 - at(2 * mi + half, j)));
      else return kept_halves(tile.a_.features, words_[at(2 * mi + half, j)]);
    }

   private:
    static constexpr int at(int row, int j) { return row * kWords + j; }
    std::uint32_t words_[kTight ? 1 : 2 * kM * kWords];
  };

  __device__ void clear();
  __device__ RowSource key_rows() const;
  __device__ RowSource value_rows() const;
  __device__ void load_bias_tile(int begin, int stage);
  __device__ void load_step(const RowSource& k, const RowSource& v, int begin, int limit, int stage);
  __device__ void load_step(int begin, int stage);
  __device__ void copy_whole_step(int begin, bool any, int stage);
  __device__ void fetch_step(Held& held, int begin);
  __device__ void put_step(const Held& held, int begin, int stage);
  __device__ void load_queries();
  __device__ int count_failure();
  __device__ WholeSteps whole() const;
  __device__ void walk_keys(bool careful);
  template <int Width>
  __device__ void issue_qk(Scores<Width>& s, int stage, int column, int k_step);
  template <int Width>
  __device__ void issue_pv(const Probabilities<Width>& p, int stage, int column, int k_step, int d_tile);
  template <int Width>
  __device__ void issue_pv(const Probabilities<Width>& p, int stage, int column);
  template <int Width>
  __device__ void modify(Scores<Width>& s, int begin, int stage, int column);
  template <int Width>
  __device__ void apply_mask(Scores<Width>& s, const Step& step, int column);
  template <int Width>
  __device__ void online_softmax(const Scores<Width>& s, Probabilities<Width>& p, const Kept& kept);
  template <typename CopyNext>
  __device__ bool speculative_step(int stage, CopyNext&& copy_next);
  __device__ void undo_chunk(int stage, int chunk);
  __device__ void undo_step(int stage);
  __device__ void search_columns(const Step& step, int stage, int column, bool masked);
  __device__ bool search_step(const Step& step, int stage);
  __device__ bool has_maxima() const;
  __device__ void guess_maxima(int stage);
  template <int Width>
  __device__ float row_maximum(const Scores<Width>& s, int mi, int half);
  __device__ void finalize(bool careful);

  // Within the tile.
  __device__ int row(int mi, int half) const { return warp_row_ + mi * 16 + lane_ / 4 + half * 8; }
  // Speculation: 2^(score - reference) of two scores.
  __device__ __forceinline__ float2 exponentials(float x, float y, float reference) const {
    x = fmaf(x, exponent_scale(), -reference);
    y = fmaf(y, exponent_scale(), -reference);
    if constexpr (kClampExponent) x = fminf(x, kLargestExponent), y = fminf(y, kLargestExponent);
    return {ptx::exp2(x), ptx::exp2(y)};
  }
  __device__ static __forceinline__ std::uint32_t packed(float2 e) {
    return kClampExponent ? ptx::pack<C.type>(e.x, e.y) : ptx::pack_finite<C.type>(e.x, e.y);
  }

  __device__ float exponent_scale() const { return kFeatured ? 1.0F : a_.features.scale_log2; }
  __device__ Tile k_tile(int stage) const {
    return {shared_ + (C.q_makes_room ? 0 : C.q_bytes()) + stage * 2 * C.kv_bytes()};
  }
  __device__ Tile v_tile(int stage) const { return {k_tile(stage).base + C.kv_bytes()}; }
  __device__ BiasTile bias_tile(int stage) const {
    return {shared_ + C.tile_bytes() + stage * C.block_q() * C.block_k * C.element_bytes()};
  }

  static_assert(C.warps <= kMostWarps);
  __device__ static TileInfo& info() {
    return ptx::static_shared<TileInfo[C.warps], QueryTile>()[threadIdx.x / 32];
  }

  const Arguments& a_;
  const std::uint32_t shared_;
  const int lane_, warp_row_;
  std::uint32_t q_lane_, k_lane_, v_lane_;
  int k_own_, v_own_;  // plain: the offset of this thread's copies
  std::uint32_t q_[C.q_in_registers ? kK : 1][C.q_in_registers ? kM : 1][4];
  float o_[kM][kD][4];
  RowValues maximum_, sum_;
};

}  // namespace tessera::cuda::mma::forward
