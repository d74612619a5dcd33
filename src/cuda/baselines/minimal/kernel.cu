// cuda.minimal: exact attention without the N x N matrix, in one short kernel. Read it from top to
// bottom; docs/kernels/minimal.md walks through it.
//
// The work
//   A row of the result is O = P V with P = softmax(scale * Q K^T). A thread block of 32 threads
//   owns 32 rows of Q, one row per thread, and walks over the keys that these rows see, 32 at a
//   time.
//
// The trick
//   A softmax needs the largest score of its row, which is known only at the end. So a row keeps
//   the largest score so far, the sum of exp(score - largest) so far, and the output so far, which
//   is not divided by the sum yet. When a step brings a larger score, sum and output are multiplied
//   by exp(old largest - new largest), and it is as if the new one had been known all along. This
//   is the online softmax; no score has to be stored beyond its step.
//
// The memory
//   Shared memory holds the rows of Q and of O, and one tile for the keys of a step and then its
//   values.
//
// Traffic
//   Q and O once; K and V once for every 32 rows of Q. The fast kernels do the same arithmetic on
//   tensor cores, with more rows per thread block and with copies that run ahead.
#include "cuda/baselines/minimal/launch.h"

#include <algorithm>

#include "core/online_softmax.h"
#include "core/task_order.h"
#include "cuda/common/ptx/shared_memory.cuh"
#include "cuda/common/step_cursor.h"

namespace tessera::cuda {
namespace {

constexpr int kTile = kMinimalTile;  // rows of Q, and keys of a step: as many as a warp has threads

// 32 rows in shared memory. A row is one float longer than its contents, so that the same column of
// neighbouring rows lies in neighbouring banks: 32 threads read 32 rows at once.
struct SharedTile {
  float* data;
  int dim;

