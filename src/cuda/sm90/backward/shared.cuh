// The shared memory of a Hopper backward kernel, and the messages in it from the loading warp to
// the others.
#pragma once

#include <array>
#include <cstdint>

#include "cuda/common/dropout_columns.h"
#include "cuda/common/ptx/async.cuh"
#include "cuda/sm90/backward/config.h"
#include "cuda/sm90/backward/schedule.h"
#include "cuda/sm90/common/ring.cuh"

namespace tessera::cuda::sm90::backward {

// What a thread may wait for: the report of a wait that gives up holds its number.
enum class WaitFor : std::uint32_t {
  tile,
  q_full,
  q_empty,
  keys_full,
  keys_empty,
  grad_out_full,
  scores_full,
  scores_empty,
  keys_used,
};
inline constexpr std::array kWaitNames{
    "a tile",
    "Q and its statistics to arrive",
    "room for Q and dO",
    "K and V to arrive",
    "room for K and V",
    "dO to arrive",
    "dS of both warp groups",
    "room for dS",
    "all warps to be done with K and V",
};
static_assert(kWaitNames.size() == static_cast<std::size_t>(WaitFor::keys_used) + 1);

// A tile of keys of one key/value head as the loader announces it, and the queries that see it.
// They are the same for every query head of the group.
struct alignas(16) KeyTile : TileQueries {
  int row, head, batch;  // where the first key is in the tensors
  int heads;             // query heads of the group; 0: there is no further tile
  int first_head;        // the first of them
  int origin;            // the sequence's first block of queries among those of a head
  int sequence;
  int first_key;  // counted from the first of the sequence
};

// What two neighbouring warps need to draw what dropout keeps: the stream of the current query
// head, and the columns of their keys for each quarter of the lanes.
struct alignas(16) DropoutHead {
  core::DropoutStream stream;
  DropoutColumns columns[4];
};

static_assert(sizeof(DropoutHead) <= Config::kDropoutHeadBytes);

template <Config C>
struct SharedMemory {
  unsigned char k[C.kKeyStages][C.key_bytes()];
  unsigned char v[C.kKeyStages][C.key_bytes()];
  unsigned char q[C.kQueryStages][C.query_bytes()];
  unsigned char grad_out[C.kQueryStages][C.query_bytes()];
  unsigned char scores[C.kScoreStages][C.score_bytes()];  // dS: rows are queries
  float statistics[C.kQueryStages][C.block_q / kQueryBlock][2]
                  [kQueryBlock];                           // LSE in base-2 logarithms, delta
  std::uint16_t drawn[2][C.dropout ? C.warps() * 32 : 1];  // dropout's results for the neighbouring warp
  DropoutHead dropout[C.dropout ? C.warps() / 2 : 1];
  std::uint64_t keys_full[C.kKeyStages], keys_empty[C.kKeyStages];
  std::uint64_t q_full[C.kQueryStages], grad_out_full[C.kQueryStages], q_empty[C.kQueryStages];
  std::uint64_t scores_full[C.kScoreStages], scores_empty[C.kScoreStages];
  std::uint64_t tile_full[kTileSlots], keys_used;
  int careful[C.kScoreStages];  // the mark of the last step that had non-finite values under its mask
  KeyTile tiles[kTileSlots];

  // By one thread. Arrivals: for "full" one of the loader, and the bytes; for dS and for "empty"
  // one lane of each warp.
  __device__ void initialise() {
    constexpr std::uint32_t kWarps = C.warps();
    for (int i = 0; i < C.kKeyStages; ++i) {
      ptx::init_barrier(&keys_full[i], 1);
      ptx::init_barrier(&keys_empty[i], kWarps);
    }
    for (int i = 0; i < C.kQueryStages; ++i) {
      ptx::init_barrier(&q_full[i], 1);
      ptx::init_barrier(&grad_out_full[i], 1);
      ptx::init_barrier(&q_empty[i], kWarps);
    }
    for (int i = 0; i < C.kScoreStages; ++i) {
      ptx::init_barrier(&scores_full[i], kWarps);
      ptx::init_barrier(&scores_empty[i], kWarps);
      careful[i] = 0;
    }
    for (int i = 0; i < kTileSlots; ++i) ptx::init_barrier(&tile_full[i], 1);
    ptx::init_barrier(&keys_used, kWarps);
    ptx::publish_barriers();
  }
};

}  // namespace tessera::cuda::sm90::backward
