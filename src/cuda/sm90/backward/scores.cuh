// From scores to P and dS in the Hopper backward kernel: masks, dropout, and the treatment of
// non-finite values.
//
// Keys are rows. A lane holds keys lane / 4 and lane / 4 + 8 of its warp's 16, and of every eight
// queries 2 (lane % 4) and the next one.
#pragma once

#include "cuda/sm90/backward/consumer.cuh"

namespace tessera::cuda::sm90::backward {

// Whether all queries of the step that begins with query `begin` see all keys of the tile.
template <Config C>
__device__ __forceinline__ bool Consumer<C>::whole(int begin) const {
  return __all_sync(kWarp, tile().whole(begin, kQueries, kKeys));
}

// The queries that see a key, counted from `query`.
template <Config C>
__device__ __forceinline__ ColumnRange queries_from(const KeyTile& t, int key, int query) {
  const QueryRange range = queries_of_key(t, key);
  return ColumnRange::of(range.first - query, range.last - query);
}

// Masked scores become -inf. `check` stays 0 as long as all scores are finite, the masked ones
// included.
template <Config C>
__device__ __forceinline__ void Consumer<C>::apply_mask(int begin, float& check) {
  const int lane = this->lane(), key = group_ * kGroupRows + warp_ * 16 + lane / 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const ColumnRange range = queries_from<C>(tile(), key + 8 * r, begin + lane % 4 * 2);
#pragma unroll
    for (int i = 2 * r; i < kQueries / 2; i += i % 2 == 0 ? 1 : 3) {
      check = fmaf(s_[i], 0.0F, check);
      s_[i] = range(i / 4 * 8 + i % 2) ? s_[i] : -INFINITY;
    }
  }
}

// S becomes P.
template <Config C>
__device__ __forceinline__ void Consumer<C>::exponentiate(int slot) {
  const float* lse = shared_.statistics[slot][0][0] + lane() % 4 * 2;
  const float scale = a_.call.features.scale_log2;
#pragma unroll
  for (int j = 0; j < kQueries / 8; ++j) {
    // Statistics beyond the sequence have not been loaded; apply_mask or clear_masked hides them.
    const float2 pair = ptx::load_any(*reinterpret_cast<const float2*>(lse + j / 8 * 128 + j % 8 * 8));
#pragma unroll
    for (int i = 4 * j; i < 4 * j + 4; ++i)
      s_[i] = ptx::exp2(fmaf(s_[i], scale, i % 2 == 0 ? -pair.x : -pair.y));
  }
}

// dP becomes dS = P o (dP - delta). With dropout P becomes what is kept of it. Both are packed.
template <Config C>
__device__ __forceinline__ void Consumer<C>::differentiate(int slot, int part, std::uint32_t kept) {
  const float* deltas = shared_.statistics[slot][part][1] + lane() % 4 * 2;
#pragma unroll
  for (int j = 8 * part; j < 8 * part + 8; ++j) {
    const float2 pair = ptx::load_any(*reinterpret_cast<const float2*>(deltas + j % 8 * 8));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float &p = s_[4 * j + i], &grad = ds_[4 * (j % 8) + i];
      const float delta = i % 2 == 0 ? pair.x : pair.y;
      if constexpr (C.dropout) {
        const float kept_p = (kept >> kept_position(j % 8, i / 2, i % 2) & 1) != 0 ? p : 0.0F;
        grad = fmaf(kept_p, grad, -p * delta);
        p = kept_p;
      } else {
        grad = (grad - delta) * p;
      }
    }
#pragma unroll
    for (int i = 2 * j; i < 2 * j + 2; ++i) {
      p_packed_[i] = ptx::pack<C.type>(s_[2 * i], s_[2 * i + 1]);
      ds_packed_[i] = ptx::pack<C.type>(ds_[2 * (i % 16)], ds_[2 * (i % 16) + 1]);
    }
  }
}

