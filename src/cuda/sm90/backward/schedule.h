// Which queries see a tile of keys of the Hopper backward kernel. Pure functions for host and device: the kernel asks, the
// tests enumerate.
#pragma once

#include <algorithm>

#include "core/base/host_device.h"
#include "cuda/common/step_cursor.h"

namespace tessera::cuda::hopper {

// Of a tile of keys, the queries that see it; they count from the first of the sequence, keys from the first of the tile.
struct TileQueries {
  int begin,
      end;  // steps: the first query of the first one, and beyond the last one; equal: nobody sees the tile
  int first, last;  // queries [first, last) see some key of the tile
  int low, high;    // the first key is seen by queries [low, high]; each of the others by one further on
  int keys;         // that are left of the sequence from the first of the tile on

  // Whether all of `block_k` keys are seen by all of the `block_q` queries from `query` on.
  TESSERA_HD constexpr bool whole(int query, int block_q, int block_k) const {
    return query >= low + block_k - 1 && query + block_q - 1 <= high && query >= first &&
           query + block_q <= last && block_k <= keys;
  }
};

// Queries [first, last); none where last <= first.
struct QueryRange {
  int first, last;
};

// Those that see a key of the tile.
TESSERA_HD constexpr QueryRange queries_of_key(const TileQueries& t, int key) {
  const int first = std::max(t.first, t.low + key), last = std::min(t.last, t.high + key + 1);
  return {first, key < t.keys ? last : first};
}

// The tile of `block_k` keys from `key` on, which the sequence has; query i sees keys [i + d.low, i + d.high]. Steps are of
// `block_q` queries.
TESSERA_HD constexpr TileQueries tile_queries(const core::Diagonals& d, int key, int q_length, int k_length,
                                              int block_q, int block_k) {
  constexpr int kFar = 1 << 30;  // beyond every query, with room to add a key
  const int low = key - d.high, high = key - d.low;
  const int last_key = (key + block_k < k_length ? key + block_k : k_length) - 1;
  TileQueries t{};
  t.low = low > -kFar ? low : -kFar, t.high = high < kFar ? high : kFar;
  t.first = low > 0 ? low : 0, t.last = last_key - d.low + 1 < q_length ? last_key - d.low + 1 : q_length;
  if (t.first < t.last) {
    t.begin = t.first / block_q * block_q;
    t.end = (t.last + block_q - 1) / block_q * block_q;
  }
  t.keys = k_length - key;
  return t;
}

}  // namespace tessera::cuda::hopper
