// What kernels and the twins of src/cuda/common/ptx see of the model: the registers that name a
// thread, and the operations of the machine. docs/gpu-model.md describes the machine.
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

// The twins are expanded where they are called: then the code address of an operation is a line of
// the kernel.
#define TWIN inline __attribute__((always_inline))

namespace gpu_model {

struct Thread;
struct Warp;
struct Block;

// The thread that runs now. `window` is the shared memory of its block: shared address x is
// window[x].
struct Now {
  Thread* thread = nullptr;
  Warp* warp = nullptr;
  Block* block = nullptr;
  unsigned char* window = nullptr;
  int lane = 0;
  uint3 thread_index{}, block_index{};
  dim3 block_size{}, grid_size{};
};
extern Now now;

// An address in the kernel's code, for messages.
using Place = const void*;
Place here();

// Ends the launch with a message that names the place, the thread and what it does.
[[noreturn]] void fail(std::string_view what, Place at);

// --- launches ---

// How a launch is played. Seed 0: blocks one after the other, warps in order, everything
// asynchronous as late as allowed. Seed 1: the same, as early as allowed. Others: drawn from the
// seed, with several blocks at a time.
void set_seed(unsigned seed);
unsigned seed();

// The GPU that the model is: its compute capability (10 * major + minor) and multiprocessors.
void set_gpu(int capability, int multiprocessors);
int capability();
int multiprocessors();

struct Launch {
  const char* name;
  unsigned grid, threads;
  std::size_t shared_bytes;
  bool beside_predecessors;
  const std::byte* arguments;
  std::size_t argument_bytes;
  const void* kernel;
  void (*call)(const void* kernel, const void* arguments);  // one thread of it
};

// Runs a grid to its end. Throws std::runtime_error with the message of `fail`.
void run(const Launch& launch);

// What all launches so far have done.
struct Counts {
  long launches = 0, blocks = 0, switches = 0;
};
Counts counts();

// --- memory ---

// Dynamic shared memory, and a variable of the block that `key` names.
unsigned char* dynamic_shared(int alignment);
void* static_shared(const void* key, std::size_t bytes, std::size_t alignment);

inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(static_cast<const unsigned char*>(pointer) - now.window);
}
inline unsigned char* at_address(std::uint32_t address) {
  return now.window + static_cast<std::int32_t>(address);
}

// An access of this thread, before it happens. The compiler's instrumentation calls this for plain
// accesses of the kernels, the twins for theirs.
void access(const void* pointer, std::size_t bytes, bool write, Place at);
// Accesses of shared memory by address. `store_same`: other threads may be writing the same value.
void load(void* to, std::uint32_t from, std::size_t bytes, Place at);
void store(std::uint32_t to, const void* from, std::size_t bytes, Place at);
void store_same(std::uint32_t to, const void* from, std::size_t bytes, Place at);
// A read of what `store_same` of another thread may be replacing.
void load_same(void* to, std::uint32_t from, std::size_t bytes, Place at);
// A read of what may never have been written.
void load_any(void* to, std::uint32_t from, std::size_t bytes, Place at);
void check_aligned(const void* pointer, std::size_t bytes, Place at);

// Memory that kernels may touch, for bounds checks.
void add_global(const void* begin, std::size_t bytes);
void remove_global(const void* begin);

// --- warps and barriers ---

// Instructions that all lanes of a warp execute together. The last lane that arrives computes for
// all: `compute` gets what each lane has passed as `own`.
enum class Together { shuffle, vote, sync_warp, load_matrix, store_matrix, mma, wgmma_wait, elect, barrier };
using Compute = void (*)(void* const (&lanes)[32]);
void together(Together what, void* own, Compute compute, Place at);

void sync_warp(unsigned mask, Place at);
// `result` is what lane `source` brings.
void shuffle(unsigned mask, const void* value, void* result, std::size_t bytes, int source, Place at);
std::uint32_t ballot(unsigned mask, bool condition, Place at);

// bar.sync, bar.arrive (not `wait`) and barrier.red: `any` is or-ed over the threads.
void barrier(int id, int threads, bool wait, bool* any, Place at);

// A point where other threads may run, and one in a loop that waits for memory to change.
void yield();
void poll(Place at);

// --- matrices of a warp ---

void load_matrix(std::uint32_t (&r)[4], std::uint32_t from, bool transposed, Place at);
void store_matrix(std::uint32_t to, const std::uint32_t (&r)[4], bool transposed, Place at);
void mma(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1, bool bf16,
         bool first, Place at);

// --- asynchronous copies ---

void copy_async(std::uint32_t to, const void* from, int bytes, int valid, Place at);
void commit_copies();
void wait_copies(int pending, Place at);

void init_mbarrier(std::uint64_t* barrier, std::uint32_t arrivals, Place at);
void publish_mbarriers();
void arrive(std::uint64_t* barrier, std::uint32_t expected_bytes, Place at);
void wait(std::uint64_t* barrier, std::uint32_t parity, Place at);

void load_box(void* to, const void* map, std::uint64_t* barrier, const std::int32_t (&coordinates)[4],
              Place at);
void load_bytes(void* to, const void* from, std::uint32_t bytes, std::uint64_t* barrier, Place at);
void store_box(const void* map, const void* from, const std::int32_t (&coordinates)[4], Place at);
void commit_stores();
void wait_stores(bool read_only, Place at);
void fence_for_engine();

void await_predecessors();

// --- wgmma ---

struct WgmmaOperands {
  float* d;
  const std::uint32_t* a;  // registers, or null: `a_descriptor`
  std::uint64_t a_descriptor, b_descriptor;
  int columns;
  bool bf16, b_by_rows, first;
};
void wgmma_fence();
void wgmma(const WgmmaOperands& operands, Place at);
void wgmma_commit();
void wgmma_wait(int pending, Place at);

}  // namespace gpu_model
