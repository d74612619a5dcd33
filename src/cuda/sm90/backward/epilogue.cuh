// The end of a tile of the Hopper backward kernel: dK and dV leave through the room of K and V.
#pragma once

#include "cuda/sm90/backward/consumer.cuh"

namespace tessera::cuda::sm90::backward {

// Gives the room of the tile before back to the loader, once the copy engine has read its gradients
// from there.
template <Config C>
__device__ __forceinline__ void Consumer<C>::release_keys_before() {
  if (tiles_.count() == 0) return;
  if (lane() == 0) {
    ptx::wait_stores_read();
    ptx::arrive(&shared_.keys_empty[(tiles_.count() - 1) % C.kKeyStages]);
  }
  __syncwarp();
}

// `sums` times `factor`, or (not Visible) zeros, into this warp's 16 rows of a tile and from there
// to the tensor.
template <Config C>
template <bool Visible>
__device__ __forceinline__ void Consumer<C>::store_tile(const float (&sums)[D / 2], float factor,
                                                        unsigned char* staged, const CUtensorMap& map,
                                                        const core::View& view) {
  const KeyTile& t = tile();
  const int first = ptx::opaque(group_ * kGroupRows + warp_ * 16), rows = uniform(t.keys) - first;
  const std::uint32_t to = ptx::shared_address(staged) + matrix_offset(kKeys, first, lane());
#pragma unroll
  for (int j = 0; j < D / 8; j += 2) {
    std::uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; Visible && i < 4; ++i)
      words[i] = ptx::pack<C.type>(sums[4 * j + 2 * i] * factor, sums[4 * j + 2 * i + 1] * factor);
    ptx::store_matrix(matrix_step(kKeys, to, j), words);
  }
  if (rows >= 16 || !a_.call.problem.packed) {  // a box ends with the tensor, but not with a packed sequence
    ptx::fence_shared_for_engine();
    __syncwarp();
    if (lane() == 0) {
#pragma unroll
      for (int panel = 0; panel < D / C.panel(); ++panel) {
        ptx::store_box(map, staged + panel * kKeys * kRowBytes + first * kRowBytes, panel * C.panel(),
                       t.row + first, t.head, t.batch);
      }
      ptx::commit_stores();
    }
    return;
  }
  ptx::fence_shared_for_engine();  // which loads another tile into this room
  __syncwarp();
  const int columns =
      static_cast<int>(&view == &a_.call.problem.grad_k ? a_.call.problem.qk_dim : a_.call.problem.v_dim);
#pragma unroll 1
  for (int row = 0; row < rows; ++row) {
    Number* out = view.template row<Number>(t.batch, t.head, t.row + first + row);
#pragma unroll 1
    for (int column = lane(); column < columns; column += 32) {
      out[column] = ptx::load_element<Number>(ptx::shared_address(staged) +
                                              element_offset(kKeys, first + row, column, C.element_bytes()));
    }
  }
}

// The gradients of a tile, when all warps are done with its K and V.
template <Config C>
template <bool Visible>
__device__ __forceinline__ void Consumer<C>::finalize() {
  __syncwarp();
  ptx::arrive_if(lane() == 0, &shared_.keys_used);
  wait(&shared_.keys_used, tiles_.count() & 1, WaitFor::keys_used);
  const int slot = ptx::opaque(key_slot());
  const core::Problem& p = a_.call.problem;
  store_tile<Visible>(grad_v_, a_.call.features.keep_scale, shared_.v[slot], a_.grad_v, p.grad_v);
  store_tile<Visible>(grad_k_, a_.call.gradient_scale(), shared_.k[slot], a_.grad_k, p.grad_k);
}

}  // namespace tessera::cuda::sm90::backward
