// The end of a tile of the Hopper forward kernel: O is normalised and stored, and rows with
// non-finite values are repaired.
#pragma once

#include "cuda/common/features.cuh"
#include "cuda/common/ptx/math.cuh"
#include "cuda/sm90/forward/consumer.cuh"
#include "cuda/sm90/forward/loader.cuh"

namespace tessera::cuda::sm90::forward {

template <Config C>
__device__ __forceinline__ void Consumer<C>::clear() {
#pragma unroll
  for (int i = 0; i < C.v_dim / 2; ++i) o_[i] = 0;
}

template <Config C>
__device__ __forceinline__ void Consumer<C>::finish_rows(Finish& finish) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = sum_[half] + __shfl_xor_sync(kWarp, sum_[half], 1);
    sum += __shfl_xor_sync(kWarp, sum, 2);
    finish.normaliser[half] = sum == 0 ? 0 : __fdividef(1.0F, sum);
    finish.lse[half] = sum == 0 ? -INFINITY : (reference_[half] + ptx::log2(sum)) * kLn2;
  }
}

template <Config C>
__device__ __forceinline__ void Consumer<C>::store_lse(const Tile& t, const Finish& finish) {
  const int lane = opaque_lane(), row = group_ * kGroupRows + warp_ * 16 + lane / 4;
  if (t.lse == nullptr || lane % 4 != 0) return;
  float* const lse = t.lse + row * a_.p.lse.row_stride;
  if (row < t.rows) *lse = finish.lse[0];
  if (row + 8 < t.rows) lse[8 * a_.p.lse.row_stride] = finish.lse[1];
}

// Normalises O and stores it through this warp's 16 rows of shared memory. LSE comes last: the
// fence before the copy would otherwise wait for it.
template <Config C>
__device__ __forceinline__ void Consumer<C>::finalize(const Tile& t, const Finish& finish) {
  // Columns at a time.
  constexpr int kStaged = C.store_columns < C.v_dim ? C.store_columns : C.v_dim;
  const float(&normaliser)[2] = finish.normaliser;
  const int first = group_ * kGroupRows + warp_ * 16;
  const std::uint32_t to = ptx::shared_address(shared_.out) + matrix_offset(kRows, first, opaque_lane());
  std::uint32_t trace = 0;  // stays 0 as long as every output is finite
#pragma unroll
  for (int part = 0; part < C.v_dim; part += C.store_columns) {
    if (lane_ == 0) ptx::wait_stores_read();
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kStaged / 8; j += 2) {
      const float* o = o_ + 4 * (part / 8 + j);
      const std::uint32_t words[4] = {ptx::pack<C.type>(o[0] * normaliser[0], o[1] * normaliser[0]),
                                      ptx::pack<C.type>(o[2] * normaliser[1], o[3] * normaliser[1]),
                                      ptx::pack<C.type>(o[4] * normaliser[0], o[5] * normaliser[0]),
                                      ptx::pack<C.type>(o[6] * normaliser[1], o[7] * normaliser[1])};
#pragma unroll
      for (int i = 0; i < 4; ++i) trace = ptx::times_zero_plus<C.type>(words[i], trace);
      ptx::store_matrix(matrix_step(kRows, to, j), words);
    }
    const int rows = a_.p.packed ? uniform(t.rows) - first : 16;
    if (rows >= 16) {  // the copy engine stops at the end of the tensor, not of a packed sequence
      ptx::fence_shared_for_engine();
      __syncwarp();
      if (lane_ == 0) {
#pragma unroll
        for (int panel = 0; panel < C.store_columns / C.panel(); ++panel) {
          ptx::store_box(a_.out, shared_.out + panel * kRows * kRowBytes + first * kRowBytes,
                         part + panel * C.panel(), t.row + first, t.head, t.batch);
        }
        ptx::commit_stores();
      }
    } else {
      __syncwarp();
      store_rows(t, part, rows);
    }
  }
  store_lse(t, finish);
  ptx::store_shared_if((trace & 0x7FFF7FFFU) != 0, ptx::shared_address(&shared_.non_finite), 1);
}

// Stores the staged columns from first_column on of this warp's first `rows` (below 16) rows,
// element by element.
template <Config C>
__device__ __forceinline__ void Consumer<C>::store_rows(const Tile& t, int first_column, int rows) {
  const int first = group_ * kGroupRows + warp_ * 16;
  const int columns = min(C.store_columns, static_cast<int>(a_.p.v_dim) - first_column);
#pragma unroll 1
  for (int row = 0; row < rows; ++row) {
    Number* out = a_.p.out.template row<Number>(t.batch, t.head, t.row + first + row) + first_column;
#pragma unroll 1
    for (int column = lane_; column < columns; column += 32) {
      out[column] = ptx::load_element<Number>(ptx::shared_address(shared_.out) +
                                              element_offset(kRows, first + row, column, C.element_bytes()));
    }
  }
  __syncwarp();
}

// One row of a tile, computed by one warp with plain arithmetic: a non-finite value reaches the row
// only if the row sees it.
template <Config C>
class RepairedRow {
  using Number = ptx::Storage<C.type>;

