// Which queries see a tile of keys of the Hopper backward kernel. Pure functions for host and
// device: the kernel calls them, and the tests enumerate them.
#pragma once

#include <algorithm>

#include "core/base/host_device.h"
#include "cuda/common/step_cursor.h"

namespace tessera::cuda::sm90::backward {

// The queries that see a tile of keys. Queries count from the first of the sequence, keys from the
// first of the tile.
struct TileQueries {
  int begin, end;   // the steps cover queries [begin, end); equal: no query sees the tile
  int first, last;  // queries [first, last) see some key of the tile
  int low, high;    // queries [low, high] see the first key, and [low + i, high + i] the key i further on
  int keys;         // of the sequence, from the first of the tile on

  // Whether all of the `block_q` queries from `query` on see all of the tile's `block_k` keys.
  TESSERA_HD constexpr bool whole(int query, int block_q, int block_k) const {
    return query >= low + block_k - 1 && query + block_q - 1 <= high && query >= first &&
           query + block_q <= last && block_k <= keys;
  }
};

// Queries [first, last); none where last <= first.
struct QueryRange {
  int first, last;
};

// The queries that see a key of the tile.
TESSERA_HD constexpr QueryRange queries_of_key(const TileQueries& t, int key) {
  const int first = std::max(t.first, t.low + key), last = std::min(t.last, t.high + key + 1);
  return {first, key < t.keys ? last : first};
}

// The tile of `block_k` keys from `key` on, which is below k_length. Query i sees keys [i + d.low,
// i + d.high]. A step has `block_q` queries.
TESSERA_HD constexpr TileQueries tile_queries(const Diagonals& d, int key, int q_length, int k_length,
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

}  // namespace tessera::cuda::sm90::backward
