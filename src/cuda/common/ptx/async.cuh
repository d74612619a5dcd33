// How the parts of an asynchronous kernel work together: mbarriers, the copy engine for tensors
// (TMA), named barriers, and registers that warp groups pass to each other. sm_90a. The namespace
// cuda::ptx of the toolkit has most of these instructions.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <cuda/ptx>

#include "cuda/common/ptx/copy.cuh"

namespace tessera::cuda::ptx {

namespace cuda_ptx = ::cuda::ptx;

// A bounded wait gives up after this many polls. A poll lasts from tens of nanoseconds to a few
// microseconds, so a wait that reaches the bound is a mistake in the kernel.
inline constexpr std::uint32_t kMostPolls = 1U << 18;

// Writes {1, what, block, thread} where the host can read it, and traps, which ends the whole grid.
// `what` says what the thread waited for: every kernel has an enumeration WaitFor of its own.
template <typename WaitFor>
__device__ __forceinline__ void give_up(std::uint32_t* report, WaitFor what) {
  asm volatile(
      "{.reg .b32 block, thread;\n"
      "mov.u32 block, %%ctaid.x; mov.u32 thread, %%tid.x;\n"
      "st.volatile.global.v4.b32 [%0], {%1, %2, block, thread};\n"
      "fence.sc.sys; trap;}" ::"l"(report),
      "r"(1), "r"(static_cast<std::uint32_t>(what))
      : "memory");
}

// Waits until the phase of an mbarrier with this parity is complete. Bounded: gives up after
// kMostPolls. The loop is written in PTX, because the assembler then knows that a warp leaves it
// together and keeps what follows in uniform registers. With a loop in C++ it does not. PTX ISA:
// mbarrier.try_wait.
template <bool Bounded, typename WaitFor>
__device__ __forceinline__ void wait(std::uint64_t* barrier, std::uint32_t parity, std::uint32_t* report,
                                     WaitFor what) {
  if constexpr (Bounded) {
    asm volatile(
        "{.reg .pred done; .reg .b32 polls, block, thread;\n"
        "mov.b32 polls, %2;\n"
        "POLL: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra DONE;\n"
        "sub.u32 polls, polls, 1;\n"
        "setp.eq.u32 done, polls, 0;\n"
        "@!done bra POLL;\n"
        "mov.u32 block, %%ctaid.x; mov.u32 thread, %%tid.x;\n"
        "st.volatile.global.v4.b32 [%3], {%4, %5, block, thread};\n"
        "fence.sc.sys; trap;\n"
        "DONE:}" ::"r"(shared_address(barrier)),
        "r"(parity), "n"(kMostPolls), "l"(report), "r"(1), "r"(static_cast<std::uint32_t>(what))
        : "memory");
  } else {
    asm volatile(
        "{.reg .pred done;\n"
        "POLL: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra DONE;\n"
        "bra POLL;\n"
        "DONE:}" ::"r"(shared_address(barrier)),
        "r"(parity)
        : "memory");
  }
}

// Prepares an mbarrier of which each phase completes with so many arrivals. By one thread. PTX ISA:
// mbarrier.init.
__device__ __forceinline__ void init_barrier(std::uint64_t* barrier, std::uint32_t arrivals) {
  cuda_ptx::mbarrier_init(barrier, arrivals);
}

// Lets the copy engine see the mbarriers that this thread has prepared. PTX ISA:
// fence.mbarrier_init.
__device__ __forceinline__ void publish_barriers() {
  cuda_ptx::fence_mbarrier_init(cuda_ptx::sem_release, cuda_ptx::scope_cluster);
}

__device__ __forceinline__ void arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrives if the condition holds, without a branch.
__device__ __forceinline__ void arrive_if(bool condition, std::uint64_t* barrier) {
  asm volatile("{.reg .pred p; setp.ne.s32 p, %0, 0; @p mbarrier.arrive.shared::cta.b64 _, [%1];}" ::"r"(
                   static_cast<int>(condition)),
               "r"(shared_address(barrier))
               : "memory");
}

// Arrives, and makes the phase wait for so many bytes as well. PTX ISA: mbarrier.arrive.expect_tx.
__device__ __forceinline__ void arrive_and_expect(std::uint64_t* barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}

// A box of a tensor of four dimensions to shared memory; its bytes arrive at the mbarrier. What
// lies outside the tensor arrives as zero. PTX ISA: cp.async.bulk.tensor.
__device__ __forceinline__ void load_box(void* to, const CUtensorMap& map, std::uint64_t* barrier, int column,
                                         int row, int head, int batch) {
  const std::int32_t at[4] = {column, row, head, batch};
  cuda_ptx::cp_async_bulk_tensor(cuda_ptx::space_cluster, cuda_ptx::space_global, to, &map, at, barrier);
}

// Neighbouring bytes to shared memory, 16 at a time; they arrive at the mbarrier. PTX ISA:
// cp.async.bulk.
__device__ __forceinline__ void load_bytes(void* to, const void* from, std::uint32_t bytes,
                                           std::uint64_t* barrier) {
  cuda_ptx::cp_async_bulk(cuda_ptx::space_cluster, cuda_ptx::space_global, to, from, bytes, barrier);
}

// A box from shared memory; what lies outside the tensor is left out.
__device__ __forceinline__ void store_box(const CUtensorMap& map, const void* from, int column, int row,
                                          int head, int batch) {
  const std::int32_t at[4] = {column, row, head, batch};
  cuda_ptx::cp_async_bulk_tensor(cuda_ptx::space_global, cuda_ptx::space_shared, &map, at, from);
}

// Orders this thread's accesses to shared memory before those of the copy engine and wgmma that
// follow. PTX ISA: fence.proxy.async.
__device__ __forceinline__ void fence_shared_for_engine() {
  cuda_ptx::fence_proxy_async(cuda_ptx::space_shared);
}
// The same for all memory.
__device__ __forceinline__ void fence_for_engine() { cuda_ptx::fence_proxy_async(); }

// Closes the group of store_box that this thread has issued. PTX ISA: cp.async.bulk.commit_group.
__device__ __forceinline__ void commit_stores() { cuda_ptx::cp_async_bulk_commit_group(); }

// Of the copies that this thread issued and committed: until their source has been read, until they
// are done.
__device__ __forceinline__ void wait_stores_read() {
  cuda_ptx::cp_async_bulk_wait_group_read(cuda_ptx::n32_t<0>{});
}
__device__ __forceinline__ void wait_stores() { cuda_ptx::cp_async_bulk_wait_group(cuda_ptx::n32_t<0>{}); }

// Programmatic dependent launch. Until the kernels before this one in the stream have ended and
// what they wrote is visible; and that the next one may take multiprocessors as thread blocks leave
// them. PTX ISA: griddepcontrol.
__device__ __forceinline__ void await_predecessors() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void admit_successor() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Named barriers (1 to 15): `threads` of them meet, or arrive without waiting. PTX ISA: barrier.
__device__ __forceinline__ void meet(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void pass(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// Meets; whether the condition holds for any of the threads. PTX ISA: barrier.red.
__device__ __forceinline__ bool meet_or(int barrier, int threads, bool condition) {
  std::uint32_t any;
  asm volatile(
      "{.reg .pred p, q; setp.ne.s32 p, %3, 0;\n"
      "barrier.cta.red.or.pred q, %1, %2, p; selp.u32 %0, 1, 0, q;}"
      : "=r"(any)
      : "r"(barrier), "r"(threads), "r"(static_cast<int>(condition))
      : "memory");
  return any != 0;
}
// Registers per thread from here on, for all warps of the group. PTX ISA: setmaxnreg.
template <int Count>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}
template <int Count>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}

// True for one thread of the warp. PTX ISA: elect.sync.
__device__ __forceinline__ bool elect() {
  std::uint32_t elected;
  asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p;}" : "=r"(elected));
  return elected != 0;
}

// Stores four 8x8 matrices of 16-bit numbers; lane l names row l % 8 of matrix l / 8. PTX ISA:
// stmatrix.
__device__ __forceinline__ void store_matrix(std::uint32_t to, const std::uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// The same, each matrix transposed.
__device__ __forceinline__ void store_matrix_transposed(std::uint32_t to, std::uint32_t r0, std::uint32_t r1,
                                                        std::uint32_t r2, std::uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(r0),
               "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

// A store without a branch: behind one in C++ the assembler no longer keeps what is the same for
// all lanes in uniform registers.
__device__ __forceinline__ void store_shared_if(bool condition, std::uint32_t to, std::uint32_t value) {
  asm volatile(
      "{.reg .pred p; setp.ne.s32 p, %0, 0; @p st.shared.b32 [%1], %2;}" ::"r"(static_cast<int>(condition)),
      "r"(to), "r"(value)
      : "memory");
}

// Ends the whole grid with an error. PTX ISA: trap.
__device__ __forceinline__ void trap() { asm volatile("trap;"); }

}  // namespace tessera::cuda::ptx