// P and dS of masked pairs become 0, whatever the statistics of the query are.
template <Config C>
__device__ __forceinline__ void Consumer<C>::clear_masked(int begin, int part) {
  const int lane = this->lane(), key = group_ * kGroupRows + warp_ * 16 + lane / 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const ColumnRange range = queries_from<C>(tile(), key + 8 * r, begin + lane % 4 * 2);
#pragma unroll
    for (int j = 8 * part; j < 8 * part + 8; ++j) {
      const std::uint32_t visible = (range(8 * j) ? 0xFFFFU : 0U) | (range(8 * j + 1) ? 0xFFFF0000U : 0U);
      p_packed_[2 * j + r] &= visible;
      ds_packed_[2 * j + r] &= visible;
    }
  }
}

// dS to shared memory, for dQ: rows are queries, and each warp group's keys are a panel.
template <Config C>
__device__ __forceinline__ void Consumer<C>::store_scores() const {
  const int lane = this->lane();
  const int row = lane / 16 * 8 + lane % 8, column = group_ * 64 + warp_ * 16 + lane / 8 % 2 * 8;
  const std::uint32_t to = ptx::shared_address(shared_.scores[score_slot(0)]) +
                           element_offset(kQueries, row, column, C.element_bytes());
#pragma unroll
  for (int n = 0; n < kQueries / 16; ++n) {
    ptx::store_matrix_transposed(to + static_cast<std::uint32_t>(n * kRowStepBytes), ds_packed_[4 * n],
                                 ds_packed_[4 * n + 1], ds_packed_[4 * n + 2], ds_packed_[4 * n + 3]);
  }
}

// --- non-finite values ---

// In a masked step, after P and dP: returns whether any score or dP of this warp group is not
// finite. If so, P becomes NaN where dP is not finite: dV must show it, and dO no longer does after
// clear_queries.
template <Config C>
__device__ __forceinline__ bool Consumer<C>::spread_non_finite(int part, float& check) {
#pragma unroll
  for (int i = 0; i < 32; ++i) check = fmaf(ds_[i], 0.0F, check);
  if (!ptx::meet_or(kOwn + group_, kWarpGroup, !(check == 0))) return false;
#pragma unroll
  for (int i = 0; i < 32; ++i) s_[32 * part + i] = fmaf(ds_[i], 0.0F, s_[32 * part + i]);
  return true;
}

// Clears the non-finite values of the step's Q and dO, which zeros of a masked step must not meet.
// Both warp groups do it, the same zeros at the same places, once both have stored their dS.
template <Config C>
__device__ __forceinline__ void Consumer<C>::clear_queries(int slot) {
  wait(&shared_.scores_full[score_slot(0)], queries_.count() / C.kScoreStages & 1, WaitFor::scores_full);
  auto clear = [&](const unsigned char* tile) {
#pragma unroll 1
    for (int at = static_cast<int>(threadIdx.x) % kWarpGroup; at < D / C.panel() * kQueries * 8;
         at += kWarpGroup) {
      const int row = at / 8 % kQueries, panel = at / 8 / kQueries;
      clear_chunk<C.type, true>(
          ptx::shared_address(tile) +
          static_cast<std::uint32_t>(panel * kQueries * kRowBytes + row * kRowBytes + at % 8 * kChunkBytes));
    }
  };
  clear(shared_.q[slot]);
  clear(shared_.grad_out[slot]);
  ptx::fence_shared_for_engine();
  ptx::meet(kOwn + group_, kWarpGroup);
}

// Computes dQ by products of a warp, without the non-finite values of K, and adds it to the sums.
template <Config C>
__device__ __forceinline__ void Consumer<C>::add_carefully(float* to) const {
  const int lane = this->lane();
  const std::uint32_t left = ptx::shared_address(shared_.scores[score_slot(1)]) +
                             matrix_offset(kQueries, (kByQueries ? group_ * 64 : 0) + warp_ * 16, lane);
  const std::uint32_t right = ptx::shared_address(shared_.k[key_slot()]) +
                              (kByQueries ? 0 : group_ * kKeys * kRowBytes) + matrix_offset(kKeys, 0, lane);
#pragma unroll 1
  for (int j = 0; j < 8; j += 2) {
    float sums[2][4] = {};
#pragma unroll 1
    for (int n = 0; n < kKeys / 16; ++n) {
      std::uint32_t a[4], b[4];
      ptx::load_matrix(a, matrix_step(kQueries, left, 2 * n));
      ptx::load_matrix_transposed(
          b, matrix_step(kKeys, right + static_cast<std::uint32_t>(n * kRowStepBytes), j));
#pragma unroll
      for (std::uint32_t& pair : b) pair = only_finite<C.type>(pair);
      ptx::mma<ptx::Mma::k16, C.type>(sums[0], a, b[0], b[1]);
      ptx::mma<ptx::Mma::k16, C.type>(sums[1], a, b[2], b[3]);
    }
    add_fragment<SumsLayout::fours>(to + 128 * j, sums[0]);
    add_fragment<SumsLayout::fours>(to + 128 * (j + 1), sums[1]);
  }
}

