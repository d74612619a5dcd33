// The gradient of the bias in cuda.flash1. It is a pass of its own, because its sums run over the
// heads and rows that an element was broadcast to, which have no owner in the loops of the
// algorithm.
//
// A thread block owns a block of keys and a tile of queries of the bias (all queries if the bias
// has one row). It visits every head that reads this tile, computes S and dP again, and sums dS in
// registers, in a fixed order.
//
// Traffic: Q, K, V, dO, LSE and delta once per tile and head.
#pragma once

#include "cuda/baselines/flash1/backward_kernel.cuh"
#include "cuda/common/ptx/shared_memory.cuh"

namespace tessera::cuda::flash1 {

template <typename Config>
__global__ void __launch_bounds__(Config::value.threads(), 1)
    flash1_bias_kernel(const __grid_constant__ Arguments a) {
  constexpr BackwardConfig C = Config::value;
  constexpr Engine E = C.engine;
  constexpr Variant V = Variant::featured;
  constexpr int D = C.head_dim, kBlock = C.block, kKeys = C.keys(), N = kKeys / 8;
  static_assert(C.variant == V && C.stages == 1);
  using Shared = BackwardShared<C>;
  TESSERA_DYNAMIC_SHARED(unsigned char, 1024, shared);

  const core::Problem& p = a.problem;
  const bool one_row = p.bias_rows == 1;
  const core::Tiling key_blocks{p.k_length, kBlock, p.blocks ? p.blocks.block_k : 0};
  const auto columns = static_cast<unsigned>(key_blocks.count());
  const unsigned tiles = one_row ? 1 : static_cast<unsigned>((p.q_length + kBlock - 1) / kBlock);
  const core::Interval keys = key_blocks[blockIdx.x % columns];
  const int own_tile = static_cast<int>(blockIdx.x / columns % tiles) * kBlock;
  const unsigned owner = blockIdx.x / columns / tiles;
  const int bias_head = static_cast<int>(owner % static_cast<unsigned>(p.bias_heads));
  const int bias_batch = static_cast<int>(owner / static_cast<unsigned>(p.bias_heads));

  const int lane = lane_index(), group = warp_index() % C.groups(), split = warp_index() / C.groups();
  Options& options = *reinterpret_cast<Options*>(shared + Shared::kOptions);
  float sums[N][4] = {};

  auto add_step = [&](const Step& step, const core::Sequence& s, int head) {
    const int kv_head = static_cast<int>(p.kv_head(head));
    __syncthreads();  // no thread reads the step before any more
    if (threadIdx.x == 0) options = options_of<E, V>(p, s, head);
    auto load = [&](int at, const core::View& view, int of, std::int64_t first, std::int64_t width, int row,
                    int limit) {
      load_tile<E, V, D, kBlock, C.threads()>(shared + at, rows_of<E>(view, s.tensor_batch, of, first, width),
                                              row, limit);
    };
    load(Shared::kK, p.k, kv_head, s.k_begin, p.qk_dim, step.key_begin, step.key_end);
    load(Shared::kV, p.v, kv_head, s.k_begin, p.v_dim, step.key_begin, step.key_end);
    load(Shared::kQ, p.q, head, s.q_begin, p.qk_dim, step.begin, static_cast<int>(s.q_length));
    load(Shared::kGradOut, p.grad_out, head, s.q_begin, p.v_dim, step.begin, static_cast<int>(s.q_length));
    float lse[2], delta[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int i = step.begin + group * 16 + lane / 4 + 8 * h;
      const bool live = i < s.q_length;
      lse[h] =
          live ? *p.lse.row<const float>(s.tensor_batch, head, s.q_begin + i) : core::kMinusInfinity<float>;
      delta[h] = live ? a.delta[(s.index * p.q_heads + head) * p.q_length + i] : 0;
    }
    finish_copies<E>();
    __syncthreads();
    const int row = step.begin + group * 16, key = step.key_begin + split * kKeys;
    if (split * kKeys >= kBlock || !step.any(row, 16, key, kKeys)) return;
    float products[N][4] = {}, dp[N][4] = {};
    multiply_rows<E, D>(products, shared + Shared::kQ, group * 16, shared + Shared::kK, split * kKeys);
    multiply_rows<E, D>(dp, shared + Shared::kGradOut, group * 16, shared + Shared::kV, split * kKeys);
    differentiate<C, Gradient::scores>(products, dp, options, step, row, key, !step.all(row, 16, key, kKeys),
                                       lse, delta);
#pragma unroll
    for (int e = 0; e < 4 * N; ++e) sums[e / 4][e % 4] += dp[e / 4][e % 4];
  };

  for (int b = bias_batch; b < p.batch; b += static_cast<int>(p.bias_batch)) {
    const core::Sequence s = core::sequence(p, b);
    Step step{.key_begin = static_cast<int>(keys.begin),
              .key_end = min(static_cast<int>(keys.end), static_cast<int>(s.k_length)),
              .band = diagonals(s.band)};
    if (step.key_begin >= step.key_end) continue;
    for (int head = bias_head; head < p.q_heads; head += static_cast<int>(p.bias_heads)) {
      QueryWalk walk = query_walk(p, s, head, step.key_begin, step.key_end, kBlock);
      for (; !walk.done(); walk.next()) {
        if (!one_row && walk.begin() != own_tile) continue;
        step.begin = walk.begin(), step.first = walk.first(), step.last = walk.last();
        add_step(step, s, head);
      }
    }
  }

  auto store = [&](int i, int j, float x) {
    if (p.bias_dtype == DType::fp32) *(p.grad_bias.row<float>(bias_batch, bias_head, i) + j) = x;
    else *(p.grad_bias.row<Element<E>>(bias_batch, bias_head, i) + j) = to_element<E>(x);
  };
  const int key = static_cast<int>(keys.begin) + split * kKeys, end = static_cast<int>(keys.end);
  if (!one_row) {
    if (split * kKeys >= kBlock) return;
#pragma unroll
    for (int e = 0; e < 4 * N; ++e) {
      const int i = own_tile + group * 16 + lane / 4 + e % 4 / 2 * 8,
                j = key + e / 4 * 8 + lane % 4 * 2 + e % 2;
      if (i < p.q_length && j < end) store(i, j, sums[e / 4][e % 4]);
    }
    return;
  }
  // One row for all queries: sums the rows of a fragment, then the groups.
  __syncthreads();
  auto* parts = reinterpret_cast<float*>(shared);  // [group][key of the block]
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      float sum = sums[n][x] + sums[n][2 + x];
#pragma unroll
      for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(~0U, sum, step);
      if (lane < 4 && split * kKeys < kBlock)
        parts[group * kBlock + split * kKeys + n * 8 + lane * 2 + x] = sum;
    }
  }
  __syncthreads();
  const int own = static_cast<int>(threadIdx.x);
  if (own >= kBlock || keys.begin + own >= end) return;
  float sum = 0;
#pragma unroll
  for (int g = 0; g < C.groups(); ++g) sum += parts[g * kBlock + own];
  store(0, static_cast<int>(keys.begin) + own, sum);
}

template <BackwardConfig C>
constexpr Instance bias_instance() {
  return {flash1_bias_kernel<Use<C>>, C.head_dim, C.block, C.block, C.threads(), C.splits,
          BackwardShared<C>::kBytes,  0};
}

}  // namespace tessera::cuda::flash1