 public:
  __device__ RepairedRow(const Arguments& a, const ShortSequence& sequence, const TileIndex& at, int row)
      : a_(a), lane_(static_cast<int>(threadIdx.x) % 32) {
    const auto head = static_cast<std::int64_t>(at.head), kv_head = std::int64_t{a.group.quotient(at.head)};
    const std::int64_t batch = sequence.tensor_batch;
    q_ = a.p.q.row<const Number>(batch, head, sequence.q_begin + row);
    k_ = a.p.k.row<const Number>(batch, kv_head, sequence.k_begin);
    v_ = a.p.v.row<const Number>(batch, kv_head, sequence.k_begin);
    out_ = a.p.out.row<Number>(batch, head, sequence.q_begin + row);
    const Diagonals d = a.diagonals(sequence);
    begin_ = max(row + d.low, 0), end_ = min(row + d.high + 1, sequence.k_length);
  }

  // Whether the output of the row is finite as it was stored.
  __device__ bool finite() const {
    bool all = true;
    for (int d = lane_; d < a_.p.v_dim; d += 32) all = all && !non_finite(number(__ldcg(out_ + d)));
    return __all_sync(kWarp, all);
  }

  __device__ void compute() {
    for (int key = begin_; key < end_; key += 32) add_keys(key);
    sum_ = across([](float x, float y) { return x + y; }, sum_);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const float out = (sum_ == 0 ? 0 : o_[i] / sum_) + beyond_[i];
      if (lane_ + 32 * i < a_.p.v_dim) out_[lane_ + 32 * i] = static_cast<Number>(ptx::pack<C.type>(out, 0));
    }
  }

 private:
  static constexpr unsigned kWarp = 0xFFFFFFFF;
  static constexpr int kColumns = C.v_dim / 32;  // of a lane

  __device__ static float number(Number bits) { return ptx::unpack<C.type>(bits).x; }
  __device__ static bool non_finite(float x) { return !(fabsf(x) < INFINITY); }

  template <typename Combine>
  __device__ static float across(Combine&& combine, float x) {
    for (int distance = 16; distance > 0; distance /= 2) x = combine(x, __shfl_xor_sync(kWarp, x, distance));
    return x;
  }

  // Adds keys [first, first + 32), one for each lane, and their values.
  __device__ void add_keys(int first) {
    const int key = first + lane_;
    float score = -INFINITY;
    if (key < end_) {
      const Number* k = k_ + key * a_.p.k.row_stride;
      score = 0;
#pragma unroll 1
      for (int d = 0; d < a_.p.qk_dim; ++d) score = fmaf(number(__ldg(q_ + d)), number(__ldg(k + d)), score);
      score *= a_.scale_log2;
    }
    const float highest = fmaxf(reference_, across([](float x, float y) { return fmaxf(x, y); }, score));
    const float factor = ptx::exp2(reference_ - highest), p = ptx::exp2(score - highest);
    reference_ = highest;
    sum_ = sum_ * factor + p;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) o_[i] *= factor;
#pragma unroll 1
    for (int j = 0; j < 32 && first + j < end_; ++j) {
      const Number* v = v_ + (first + j) * a_.p.v.row_stride;
      const float weight = __shfl_sync(kWarp, p, j);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const float x = lane_ + 32 * i < a_.p.v_dim ? number(__ldg(v + lane_ + 32 * i)) : 0;
        if (non_finite(x)) beyond_[i] += x;
        else o_[i] = fmaf(weight, x, o_[i]);
      }
    }
  }

  const Arguments& a_;
  const int lane_;
  const Number *q_, *k_, *v_;
  Number* out_;
  int begin_, end_;
  float reference_ = -FLT_MAX, sum_ = 0;
  float o_[kColumns] = {}, beyond_[kColumns] = {};
};

// 0 times infinity is NaN, so a non-finite value of V reaches all rows of a tile, also those that
// do not see it. If the thread block has written a non-finite output, it computes all its
// non-finite rows again. This also waits for the last stores from shared memory.
template <Config C>
__device__ __forceinline__ void Consumer<C>::repair() {
  if (lane_ == 0) ptx::wait_stores_read();
  ptx::meet(kEveryone, C.warp_groups * kWarpGroup);
  if (shared_.non_finite == 0) return;
  if (lane_ == 0) ptx::wait_stores();
  ptx::fence_for_engine();
  __threadfence();
  ptx::meet(kEveryone, C.warp_groups * kWarpGroup);
#pragma unroll 1
  for (int index = tile().row; index >= 0;) {
    TileIndex at;
    if (a_.p.packed) packed_tiles<C>(a_).find(static_cast<std::uint32_t>(index), LengthsOf<C>{a_}, at);
    else at = a_.schedule[static_cast<std::uint32_t>(index)];
    const ShortSequence sequence = short_sequence(a_.p, static_cast<int>(at.sequence));
    const int first = static_cast<int>(at.tile) * kRows, last = min(first + kRows, sequence.q_length);
#pragma unroll 1
    for (int row = first + group_ * 4 + warp_; row < last; row += C.warp_groups * 4) {
      RepairedRow<C> repaired(a_, sequence, at, row);
      if (!repaired.finite()) repaired.compute();
    }
    index = a_.counter != nullptr ? __ldcg(a_.links + index) : index - static_cast<int>(gridDim.x);
  }
}

}  // namespace tessera::cuda::sm90::forward
