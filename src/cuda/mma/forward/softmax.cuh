// One step of keys: products, features, mask and softmax, by search or by speculation.
#pragma once

#include "cuda/mma/forward/products.cuh"
#include "cuda/mma/forward/tile.cuh"

namespace tessera::cuda::mma::forward {

// S += Q K^T for step `k_step` of 16 columns of head_dim, and for Width keys from `column` on.
template <Config C>
template <int Width>
__device__ __forceinline__ void QueryTile<C>::issue_qk(Scores<Width>& s, int stage, int column, int k_step) {
  std::uint32_t q[kM][4];
#pragma unroll
  for (int mi = 0; mi < kM; ++mi) {
    if constexpr (C.q_in_registers) {
#pragma unroll
      for (int e = 0; e < 4; ++e) q[mi][e] = q_[k_step][mi][e];
    } else {
      ptx::load_matrix(q[mi], Tile::at(q_lane_, mi * 16, k_step));
    }
  }
  multiply_keys<C>(s, q, k_lane_ + stage * 2 * C.kv_bytes(), column, k_step);
}

// O += P V for 16 keys (step `k_step` of those from `column` on), and for two column tiles of O
// from d_tile on.
template <Config C>
template <int Width>
__device__ __forceinline__ void QueryTile<C>::issue_pv(const Probabilities<Width>& p, int stage, int column,
                                                       int k_step, int d_tile) {
  std::uint32_t v[4];
  ptx::load_matrix_transposed(v,
                              Tile::at(v_lane_ + stage * 2 * C.kv_bytes(), column + k_step * 16, d_tile / 2));
#pragma unroll
  for (int mi = 0; mi < kM; ++mi) {
    ptx::mma<C.mma, C.type>(o_[mi][d_tile], p[mi][k_step], v[0], v[1]);
    ptx::mma<C.mma, C.type>(o_[mi][d_tile + 1], p[mi][k_step], v[2], v[3]);
  }
}

// The same for all keys of P and all columns of O.
template <Config C>
template <int Width>
__device__ __forceinline__ void QueryTile<C>::issue_pv(const Probabilities<Width>& p, int stage, int column) {
#pragma unroll
  for (int k_step = 0; k_step < Width / 16; ++k_step) {
#pragma unroll
    for (int d_tile = 0; d_tile < kD; d_tile += 2) issue_pv<Width>(p, stage, column, k_step, d_tile);
  }
}

// Applies softcap, bias and ALiBi. Scores leave in base-2 logarithms.
template <Config C>
template <int Width>
__device__ __forceinline__ void QueryTile<C>::modify(Scores<Width>& s, int begin, int stage, int column) {
  const int key_0 = begin + column + lane_ % 4 * 2;
  scale_scores(a_.features, s);
  if (C.bias && a_.bias_staged && !info().careful) {
#pragma unroll
    for (int mi = 0; mi < kM; ++mi) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int j = 0; j < Width / 8; ++j) {
          const std::uint32_t at =
              bias_tile(stage).base + BiasTile::offset(row(mi, half), column / 8 + j) + lane_ % 4 * 4;
          const float2 bias = ptx::unpack<C.type>(ptx::load_shared_word(at));
          s[mi][j][2 * half] = fmaf(bias.x, kLog2E, s[mi][j][2 * half]);
          s[mi][j][2 * half + 1] = fmaf(bias.y, kLog2E, s[mi][j][2 * half + 1]);
        }
      }
    }
  } else if (C.bias && a_.features.has_bias) {
    const std::int64_t head = info().bias;
    const int end = info().end, keys = info().keys;
#pragma unroll
    for (int mi = 0; mi < kM; ++mi) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int query = min(info().begin + row(mi, half), end - 1);
#pragma unroll
        for (int j = 0; j < Width / 8; ++j) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int key = min(max(key_0 + j * 8 + e, 0), keys - 1);
            // A bias of -inf hides the key whatever its score is. A score whose sum with it is not
            // -inf is NaN, and the tile is computed again with care.
            const float bias = load_bias(a_.p, head + query * a_.p.bias.row_stride + key);
            float& score = s[mi][j][2 * half + e];
            score = bias == -INFINITY ? bias : fmaf(bias, kLog2E, score);
          }
        }
      }
    }
  }
  if (a_.features.has_alibi) {
    const float slope = info().slope;
    const int diagonal = info().diagonal;
#pragma unroll
    for (int mi = 0; mi < kM; ++mi) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto distance = static_cast<float>(info().begin + row(mi, half) + diagonal - key_0);
#pragma unroll
        for (int j = 0; j < Width / 8; ++j) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            s[mi][j][2 * half + e] -= slope * fabsf(distance - static_cast<float>(j * 8 + e));
          }
        }
      }
    }
  }
}

template <Config C>
template <int Width>
__device__ __forceinline__ void QueryTile<C>::apply_mask(Scores<Width>& s, const Step& step, int column) {
  const int key_0 = step.begin + column + lane_ % 4 * 2;
#pragma unroll
  for (int mi = 0; mi < kM; ++mi) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = info().begin + row(mi, half);
      const int first = max(step.first, query + info().diagonals.low) - key_0;
      const int last = min(step.last - 1, query + info().diagonals.high) - key_0;
#pragma unroll
      for (int j = 0; j < Width / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (j * 8 + e < first || j * 8 + e > last) s[mi][j][2 * half + e] = -INFINITY;
        }
      }
    }
  }
}