  static __device__ constexpr std::size_t floats(std::int64_t dim) { return minimal_tile_floats(dim); }
  __device__ float* row(int index) const { return data + index * (dim + 1); }
};

// Copies `rows` rows from global memory and fills the others with zeros. The threads share the
// columns of a row, so that neighbouring threads read neighbouring addresses.
__device__ void load(SharedTile tile, const float* source, std::int64_t row_stride, int rows) {
  for (int row = 0; row < kTile; ++row) {
    for (int column = threadIdx.x; column < tile.dim; column += kTile) {
      tile.row(row)[column] = row < rows ? source[row * row_stride + column] : 0.0F;
    }
  }
}

// scores[j] = q . k_j. A thread reads each element of its own q once for all 32 keys, and all
// threads read the same element of k_j at the same time.
__device__ void issue_qk(float (&scores)[kTile], const float* q, SharedTile keys) {
  for (float& score : scores) score = 0;
  for (int column = 0; column < keys.dim; ++column) {
    const float element = q[column];
#pragma unroll
    for (int j = 0; j < kTile; ++j) scores[j] += element * keys.row(j)[column];
  }
}

// Scales the scores; those of keys that the row must not see become -inf. Returns which keys it
// sees: bit j for key first_key + j.
__device__ unsigned apply_mask(float (&scores)[kTile], float scale, const core::Band& band, std::int64_t row,
                               std::int64_t first_key, int keys) {
  unsigned visible = 0;
#pragma unroll
  for (int j = 0; j < kTile; ++j) {
    const bool sees = j < keys && band.visible(row, first_key + j);
    visible |= (sees ? 1U : 0U) << j;
    scores[j] = sees ? scores[j] * scale : core::kMinusInfinity<float>;
  }
  return visible;
}

// Turns scores into exp(score - maximum) and adds them to the sum. Returns the factor that corrects
// the output so far, 1 unless the maximum has grown.
__device__ float online_softmax(float (&scores)[kTile], core::RowStatistics<float>& statistics) {
  float largest = scores[0];
#pragma unroll
  for (int j = 1; j < kTile; ++j) largest = fmaxf(largest, scores[j]);
  const float factor = statistics.raise(largest);
#pragma unroll
  for (int j = 0; j < kTile; ++j) {
    scores[j] = core::exp_relative(scores[j], statistics.maximum);
    statistics.sum += scores[j];
  }
  return factor;
}

// out = factor * out + sum of p_j v_j over the visible keys. The others are skipped, not multiplied
// by 0: 0 * NaN is NaN, and a NaN that the row does not see must not reach it.
__device__ void issue_pv(float* out, float factor, const float (&probabilities)[kTile], unsigned visible,
                         SharedTile values) {
  for (int column = 0; column < values.dim; ++column) {
    float sum = factor * out[column];
#pragma unroll
    for (int j = 0; j < kTile; ++j) {
      if ((visible >> j & 1U) != 0) sum += probabilities[j] * values.row(j)[column];
    }
    out[column] = sum;
  }
}

// Divides the thread's own row by its sum; then all threads store row by row, neighbours to
// neighbouring addresses.
__device__ void finalize(const core::Problem& p, const core::Sequence& sequence, std::int64_t head,
                         std::int64_t first_row, int rows, SharedTile out,
                         const core::RowStatistics<float>& statistics) {
  const int thread = static_cast<int>(threadIdx.x);
  const float normaliser = statistics.normaliser();
  for (int column = 0; column < out.dim; ++column) out.row(thread)[column] *= normaliser;
  __syncthreads();
  const std::int64_t first = sequence.q_begin + first_row;
  for (int row = 0; row < rows; ++row) {
    float* const destination = p.out.row<float>(sequence.tensor_batch, head, first + row);
    for (int column = thread; column < out.dim; column += kTile) destination[column] = out.row(row)[column];
  }
  if (p.lse && thread < rows) {
    *p.lse.row<float>(sequence.tensor_batch, head, first + thread) = statistics.lse();
  }
}

__global__ void __launch_bounds__(kTile) kernel(const __grid_constant__ MinimalArguments arguments) {
  // The rows of this thread block.
  const core::Problem& p = arguments.problem;
  const core::BasicTask<std::uint32_t> task = arguments.order[blockIdx.x];
  const core::Sequence sequence = core::sequence(p, task.sequence);
  const std::int64_t first_row = std::int64_t{task.tile} * kTile;
  if (first_row >= sequence.q_length) return;  // a packed sequence may be shorter than the longest
  const int rows = static_cast<int>(min(std::int64_t{kTile}, sequence.q_length - first_row));
  const int qk_dim = static_cast<int>(p.qk_dim), v_dim = static_cast<int>(p.v_dim);
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t head = task.head, kv_head = p.kv_head(head);

  TESSERA_DYNAMIC_SHARED(float, alignof(float), shared);
  const SharedTile q{shared, qk_dim}, out{q.data + SharedTile::floats(qk_dim), v_dim};
  float* const step = out.data + SharedTile::floats(v_dim);
  const SharedTile keys{step, qk_dim}, values{step, v_dim};  // in the same place

  load(q, p.q.row<const float>(sequence.tensor_batch, head, sequence.q_begin + first_row), p.q.row_stride,
       rows);
  for (int column = 0; column < v_dim; ++column) out.row(thread)[column] = 0;
  core::RowStatistics<float> statistics;

  // Some row of the block may see each key of this range, and none sees a key outside.
  const core::VisibleRange range =
      core::visible_range(sequence.band, first_row, first_row + rows, sequence.k_length);
  for (std::int64_t first_key = range.begin; first_key < range.end; first_key += kTile) {
    const int count = static_cast<int>(min(std::int64_t{kTile}, range.end - first_key));
    const std::int64_t key = sequence.k_begin + first_key;
    __syncthreads();  // all threads have read the values of the step before
    load(keys, p.k.row<const float>(sequence.tensor_batch, kv_head, key), p.k.row_stride, count);
    __syncthreads();
    float scores[kTile];
    issue_qk(scores, q.row(thread), keys);
    const unsigned visible =
        apply_mask(scores, static_cast<float>(p.scale), sequence.band, first_row + thread, first_key, count);
    const float factor = online_softmax(scores, statistics);
    __syncthreads();  // all threads have read the keys
    load(values, p.v.row<const float>(sequence.tensor_batch, kv_head, key), p.v.row_stride, count);
    __syncthreads();
    issue_pv(out.row(thread), factor, scores, visible, values);
  }
  finalize(p, sequence, head, first_row, rows, out, statistics);
}

}  // namespace

void (*minimal_kernel())(MinimalArguments) { return &kernel; }

}  // namespace tessera::cuda
