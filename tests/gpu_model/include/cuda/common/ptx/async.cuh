// The twin of src/cuda/common/ptx/async.cuh for the model of a GPU.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/common/ptx/copy.cuh"

namespace tessera::cuda::ptx {

inline constexpr std::uint32_t kMostPolls = 1U << 18;

template <typename WaitFor>
TWIN void give_up(std::uint32_t* /*report*/, WaitFor /*what*/) {
  gpu_model::fail("gives up waiting", gpu_model::here());
}

template <bool Bounded, typename WaitFor>
TWIN void wait(std::uint64_t* barrier, std::uint32_t parity, std::uint32_t* /*report*/, WaitFor /*what*/) {
  gpu_model::wait(barrier, parity, gpu_model::here());
}
TWIN void init_barrier(std::uint64_t* barrier, std::uint32_t arrivals) {
  gpu_model::init_mbarrier(barrier, arrivals, gpu_model::here());
}
TWIN void publish_barriers() { gpu_model::publish_mbarriers(); }
TWIN void arrive(std::uint64_t* barrier) { gpu_model::arrive(barrier, 0, gpu_model::here()); }
TWIN void arrive_if(bool condition, std::uint64_t* barrier) {
  if (condition) gpu_model::arrive(barrier, 0, gpu_model::here());
}
TWIN void arrive_and_expect(std::uint64_t* barrier, std::uint32_t bytes) {
  gpu_model::arrive(barrier, bytes, gpu_model::here());
}

TWIN void load_box(void* to, const CUtensorMap& map, std::uint64_t* barrier, int column, int row, int head,
                   int batch) {
  gpu_model::load_box(to, &map, barrier, {column, row, head, batch}, gpu_model::here());
}
TWIN void load_bytes(void* to, const void* from, std::uint32_t bytes, std::uint64_t* barrier) {
  gpu_model::load_bytes(to, from, bytes, barrier, gpu_model::here());
}
TWIN void store_box(const CUtensorMap& map, const void* from, int column, int row, int head, int batch) {
  gpu_model::store_box(&map, from, {column, row, head, batch}, gpu_model::here());
}
TWIN void fence_shared_for_engine() { gpu_model::fence_for_engine(); }
TWIN void fence_for_engine() { gpu_model::fence_for_engine(); }
TWIN void commit_stores() { gpu_model::commit_stores(); }
TWIN void wait_stores_read() { gpu_model::wait_stores(true, gpu_model::here()); }
TWIN void wait_stores() { gpu_model::wait_stores(false, gpu_model::here()); }

TWIN void await_predecessors() { gpu_model::await_predecessors(); }
TWIN void admit_successor() {}

TWIN void meet(int barrier, int threads) {
  gpu_model::barrier(barrier, threads, true, nullptr, gpu_model::here());
}
TWIN void pass(int barrier, int threads) {
  gpu_model::barrier(barrier, threads, false, nullptr, gpu_model::here());
}
TWIN bool meet_or(int barrier, int threads, bool condition) {
  gpu_model::barrier(barrier, threads, true, &condition, gpu_model::here());
  return condition;
}
template <int Count>
TWIN void take_registers() {}
template <int Count>
TWIN void give_registers() {}

TWIN bool elect() {
  gpu_model::together(gpu_model::Together::elect, nullptr, nullptr, gpu_model::here());
  return gpu_model::now.lane == 0;
}

TWIN void store_matrix(std::uint32_t to, const std::uint32_t (&r)[4]) {
  gpu_model::store_matrix(to, r, false, gpu_model::here());
}
TWIN void store_matrix_transposed(std::uint32_t to, std::uint32_t r0, std::uint32_t r1, std::uint32_t r2,
                                  std::uint32_t r3) {
  const std::uint32_t r[4] = {r0, r1, r2, r3};
  gpu_model::store_matrix(to, r, true, gpu_model::here());
}
TWIN void store_shared_if(bool condition, std::uint32_t to, std::uint32_t value) {
  if (condition) gpu_model::store_same(to, &value, sizeof value, gpu_model::here());
}
TWIN void trap() { gpu_model::fail("trap", gpu_model::here()); }

}  // namespace tessera::cuda::ptx
