// The state of a launch: thread blocks, their warps and threads. Inside the machine only.
#pragma once

#include <boost/context/detail/fcontext.hpp>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "gpu_model/machine/machine.h"
#include "gpu_model/machine/shadow.h"
#include "gpu_model/machine/tensor_map.h"

namespace gpu_model {

inline constexpr int kMostThreads = 1024;
inline constexpr std::uint32_t kReservedBytes = 1024;      // of shared memory, by the system
inline constexpr std::uint32_t kStaticBegin = 256 * 1024;  // where static variables are
inline constexpr int kNamedBarriers = 16;
inline constexpr std::size_t kStackBytes = std::size_t{192} << 10;

// cp.async of one thread.
struct ThreadCopy {
  std::uint32_t to;
  const void* from;
  int bytes, valid;
  Place at;
  bool done;  // the data has been moved; the thread may still not read it
};

// A wgmma of one lane, from its issue to its wait.
struct Product {
  WgmmaOperands operands;
  std::vector<float>
      before;  // the accumulators, which hold NaN meanwhile; empty: another product is before this one
  Place at;
};

struct BoxStore {
  TensorMap map;
  const void* from;
  std::int32_t coordinates[4];
  Place at;
};

// The registers of a thread that are operands of wgmma: what happened to each since the last
// wgmma.fence.
struct OperandRegisters {
  enum State : std::uint8_t { written = 1, accumulates = 2, is_read = 4 };
  std::uintptr_t begin = 0, end = 0;
  std::vector<std::uint8_t> state;  // of each word

  void include(const void* from, std::size_t words);
  std::uint8_t* of(const void* from) { return &state[(reinterpret_cast<std::uintptr_t>(from) - begin) / 4]; }
};

struct Thread {
  boost::context::detail::fcontext_t context = nullptr;
  unsigned char* stack = nullptr;
  unsigned index = 0;
  int lane = 0;
  Warp* warp = nullptr;
  Block* block = nullptr;
  const char* waits_for = "";
  Place at = nullptr;
  int polls = 0;
  std::vector<ThreadCopy> copies;        // oldest first
  std::vector<std::size_t> copy_groups;  // sizes of the committed groups
  std::vector<std::vector<Product>> product_groups;
  std::vector<Product> products;  // not committed
  long products_issued = 0;
  std::vector<BoxStore> stores;
  std::size_t stores_committed = 0;
  OperandRegisters operands;
};

struct Warp {
  int index = 0;
  Block* block = nullptr;
  std::uint32_t all = 0, live = 0, ready = 0, polling = 0;  // lanes
  // The instruction that lanes are gathering for.
  Together what{};
  std::uint32_t arrived = 0;
  void* own[32] = {};
  bool any = false;  // the result of barrier.red
  long products_checked = 0;
  WarpClock clock;
  const char* last_barrier = "";
};

struct NamedBarrier {
  int arrived = 0, expected = 0;
  bool any = false;
  std::vector<Warp*> waiting;
  Knowledge knowledge;
};

struct Waiting {
  Thread* thread;
  std::uint32_t parity;
};

struct MBarrier {
  std::uint32_t address = 0;
  int index = 0;  // in the shadow's views
  std::uint32_t count = 0, pending = 0;
  std::int64_t bytes = 0;
  std::uint32_t phase = 0;
  Time id = 0;  // of the current phase
  Time completed = 0;
  bool published = false;
  const Thread* initialiser = nullptr;
  std::vector<Waiting> waiting;
  Knowledge arriving, released;  // of the current phase; of the last complete one
};

// A bulk copy to shared memory that is under way.
struct BulkLoad {
  std::uint32_t to;
  std::optional<TensorMap> map;  // or nothing: `from`
  const void* from;
  std::int32_t coordinates[4];
  std::uint32_t bytes;
  int barrier;
  bool written;  // its bytes are there, but the barrier does not know
};

struct StaticVariable {
  const void* key;
  std::uint32_t offset;
};

struct Block {
  Block();
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  void begin(unsigned index, const Launch& launch);

  unsigned index = 0;
  int warp_count = 0, live = 0;
  std::uint32_t ready = 0, polling = 0;  // warps with such lanes
  unsigned char* window = nullptr;
  std::uint32_t dynamic_end = 0, static_end = 0;
  std::array<Thread, kMostThreads> threads;
  std::array<Warp, kMostWarps> warps;
  std::array<NamedBarrier, kNamedBarriers> named;
  std::vector<std::unique_ptr<MBarrier>> mbarriers;
  std::vector<int> mbarrier_at;  // index by address / 8, or -1
  std::vector<BulkLoad> loads;
  std::vector<StaticVariable> variables;
  Shadow shadow;
};

// --- the machine ---

// When something asynchronous happens.
enum class When { late, early, drawn };
When when();
// Below `bound`, from the seed.
unsigned draw(unsigned bound);

// The blocks of the launch that are on the GPU now.
const std::vector<Block*>& resident();
const Launch& launch();

// The calling thread stops until `wake`.
void stop(const char* waits_for, Place at);
void wake(Thread& thread);
void wake(Warp& warp, std::uint32_t lanes);

// Lets one bulk copy happen, if any is under way.
bool advance_copies(Block& block);

// Checks what a thread that ends, and a block that ends, must have waited for.
void check_end(Thread& thread);
void check_end(Block& block);

// The operands of wgmma among a thread's registers, before a plain access.
void check_registers(Thread& thread, std::uintptr_t from, std::size_t bytes, bool write, Place at);

// Whether memory outside of shared memory may be touched: fails otherwise.
void check_global(const void* pointer, std::size_t bytes, bool write, Place at);

// "consumer.cuh:42: the source line", of the kernel if the address is in one.
std::string describe(Place at);

}  // namespace gpu_model