template <Config C>
template <int Width>
__device__ __forceinline__ float QueryTile<C>::row_maximum(const Scores<Width>& s, int mi, int half) {
  float x = fmaxf(s[mi][0][2 * half], s[mi][0][2 * half + 1]);
#pragma unroll
  for (int j = 1; j < Width / 8; ++j) x = fmaxf(x, fmaxf(s[mi][j][2 * half], s[mi][j][2 * half + 1]));
  x = fmaxf(x, __shfl_xor_sync(kWarp, x, 1));
  return fmaxf(x, __shfl_xor_sync(kWarp, x, 2));
}

// The online softmax. Raises the maxima, rescales O and the sums where one has grown by a lot, and
// turns scores into P.
template <Config C>
template <int Width>
__device__ __forceinline__ void QueryTile<C>::online_softmax(const Scores<Width>& s, Probabilities<Width>& p,
                                                             const Kept& kept) {
  const float c = exponent_scale();
  RowValues factor;
  bool moved = false;
#pragma unroll
  for (int mi = 0; mi < kM; ++mi) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float x = row_maximum<Width>(s, mi, half);
      const float before = maximum_[mi][half];
      factor[mi][half] = 1;
      if (x > before && !((x - before) * c < kLazy)) {
        maximum_[mi][half] = x;
        factor[mi][half] = ptx::exp2((before - x) * c);
        moved = true;
      }
    }
  }
  if (__any_sync(kWarp, moved)) {
#pragma unroll
    for (int mi = 0; mi < kM; ++mi) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sum_[mi][half] *= factor[mi][half];
#pragma unroll
        for (int j = 0; j < kD; ++j) {
          o_[mi][j][2 * half] *= factor[mi][half];
          o_[mi][j][2 * half + 1] *= factor[mi][half];
        }
      }
    }
  }
#pragma unroll
  for (int mi = 0; mi < kM; ++mi) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // A row that has seen no key yet takes any reference: all of its scores are -inf.
      const float reference = maximum_[mi][half] == -INFINITY ? 0 : maximum_[mi][half];
#pragma unroll
      for (int j = 0; j < Width / 8; ++j) {
        // The difference comes first: then P of the maximum is exactly 1, however large the scores
        // are.
        const float x = ptx::exp2((s[mi][j][2 * half] - reference) * c);
        const float y = ptx::exp2((s[mi][j][2 * half + 1] - reference) * c);
        sum_[mi][half] += x + y;
        std::uint32_t& pair = p[mi][j / 2][j % 2 * 2 + half];
        pair = ptx::pack<C.type>(x, y);
        if constexpr (kDropout) pair &= kept.mask(*this, mi, half, j);
      }
    }
  }
}

// A step that no mask cuts, with the maxima known so far. The exponentials of chunk c are
// interleaved with the products of chunks c + 1 (scores) and c - 1 (output), in proportion to their
// number. False: a score has outgrown its maximum, and what the step added to O has been undone.
template <Config C>
template <typename CopyNext>
__device__ __forceinline__ bool QueryTile<C>::speculative_step(int stage, CopyNext&& copy_next) {
  constexpr int kUnits = kM * kN * 2;                            // pairs of exponentials in a chunk
  constexpr int kScoreWork = kK * kN, kValueWork = kN / 2 * kD;  // products per m16 tile and chunk
  Scores<C.chunk> s[2];
  Probabilities<C.chunk> p[2];
  RowValues sum = {}, reference;
  const float c = exponent_scale();
#pragma unroll
  for (int mi = 0; mi < kM; ++mi) {
    reference[mi][0] = maximum_[mi][0] * c;
    reference[mi][1] = maximum_[mi][1] * c;
  }
#pragma unroll
  for (int k_step = 0; k_step < kK; ++k_step) issue_qk<C.chunk>(s[0], stage, 0, k_step);
  if constexpr (kCopyLate) copy_next();
  auto exponentiate = [&](int chunk, int unit) {
    const int mi = unit / (kN * 2), half = unit % 2,
              j = unit / 2 % kN;  // neighbouring units add to different sums
    const float2 e =
        exponentials(s[chunk & 1][mi][j][2 * half], s[chunk & 1][mi][j][2 * half + 1], reference[mi][half]);
    sum[mi][half] += e.x + e.y;
    p[chunk & 1][mi][j / 2][j % 2 * 2 + half] = packed(e);
  };

#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    const int work = (chunk + 1 < kChunks ? kScoreWork : 0) + (chunk > 0 ? kValueWork : 0);
    int issued = 0, unit = 0;
    auto keep_pace = [&](int products) {
      issued += products;
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        if (u >= unit && u < kUnits * issued / work) exponentiate(chunk, u);
      }
      unit = kUnits * issued / work;
    };
    if (chunk + 1 < kChunks) {
#pragma unroll
      for (int k_step = 0; k_step < kK; ++k_step) {
        issue_qk<C.chunk>(s[(chunk + 1) & 1], stage, (chunk + 1) * C.chunk, k_step);
        keep_pace(kN);
      }
    }
    if (chunk > 0) {
#pragma unroll
      for (int k_step = 0; k_step < kN / 2; ++k_step) {
#pragma unroll
        for (int d_tile = 0; d_tile < kD; d_tile += 2) {
          issue_pv<C.chunk>(p[(chunk - 1) & 1], stage, (chunk - 1) * C.chunk, k_step, d_tile);
          keep_pace(2);
        }
      }
    }
  }
  issue_pv<C.chunk>(p[(kChunks - 1) & 1], stage, (kChunks - 1) * C.chunk);

  bool outgrown = false;