// --- dropout ---

// A call of the generator yields, for one query, eight of 32 neighbouring keys: pairs of
// neighbours, eight apart. Two neighbouring warps hold these keys, and in each warp two lanes, l
// and l ^ 4, hold a pair. So each of the four lanes draws a quarter of the queries: a warp draws
// one half of every 64 queries, a lane every second of these. Then they exchange the results.

// What `draw` needs of a head waits in shared memory, because registers are full.
template <Config C>
__device__ __forceinline__ void Consumer<C>::begin_head(int head) {
  const int lane = this->lane();
  const core::Problem& p = a_.call.problem;
  const int key = tile().first_key + group_ * kGroupRows + warp_ / 2 * 32;
  DropoutHead& own = shared_.dropout[group_ * 2 + warp_ / 2];
  const core::DropoutStream stream = core::dropout_stream(p, tile().sequence, head);
  ptx::meet(kPair + group_ * 2 + warp_ / 2, 64);  // the other warp writes the same
  ptx::store_same(own.stream, stream);
  ptx::store_same(own.columns[lane / 8],
                  dropout_columns(stream, (p.origin.column + key) / core::kDropoutGroup, lane / 8));
  __syncwarp();
}

// Which elements of a step dropout keeps: for every 64 queries a word, with bit kept_position(j, r,
// x).
template <Config C>
__device__ __forceinline__ void Consumer<C>::draw(int begin, std::uint32_t (&kept)[kParts]) {
  const int lane = this->lane(), half = warp_ % 2, odd = lane / 4 % 2;
  const DropoutHead& head = shared_.dropout[group_ * 2 + warp_ / 2];
  const core::DropoutStream stream = head.stream;
  const DropoutColumns columns = head.columns[lane / 8];
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const auto row = static_cast<std::uint32_t>(a_.call.problem.origin.row) +
                     static_cast<std::uint32_t>(begin + i * 64 + half * 32 + lane % 4 * 2 + odd);
    const int buffer = kByQueries ? i : static_cast<int>(queries_.count()) & 1;
    std::uint32_t bits[2] = {};  // for the warp that holds keys 0 to 15 of the 32, and for the other
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const core::PhiloxBlock block = dropout_call(stream, columns, row + 8 * j);
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const std::uint32_t halves = kept_halves(a_.call.features, block.word[m]);
        bits[m / 2] |= halves & (0x10001U << (2 * j + m % 2));
      }
    }
    // Even keys in the lower half, odd ones in the upper.
    const std::uint32_t own = half == 0 ? bits[0] : bits[1], other = half == 0 ? bits[1] : bits[0];
    std::uint16_t* slots = shared_.drawn[buffer] + (group_ * 4 + warp_) * 32;
    slots[lane] = static_cast<std::uint16_t>(other | other >> 8);
    ptx::meet(kPair + group_ * 2 + warp_ / 2, 64);
    const std::uint32_t both = slots[lane + (half == 0 ? 32 : -32)];
    const std::uint32_t received = (both & 0xFF) | (both & 0xFF00) << 8;
    // Bits [0, 8): the first 32 queries, even keys; [8, 16): the other 32; from 16 on: odd keys.
    const std::uint32_t drawn = half == 0 ? own | received << 8 : received | own << 8;
    const std::uint32_t theirs = __shfl_xor_sync(kWarp, drawn, 4);
    const std::uint32_t mine16 = drawn >> (16 * odd) & 0xFFFF, theirs16 = theirs >> (16 * odd) & 0xFFFF;
    kept[i] = odd == 0 ? mine16 | theirs16 << 16 : theirs16 | mine16 << 16;
  }
}

}  // namespace tessera::cuda::sm90::backward
