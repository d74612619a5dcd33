// Threads as fibers: who runs next, and the launch of a grid.
#include <sys/mman.h>

#include <bit>
#include <cstring>
#include <new>
#include <stdexcept>

#include "core/base/text.h"
#include "gpu_model/machine/block.h"

namespace gpu_model {

Now now;

namespace {

namespace context = boost::context::detail;
using tessera::core::concat;

constexpr int kMostPolls = 1 << 20;  // of a thread: more are a deadlock
constexpr int kResidentBlocks = 2;

unsigned current_seed = 0;
std::minstd_rand generator;
Counts counts_;

const Launch* current_launch = nullptr;
Thread host;  // the thread of the program that launches
std::vector<std::unique_ptr<Block>> pool;
std::vector<Block*> running;
unsigned next_block = 0;
std::string violation;  // not empty: the launch has failed

void jump(Thread* next) {
  Thread* const before = now.thread;
  now.thread = next, now.warp = next->warp, now.block = next->block, now.lane = next->lane;
  if (next->block != nullptr) {
    now.window = next->block->window;
    now.thread_index.x = next->index, now.block_index.x = next->block->index;
  }
  ++counts_.switches;
  const context::transfer_t arrived = context::jump_fcontext(next->context, before);
  static_cast<Thread*>(arrived.data)->context = arrived.fctx;
}

void set_ready(Warp& warp, std::uint32_t lanes) {
  warp.ready |= lanes & warp.live, warp.polling &= ~lanes;
  if (warp.ready != 0) warp.block->ready |= 1U << warp.index;
}

void unset_ready(Thread& thread) {
  Warp& warp = *thread.warp;
  warp.ready &= ~(1U << thread.lane);
  if (warp.ready == 0) warp.block->ready &= ~(1U << warp.index);
}

// The lane after `lane`, in a circle.
int next_lane(std::uint32_t lanes, int lane) {
  const std::uint32_t above = lane < 31 ? lanes & (~0U << (lane + 1)) : 0;
  return std::countr_zero(above != 0 ? above : lanes);
}

std::string deadlock() {
  std::string text;
  for (Block* block : running) {
    for (int w = 0; w < block->warp_count; ++w) {
      const Warp& warp = block->warps[static_cast<std::size_t>(w)];
      std::string before;
      for (int lane = 0; lane < 32; ++lane) {
        if ((warp.live >> lane & 1) == 0) continue;
        const Thread& thread = block->threads[static_cast<std::size_t>(w * 32 + lane)];
        const std::string where = concat(thread.waits_for, " at ", describe(thread.at));
        if (where == before) continue;
        before = where;
        text += concat("\n  block ", block->index, " warp ", w, " lane ", lane, " waits for ", where);
      }
    }
  }
  return text;
}

// The thread to run now; null: nobody is left.
Thread* choose(bool stay) {
  for (;;) {
    Block* block = now.block;
    const bool mixes = when() == When::drawn;
    if (block == nullptr || block->ready == 0 || (mixes && !stay && running.size() > 1 && draw(64) == 0)) {
      block = nullptr;
      const std::size_t first = mixes ? draw(static_cast<unsigned>(running.size())) : 0;
      for (std::size_t i = 0; i < running.size() && block == nullptr; ++i) {
        Block* other = running[(first + i) % running.size()];
        if (other->ready != 0) block = other;
      }
    }
    if (block != nullptr) {
      Warp* warp = now.warp;
      if (warp == nullptr || warp->block != block || warp->ready == 0 || (mixes && !stay && draw(32) == 0)) {
        const int from = mixes                                     ? static_cast<int>(draw(32))
                         : warp != nullptr && warp->block == block ? warp->index
                                                                   : -1;
        warp = &block->warps[static_cast<std::size_t>(next_lane(block->ready, from < 0 ? 31 : from))];
      }
      return &block->threads[static_cast<std::size_t>(
          warp->index * 32 + next_lane(warp->ready, warp == now.warp ? now.lane : 31))];
    }
    bool moved = false;
    for (Block* other : running) moved = moved || advance_copies(*other);
    if (moved) continue;
    for (Block* other : running) {  // those that wait for memory look again
      for (int w = 0; w < other->warp_count; ++w) {
        Warp& warp = other->warps[static_cast<std::size_t>(w)];
        if (warp.polling != 0) set_ready(warp, warp.polling), moved = true;
      }
    }
    if (moved) continue;
    return nullptr;
  }
}

[[noreturn]] void leave() {
  jump(&host);
  std::abort();  // nobody comes back
}

void run_next(bool stay) {
  Thread* const next = choose(stay);
  if (next == nullptr) {
    violation = concat("deadlock:", deadlock());
    leave();
  }
  if (next != now.thread) jump(next);
}

void enter(context::transfer_t arrived) {
  static_cast<Thread*>(arrived.data)->context = arrived.fctx;
  current_launch->call(current_launch->kernel, current_launch->arguments);
  Thread& self = *now.thread;
  check_end(self);
  if (self.warp->arrived != 0) fail("leaves the kernel while other lanes of its warp wait for it", nullptr);
  unset_ready(self);
  self.warp->live &= ~(1U << self.lane);
  Block& block = *self.block;
  if (--block.live == 0) {
    check_end(block);
    leave();  // the next block takes over its stacks
  }
  now.warp = nullptr;
  run_next(true);
  std::abort();
}

}  // namespace

void set_seed(unsigned seed) { current_seed = seed; }
unsigned seed() { return current_seed; }
When when() { return current_seed == 0 ? When::late : current_seed == 1 ? When::early : When::drawn; }
unsigned draw(unsigned bound) { return bound <= 1 ? 0 : static_cast<unsigned>(generator()) % bound; }
Counts counts() { return counts_; }
const std::vector<Block*>& resident() { return running; }
const Launch& launch() { return *current_launch; }

Block::Block() : mbarrier_at(kWindowBytes / 8, -1) {
  void* memory = std::aligned_alloc(4096, kWindowBytes);
  if (memory == nullptr) throw std::bad_alloc();
  window = static_cast<unsigned char*>(memory);
}

Block::~Block() {
  std::free(window);
  for (Thread& thread : threads) {
    if (thread.stack != nullptr) munmap(thread.stack, kStackBytes);
  }
}

void Block::begin(unsigned own_index, const Launch& from) {
  index = own_index;
  warp_count = static_cast<int>((from.threads + 31) / 32), live = static_cast<int>(from.threads);
  dynamic_end = kReservedBytes + static_cast<std::uint32_t>(from.shared_bytes), static_end = kStaticBegin;
  std::memset(window, 0xFF, dynamic_end);  // NaN
  std::memset(window + kStaticBegin, 0xFF, kWindowBytes - kStaticBegin);
  shadow.reset(warp_count);
  for (const auto& barrier : mbarriers) mbarrier_at[barrier->address / 8] = -1;
  mbarriers.clear(), loads.clear(), variables.clear();
  for (NamedBarrier& barrier : named) barrier = {};
  ready = 0;
  for (int w = 0; w < warp_count; ++w) {
    Warp& warp = warps[static_cast<std::size_t>(w)];
    warp = {};
    warp.index = w, warp.block = this, warp.clock.warp = w;
    const unsigned left = from.threads - static_cast<unsigned>(w) * 32;
    warp.all = warp.live = left >= 32 ? ~0U : (1U << left) - 1;
    shadow.sync(warp.clock);
    set_ready(warp, warp.all);
  }
  for (unsigned t = 0; t < from.threads; ++t) {
    Thread& thread = threads[t];
    if (thread.stack == nullptr) {
      void* memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (memory == MAP_FAILED) throw std::bad_alloc();
      mprotect(memory, 4096, PROT_NONE);  // a stack that overflows ends the program
      thread.stack = static_cast<unsigned char*>(memory);
    }
    thread.index = t, thread.lane = static_cast<int>(t % 32);
    thread.warp = &warps[t / 32], thread.block = this;
    thread.waits_for = "", thread.at = nullptr, thread.polls = 0;
    thread.copies.clear(), thread.copy_groups.clear(), thread.product_groups.clear(), thread.products.clear();
    thread.products_issued = 0, thread.stores.clear(), thread.stores_committed = 0;
    thread.operands = {};
    thread.context = context::make_fcontext(thread.stack + kStackBytes, kStackBytes, &enter);
  }
}

void stop(const char* waits_for, Place at) {
  now.thread->waits_for = waits_for, now.thread->at = at;
  unset_ready(*now.thread);
  run_next(false);
}

void wake(Thread& thread) { set_ready(*thread.warp, 1U << thread.lane); }
void wake(Warp& warp, std::uint32_t lanes) { set_ready(warp, lanes); }

void yield() {
  if (when() == When::drawn && draw(4) == 0) run_next(false);
}

void poll(Place at) {
  if (++now.thread->polls > kMostPolls) fail("waits for memory that nobody changes: a deadlock", at);
  now.thread->waits_for = "memory to change", now.thread->at = at;
  unset_ready(*now.thread);
  now.warp->polling |= 1U << now.lane;
  run_next(false);
}

void fail(std::string_view what, Place at) {
  if (now.block == nullptr) throw std::runtime_error(std::string(what));
  violation = concat(what, "\n  by block ", now.block->index, " warp ",
                     now.warp == nullptr ? -1 : now.warp->index, " lane ", now.lane, " at ", describe(at));
  leave();
}

void run(const Launch& launch) {
  if (launch.threads > kMostThreads) throw std::runtime_error("more than 1024 threads in a block");
  generator.seed(current_seed + 1);
  current_launch = &launch;
  ++counts_.launches;
  now.block_size = {launch.threads, 1, 1}, now.grid_size = {launch.grid, 1, 1};
  const unsigned most = when() == When::drawn ? kResidentBlocks : 1;
  running.clear(), next_block = 0, violation.clear();
  for (unsigned b = 0; b < most && b < launch.grid; ++b) {
    if (pool.size() == b) pool.push_back(std::make_unique<Block>());
    running.push_back(pool[b].get());
    running.back()->begin(next_block++, launch);
    ++counts_.blocks;
  }
  for (bool done = false; !done && violation.empty();) {
    now.thread = &host, now.warp = nullptr, now.block = nullptr;
    run_next(true);  // until a block has ended, or something is wrong
    done = true;
    for (Block* block : running) {
      if (block->live == 0 && next_block < launch.grid && violation.empty()) {
        block->begin(next_block++, launch);
        ++counts_.blocks;
      }
      done = done && block->live == 0;
    }
  }
  now = {.thread = &host};
  running.clear();
  if (violation.empty()) return;
  pool.clear();  // their threads stand in the middle of the kernel
  throw std::runtime_error(concat(launch.name, ", seed ", current_seed, ": ", violation));
}

}  // namespace gpu_model
