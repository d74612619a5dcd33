// The loading half of the Hopper forward kernel: one thread that keeps the rings of Q, K and V full.
#pragma once

#include "cuda/hopper/shared.cuh"

namespace tessera::cuda::hopper {

// Loads come in the order in which they are used: K of a step, then V of the step before it, also from tile to tile where
// tiles overlap (two stages of Q).
template <Config C>
class Loader {
 public:
  __device__ Loader(const Arguments& a, SharedMemory<C>& shared) : a_(a), shared_(shared) {}

  __device__ __forceinline__ void run() {
    while (true) {
      wait(&shared_.tile_full[tiles_.slot()], tiles_.phase(), ptx::WaitFor::tile);
      const Tile& t = shared_.tiles[tiles_.slot()];
      const int top = t.top, bottom = t.bottom;
      if (top < 0) break;
      load_queries(t);
      Keys keys{t.kv_row + top * C.block_k, t.kv_head, t.batch};
      ptx::arrive(&shared_.tile_empty[tiles_.slot()]);
      tiles_.next();
#pragma unroll 1
      for (int step = top; step >= bottom; --step) {
        load_keys(keys);
        if (waiting_) load_values();
        values_ = keys, waiting_ = true;
        keys.row -= C.block_k;
      }
      if constexpr (C.q_stages == 1) load_values();
    }
    if (waiting_) load_values();
  }

 private:
  struct Keys {
    int row, head, batch;
  };

  __device__ __forceinline__ void wait(std::uint64_t* barrier, std::uint32_t phase, ptx::WaitFor what) {
    ptx::wait<C.bounded_waits>(barrier, phase, a_.report, what);
  }

  // `rows` rows of all columns, panel by panel.
  template <int Columns, int Rows>
  __device__ __forceinline__ void load(unsigned char* to, const CUtensorMap& map, std::uint64_t* full,
                                       int row, int head, int batch) {
    ptx::arrive_and_expect(full, Rows * Columns * 2);
#pragma unroll
    for (int panel = 0; panel < Columns / kPanel; ++panel) {
      ptx::load_box(to + panel * Rows * kRowBytes, map, full, panel * kPanel, row, head, batch);
    }
  }

  __device__ __forceinline__ void load_queries(const Tile& t) {
    wait(&shared_.q_empty[q_.slot()], q_.phase() ^ 1, ptx::WaitFor::q_empty);
    load<C.qk_dim, C.block_q()>(shared_.q[q_.slot()], a_.q, &shared_.q_full[q_.slot()], t.row, t.head,
                                t.batch);
    q_.next();
  }

  __device__ __forceinline__ void load_keys(const Keys& at) {
    wait(&shared_.k_empty[k_.slot()], k_.phase() ^ 1, ptx::WaitFor::k_empty);
    load<C.qk_dim, C.block_k>(shared_.k[k_.slot()], a_.k, &shared_.k_full[k_.slot()], at.row, at.head,
                              at.batch);
    k_.next();
  }

  // Of the step whose K was loaded before the last.
  __device__ __forceinline__ void load_values() {
    wait(&shared_.v_empty[v_.slot()], v_.phase() ^ 1, ptx::WaitFor::v_empty);
    load<C.v_dim, C.block_k>(shared_.v[v_.slot()], a_.v, &shared_.v_full[v_.slot()], values_.row,
                             values_.head, values_.batch);
    v_.next();
    waiting_ = false;
  }

  const Arguments& a_;
  SharedMemory<C>& shared_;
  Ring<C.q_stages> q_;
  Ring<C.k_stages> k_;
  Ring<C.v_stages> v_;
  Ring<kTileSlots> tiles_;
  Keys values_{};  // to be loaded next
  bool waiting_ = false;
};

}  // namespace tessera::cuda::hopper
