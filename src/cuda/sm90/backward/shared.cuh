// The shared memory of a Hopper backward kernel, and what its loading warp tells the others.
#pragma once

#include <cstdint>

#include "cuda/common/ptx/async.cuh"
#include "cuda/sm90/backward/config.h"
#include "cuda/sm90/backward/schedule.h"
#include "cuda/sm90/common/ring.cuh"

namespace tessera::cuda::hopper {

// A tile of keys of one key/value head as the loader announces it, and the queries that see it: the same for every query head
// of the group.
struct alignas(16) KeyTile : TileQueries {
  int row, head, batch;    // where the first key stands in the tensors
  int heads;               // of queries; 0: there is no further tile
  int first_head, origin;  // the first of them; and the number of the sequence's first block of queries
  int sequence;
  int first_key;  // of the sequence
};

// What two neighbouring warps need to know to draw what dropout keeps: of the query head at hand, and of their keys for each
// quarter of the lanes.
struct alignas(16) DropoutHead {
  core::DropoutStream stream;
  core::DropoutColumns columns[4];
};

template <BackwardConfig C>
struct BackwardMemory {
  unsigned char k[C.kKeyStages][C.key_bytes()];
  unsigned char v[C.kKeyStages][C.key_bytes()];
  unsigned char q[C.kQueryStages][C.query_bytes()];
  unsigned char grad_out[C.kQueryStages][C.query_bytes()];
  unsigned char scores[C.kScoreStages][C.score_bytes()];  // dS: rows are queries
  float statistics[C.kQueryStages][C.block_q / flash2::kQueryBlock][2]
                  [flash2::kQueryBlock];  // LSE in base-2 logarithms, delta
  std::uint16_t
      drawn[2][C.dropout ? C.warps() * 32 : 1];  // what neighbouring warps tell each other about dropout
  DropoutHead dropout[C.dropout ? C.warps() / 2 : 1];
  std::uint64_t keys_full[C.kKeyStages], keys_empty[C.kKeyStages];
  std::uint64_t q_full[C.kQueryStages], grad_out_full[C.kQueryStages], q_empty[C.kQueryStages];
  std::uint64_t scores_full[C.kScoreStages], scores_empty[C.kScoreStages];
  std::uint64_t tile_full[kTileSlots], keys_used;
  int careful[C.kScoreStages];  // not 0: this step's K may not be finite where it is not seen
  KeyTile tiles[kTileSlots];

  // By one thread. Full: the loader arrives once, and the bytes; dS: one lane of each warp. Empty: one lane of each warp.
  __device__ void initialise() {
    namespace cuda_ptx = ::cuda::ptx;
    constexpr std::uint32_t kWarps = C.warps();
    for (int i = 0; i < C.kKeyStages; ++i) {
      cuda_ptx::mbarrier_init(&keys_full[i], 1);
      cuda_ptx::mbarrier_init(&keys_empty[i], kWarps);
    }
    for (int i = 0; i < C.kQueryStages; ++i) {
      cuda_ptx::mbarrier_init(&q_full[i], 1);
      cuda_ptx::mbarrier_init(&grad_out_full[i], 1);
      cuda_ptx::mbarrier_init(&q_empty[i], kWarps);
    }
    for (int i = 0; i < C.kScoreStages; ++i) {
      cuda_ptx::mbarrier_init(&scores_full[i], kWarps);
      cuda_ptx::mbarrier_init(&scores_empty[i], kWarps);
      careful[i] = 0;
    }
    for (int i = 0; i < kTileSlots; ++i) cuda_ptx::mbarrier_init(&tile_full[i], 1);
    cuda_ptx::mbarrier_init(&keys_used, kWarps);
    cuda_ptx::fence_mbarrier_init(cuda_ptx::sem_release, cuda_ptx::scope_cluster);
  }
};

}  // namespace tessera::cuda::hopper
