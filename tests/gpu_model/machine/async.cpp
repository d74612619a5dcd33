// Asynchronous copies: cp.async of a thread, the copy engine (TMA), and the mbarriers at which its
// bytes arrive. What is allowed is checked when a copy is issued; the data moves as late, or as
// early, as the rules allow.
#include <algorithm>
#include <cstring>

#include "core/base/text.h"
#include "gpu_model/machine/block.h"
#include "gpu_model/machine/tensor_map.h"

namespace gpu_model {
namespace {

using tessera::core::concat;

std::uint32_t swizzled(std::uint32_t address) { return address ^ (address >> 3 & 0x70); }

bool now_or_later() {  // true: now
  return when() == When::early || (when() == When::drawn && draw(2) == 0);
}

// --- cp.async ---

void move(const ThreadCopy& copy) {
  unsigned char* to = at_address(copy.to);
  std::memset(to, 0, static_cast<std::size_t>(copy.bytes));
  std::memcpy(to, copy.from, static_cast<std::size_t>(copy.valid));
}

// --- mbarriers ---

MBarrier* find(Block& block, std::uint32_t address) {
  const int index = address < kWindowBytes ? block.mbarrier_at[address / 8] : -1;
  return index < 0 ? nullptr : block.mbarriers[static_cast<std::size_t>(index)].get();
}

MBarrier& existing(const std::uint64_t* pointer, Place at) {
  const std::uint32_t address = shared_address(pointer);
  if (address % 8 != 0 || address >= kWindowBytes) fail("uses an mbarrier outside of shared memory", at);
  MBarrier* barrier = find(*now.block, address);
  if (barrier == nullptr) fail("uses an mbarrier that nobody has initialised", at);
  now.block->shadow.use_barrier(now.warp->clock, now.lane, address, at);
  return *barrier;
}

// Completes the phase if nothing is missing.
void complete(Block& block, MBarrier& barrier) {
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  barrier.completed = barrier.id;
  barrier.arriving.seen.phases[barrier.index] = barrier.id;
  barrier.released = barrier.arriving;
  barrier.arriving = {};
  barrier.id = block.shadow.tick();
  ++barrier.phase, barrier.pending = barrier.count;
  std::erase_if(barrier.waiting, [&](const Waiting& w) {
    if ((barrier.phase & 1) == w.parity) return false;
    wake(*w.thread);
    return true;
  });
}

// --- the copy engine ---

const TensorMap& map_of(const void* map) { return *static_cast<const TensorMap*>(map); }

// Calls visit(shared address, tensor address or null outside of it) for every 16 bytes of a box
// that lies at `base` in shared memory.
template <typename Visit>
void for_chunks(const TensorMap& map, std::uint32_t base, const std::int32_t (&at)[4], Visit&& visit) {
  const std::uint32_t per_chunk = 16 / map.element_bytes;
  const auto inside = [&](int d, std::int64_t x) {
    return x >= 0 && x < static_cast<std::int64_t>(map.sizes[d]);
  };
  for (std::uint32_t row = 0; row < map.box[1]; ++row) {
    const std::int64_t y = at[1] + std::int64_t{row};
    const bool exists = inside(1, y) && inside(2, at[2]) && inside(3, at[3]);
    for (std::uint32_t column = 0; column < map.box[0]; column += per_chunk) {
      const std::uint32_t to = swizzled(base + row * kBoxRowBytes + column * map.element_bytes);
      const std::int64_t x = at[0] + std::int64_t{column};
      std::int64_t elements = std::min<std::int64_t>(per_chunk, static_cast<std::int64_t>(map.sizes[0]) - x);
      if (!exists || x < 0 || elements < 0) elements = 0;
      unsigned char* from = map.address + x * map.element_bytes +
                            y * static_cast<std::int64_t>(map.strides[0]) +
                            at[2] * static_cast<std::int64_t>(map.strides[1]) +
                            at[3] * static_cast<std::int64_t>(map.strides[2]);
      visit(to, from, static_cast<std::size_t>(elements) * map.element_bytes);
    }
  }
}

std::uint32_t box_bytes(const TensorMap& map) { return map.box[0] * map.box[1] * map.element_bytes; }

void move(Block& block, BulkLoad& load) {
  if (!load.map) {
    std::memcpy(block.window + load.to, load.from, load.bytes);
  } else {
    for_chunks(*load.map, load.to, load.coordinates,
               [&](std::uint32_t to, const void* from, std::size_t bytes) {
                 std::memset(block.window + to, 0, 16);
                 std::memcpy(block.window + to, from, bytes);
               });
  }
  load.written = true;
}

void issue(BulkLoad load, MBarrier& barrier, Place at) {
  load.barrier = barrier.index;
  Block& block = *now.block;
  if (!barrier.published)
    fail("gives the copy engine an mbarrier that it may not see: fence.mbarrier_init is missing", at);
  if (load.to % 128 != 0 && load.map) fail("copies a box to an address that is no multiple of 128", at);
  block.shadow.begin_load(now.warp->clock, now.lane, load.to, load.bytes, barrier.index, barrier.id, at);
  if (now_or_later()) move(block, load);
  block.loads.push_back(load);
  if (when() == When::early) {
    while (advance_copies(block)) {
    }
  }
}

void check_predecessors(Place at) {
  if (launch().beside_predecessors && now.warp->clock.knowledge.seen.phases[kPredecessors] == 0)
    fail("touches global memory before the kernels before it in the stream have ended (griddepcontrol.wait)",
         at);
}

// --- stores of the copy engine ---

void read_source(BoxStore& store) {
  const TensorMap& map = store.map;
  const std::uint32_t base = shared_address(store.from);
  for_chunks(map, base, store.coordinates, [&](std::uint32_t from, void* to, std::size_t bytes) {
    if (bytes == 0) return;  // outside of the tensor
    std::memcpy(to, at_address(from), bytes);
    now.block->shadow.end_read(now.warp->clock, now.lane, from, static_cast<std::uint32_t>(bytes));
  });
}

}  // namespace

// --- cp.async ---

void copy_async(std::uint32_t to, const void* from, int bytes, int valid, Place at) {
  if (to % static_cast<unsigned>(bytes) != 0)
    fail(concat("cp.async to an address that is no multiple of ", bytes), at);
  if (valid < 0 || valid > bytes) fail(concat("cp.async reads ", valid, " of ", bytes, " bytes"), at);
  if (valid > 0) {
    if (reinterpret_cast<std::uintptr_t>(from) % static_cast<unsigned>(bytes) != 0)
      fail(concat("cp.async from an address that is no multiple of ", bytes), at);
    check_global(from, static_cast<std::size_t>(valid), false, at);
  }
  const auto size = static_cast<std::uint32_t>(bytes);
  now.block->shadow.begin_copy(now.warp->clock, now.lane, to, size, at);
  ThreadCopy copy{to, from, bytes, valid, at, now_or_later()};
  if (copy.done) move(copy);
  now.thread->copies.push_back(copy);
}

void commit_copies() {
  Thread& thread = *now.thread;
  std::size_t closed = 0;
  for (const std::size_t group : thread.copy_groups) closed += group;
  thread.copy_groups.push_back(thread.copies.size() - closed);
}

void wait_copies(int pending, Place /*at*/) {
  Thread& thread = *now.thread;
  std::size_t groups = 0, copies = 0;
  while (thread.copy_groups.size() - groups > static_cast<std::size_t>(pending))
    copies += thread.copy_groups[groups++];
  for (std::size_t i = 0; i < copies; ++i) {
    const ThreadCopy& copy = thread.copies[i];
    if (!copy.done) move(copy);
    now.block->shadow.end_copy(now.warp->clock, now.lane, copy.to, static_cast<std::uint32_t>(copy.bytes));
  }
  thread.copies.erase(thread.copies.begin(), thread.copies.begin() + static_cast<std::ptrdiff_t>(copies));
  thread.copy_groups.erase(thread.copy_groups.begin(),
                           thread.copy_groups.begin() + static_cast<std::ptrdiff_t>(groups));
}

// --- mbarriers ---

void init_mbarrier(std::uint64_t* pointer, std::uint32_t arrivals, Place at) {
  Block& block = *now.block;
  const std::uint32_t address = shared_address(pointer);
  if (address % 8 != 0) fail("initialises an mbarrier at an address that is no multiple of 8", at);
  if (find(block, address) != nullptr) fail("initialises an mbarrier twice", at);
  access(pointer, 8, true, at);
  auto barrier = std::make_unique<MBarrier>();
  barrier->address = address, barrier->index = static_cast<int>(block.mbarriers.size());
  if (barrier->index == kMostBarriers) fail("more mbarriers than the model has", at);
  barrier->count = barrier->pending = arrivals;
  barrier->id = block.shadow.tick();
  barrier->initialiser = now.thread;
  block.mbarrier_at[address / 8] = barrier->index;
  block.mbarriers.push_back(std::move(barrier));
  block.shadow.set_barriers(static_cast<int>(block.mbarriers.size()));
}

void publish_mbarriers() {
  for (const auto& barrier : now.block->mbarriers)
    barrier->published = barrier->published || barrier->initialiser == now.thread;
}

void arrive(std::uint64_t* pointer, std::uint32_t expected_bytes, Place at) {
  MBarrier& barrier = existing(pointer, at);
  if (barrier.pending == 0) fail("arrives at an mbarrier more often than its phase expects", at);
  now.block->shadow.release(now.warp->clock, now.lane, barrier.arriving);
  barrier.bytes += expected_bytes;
  --barrier.pending;
  complete(*now.block, barrier);
}

void wait(std::uint64_t* pointer, std::uint32_t parity, Place at) {
  MBarrier& barrier = existing(pointer, at);
  while ((barrier.phase & 1) == parity) {
    barrier.waiting.push_back({now.thread, parity});
    stop("an mbarrier", at);
  }
  now.block->shadow.acquire(now.warp->clock, barrier.released);
}

// --- the copy engine ---

void load_box(void* to, const void* map, std::uint64_t* barrier, const std::int32_t (&at)[4], Place place) {
  check_predecessors(place);
  const TensorMap& box = map_of(map);
  for_chunks(box, shared_address(to), at, [&](std::uint32_t, const void* from, std::size_t bytes) {
    if (bytes != 0) check_global(from, bytes, false, place);
  });
  issue({shared_address(to), box, nullptr, {at[0], at[1], at[2], at[3]}, box_bytes(box), 0, false},
        existing(barrier, place), place);
}

void load_bytes(void* to, const void* from, std::uint32_t bytes, std::uint64_t* barrier, Place at) {
  check_predecessors(at);
  if (bytes % 16 != 0 || shared_address(to) % 16 != 0 || reinterpret_cast<std::uintptr_t>(from) % 16 != 0)
    fail("cp.async.bulk of addresses or a size that are no multiples of 16", at);
  check_global(from, bytes, false, at);
  issue({shared_address(to), {}, from, {}, bytes, 0, false}, existing(barrier, at), at);
}

bool advance_copies(Block& block) {
  if (block.loads.empty()) return false;
  const std::size_t i = when() == When::drawn ? draw(static_cast<unsigned>(block.loads.size())) : 0;
  BulkLoad load = block.loads[i];
  block.loads.erase(block.loads.begin() + static_cast<std::ptrdiff_t>(i));
  if (!load.written) move(block, load);
  block.shadow.end_load(load.to, load.bytes);
  MBarrier& barrier = *block.mbarriers[static_cast<std::size_t>(load.barrier)];
  barrier.bytes -= load.bytes;
  complete(block, barrier);
  return true;
}

void store_box(const void* map, const void* from, const std::int32_t (&at)[4], Place place) {
  const TensorMap& box = map_of(map);
  const std::uint32_t base = shared_address(from);
  if (base % 128 != 0) fail("stores a box from an address that is no multiple of 128", place);
  for_chunks(box, base, at, [&](std::uint32_t own, const void* to, std::size_t bytes) {
    if (bytes == 0) return;  // outside of the tensor
    check_global(to, bytes, true, place);
    now.block->shadow.begin_read(now.warp->clock, now.lane, own, static_cast<std::uint32_t>(bytes), place);
  });
  now.thread->stores.push_back({box, from, {at[0], at[1], at[2], at[3]}, place});
}

void commit_stores() { now.thread->stores_committed = now.thread->stores.size(); }

void wait_stores(bool /*read_only*/, Place /*at*/) {
  Thread& thread = *now.thread;
  for (std::size_t i = 0; i < thread.stores_committed; ++i) read_source(thread.stores[i]);
  thread.stores.erase(thread.stores.begin(),
                      thread.stores.begin() + static_cast<std::ptrdiff_t>(thread.stores_committed));
  thread.stores_committed = 0;
}

void fence_for_engine() {
  now.block->shadow.fence(now.warp->clock, now.lane);
  publish_mbarriers();
}

void await_predecessors() { now.warp->clock.knowledge.seen.phases[kPredecessors] = 1; }

}  // namespace gpu_model