#pragma unroll
  for (int mi = 0; mi < kM; ++mi) {
    outgrown |= !(sum[mi][0] < kSpeculationLimit) || !(sum[mi][1] < kSpeculationLimit);  // or NaN
  }
  if (__any_sync(kWarp, outgrown)) {
    undo_step(stage);
    return false;
  }
#pragma unroll
  for (int mi = 0; mi < kM; ++mi) {
    sum_[mi][0] += sum[mi][0];
    sum_[mi][1] += sum[mi][1];
  }
  return true;
}

// Subtracts what speculative_step added to O.
template <Config C>
__device__ __forceinline__ void QueryTile<C>::undo_step(int stage) {
#pragma unroll 1
  for (int chunk = 0; chunk < kChunks; ++chunk) undo_chunk(stage, chunk);
}

// The same for one chunk.
template <Config C>
__device__ __forceinline__ void QueryTile<C>::undo_chunk(int stage, int chunk) {
  Scores<C.chunk> s;
  Probabilities<C.chunk> p;
  const float c = exponent_scale();
#pragma unroll
  for (int k_step = 0; k_step < kK; ++k_step) issue_qk<C.chunk>(s, stage, chunk * C.chunk, k_step);
#pragma unroll
  for (int mi = 0; mi < kM; ++mi) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        const float2 e = exponentials(s[mi][j][2 * half], s[mi][j][2 * half + 1], maximum_[mi][half] * c);
        p[mi][j / 2][j % 2 * 2 + half] = packed(e) ^ 0x80008000U;
      }
    }
  }
  issue_pv<C.chunk>(p, stage, chunk * C.chunk);
}

// Some columns of a step with everything: mask, search for the maximum, rescaling.
template <Config C>
__device__ __forceinline__ void QueryTile<C>::search_columns(const Step& step, int stage, int column,
                                                             bool masked) {
  constexpr int kWidth = C.search_width();
  Scores<kWidth> s;
  Probabilities<kWidth> p;
#pragma unroll
  for (int k_step = 0; k_step < kK; ++k_step) issue_qk<kWidth>(s, stage, column, k_step);
  Kept kept;
  if constexpr (kDropout) kept = Kept(*this, step.begin + column);
  if constexpr (kFeatured) modify<kWidth>(s, step.begin, stage, column);
  if (masked) apply_mask<kWidth>(s, step, column);
  online_softmax<kWidth>(s, p, kept);
  issue_pv<kWidth>(p, stage, column);
}

// A step that searches the maxima. Returns whether every row of the warp has a maximum now.
template <Config C>
__device__ __forceinline__ bool QueryTile<C>::search_step(const Step& step, int stage) {
  const int row_low = info().begin + warp_row_, row_high = row_low + 16 * kM - 1;
  const Diagonals seen = info().diagonals;
  const bool masked = step.first > step.begin || step.last < step.begin + C.block_k ||
                      step.begin < row_high + seen.low || step.begin + C.block_k - 1 > row_low + seen.high;
  if (step.last > row_low + seen.low) {
#pragma unroll 1
    for (int column = 0; column < C.block_k; column += C.search_width()) {
      if (step.begin + column > row_high + seen.high) break;
      search_columns(step, stage, column, masked);
    }
  }
  return has_maxima();
}

// Takes the maxima of the first columns of a first step that every row sees as a whole: enough to
// speculate.
template <Config C>
__device__ __forceinline__ void QueryTile<C>::guess_maxima(int stage) {
  Scores<C.chunk> s;
#pragma unroll
  for (int k_step = 0; k_step < kK; ++k_step) issue_qk<C.chunk>(s, stage, 0, k_step);
#pragma unroll
  for (int mi = 0; mi < kM; ++mi) {
    maximum_[mi][0] = row_maximum<C.chunk>(s, mi, 0);
    maximum_[mi][1] = row_maximum<C.chunk>(s, mi, 1);
  }
}

template <Config C>
__device__ __forceinline__ bool QueryTile<C>::has_maxima() const {
  bool set = true;
#pragma unroll
  for (int mi = 0; mi < kM; ++mi) set = set && maximum_[mi][0] != -INFINITY && maximum_[mi][1] != -INFINITY;
  return __all_sync(kWarp, set);
}

}  // namespace tessera::cuda::mma::forward
