// Plain accesses: which memory they are for, and what is checked there.
#include <algorithm>
#include <cstring>
#include <map>
#include <stdexcept>

#include "core/base/text.h"
#include "gpu_model/machine/block.h"

extern "C" const char __executable_start, _end;  // the linker's: code and variables of the program

namespace gpu_model {
namespace {

std::map<std::uintptr_t, std::uintptr_t> ranges;  // begin, end
std::uintptr_t last_begin = 0, last_end = 0;

bool in_global(std::uintptr_t begin, std::size_t bytes) {
  if (begin >= last_begin && begin + bytes <= last_end) return true;
  auto range = ranges.upper_bound(begin);
  if (range == ranges.begin()) return false;
  --range;
  if (begin + bytes > range->second) return false;
  last_begin = range->first, last_end = range->second;
  return true;
}

bool between(std::uintptr_t x, const void* begin, const void* end) {
  return x >= reinterpret_cast<std::uintptr_t>(begin) && x < reinterpret_cast<std::uintptr_t>(end);
}

void check_window(std::uintptr_t offset, std::size_t bytes, Place at) {
  const Block& block = *now.block;
  const bool dynamic = offset >= kReservedBytes && offset + bytes <= block.dynamic_end;
  const bool variables = offset >= kStaticBegin && offset + bytes <= block.static_end;
  if (!dynamic && !variables) {
    fail(tessera::core::concat("touches byte ", offset, " of shared memory; the block has ",
                               block.dynamic_end - kReservedBytes, " bytes from ", kReservedBytes, " on"),
         at);
  }
}

}  // namespace

void add_global(const void* begin, std::size_t bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(begin);
  ranges[first] = first + bytes;
}

void remove_global(const void* begin) {
  ranges.erase(reinterpret_cast<std::uintptr_t>(begin));
  last_begin = last_end = 0;
}

void check_global(const void* pointer, std::size_t bytes, bool write, Place at) {
  const auto begin = reinterpret_cast<std::uintptr_t>(pointer);
  if (in_global(begin, bytes)) {
    if (launch().beside_predecessors && now.warp->clock.knowledge.seen.phases[kPredecessors] == 0)
      fail(
          "touches global memory before the kernels before it in the stream have ended (griddepcontrol.wait)",
          at);
    return;
  }
  fail(tessera::core::concat(write ? "writes " : "reads ", bytes, " bytes at ", pointer,
                             ", which belongs to no tensor and no workspace"),
       at);
}

// Shared memory, then the thread's own stack with the registers that wgmma takes, then everything
// else: tensors, or constants and the launch's arguments, which are the program's.
void access(const void* pointer, std::size_t bytes, bool write, Place at) {
  if (now.block == nullptr || bytes == 0) return;
  const auto begin = reinterpret_cast<std::uintptr_t>(pointer);
  const std::uintptr_t offset = begin - reinterpret_cast<std::uintptr_t>(now.window);
  if (offset < kWindowBytes) {
    check_window(offset, bytes, at);
    const auto address = static_cast<std::uint32_t>(offset);
    Shadow& shadow = now.block->shadow;
    if (write) shadow.write(now.warp->clock, now.lane, address, static_cast<std::uint32_t>(bytes), at);
    else
      shadow.read(now.warp->clock, now.lane, address, static_cast<std::uint32_t>(bytes), Proxy::generic, at);
    return;
  }
  Thread& thread = *now.thread;
  if (begin - reinterpret_cast<std::uintptr_t>(thread.stack) < kStackBytes) {
    if (begin < thread.operands.end && begin + bytes > thread.operands.begin)
      check_registers(thread, begin, bytes, write, at);
    return;
  }
  if (!write && (between(begin, &__executable_start, &_end) ||
                 between(begin, launch().arguments, launch().arguments + launch().argument_bytes)))
    return;
  check_global(pointer, bytes, write, at);
}

void load(void* to, std::uint32_t from, std::size_t bytes, Place at) {
  if (from % bytes != 0) fail(tessera::core::concat("reads ", bytes, " bytes at address ", from), at);
  check_window(from, bytes, at);
  now.block->shadow.read(now.warp->clock, now.lane, from, static_cast<std::uint32_t>(bytes), Proxy::generic,
                         at);
  std::memcpy(to, at_address(from), bytes);
}

void store(std::uint32_t to, const void* from, std::size_t bytes, Place at) {
  if (to % bytes != 0) fail(tessera::core::concat("writes ", bytes, " bytes at address ", to), at);
  check_window(to, bytes, at);
  now.block->shadow.write(now.warp->clock, now.lane, to, static_cast<std::uint32_t>(bytes), at);
  std::memcpy(at_address(to), from, bytes);
}

void store_same(std::uint32_t to, const void* from, std::size_t bytes, Place at) {
  check_window(to, bytes, at);
  const bool same = std::memcmp(at_address(to), from, bytes) == 0;
  now.block->shadow.write(now.warp->clock, now.lane, to, static_cast<std::uint32_t>(bytes), at,
                          same ? Value::unchanged : Value::same);
  std::memcpy(at_address(to), from, bytes);
}

void load_same(void* to, std::uint32_t from, std::size_t bytes, Place at) {
  check_window(from, bytes, at);
  now.block->shadow.check_same(now.warp->clock, now.lane, from, static_cast<std::uint32_t>(bytes), at);
  std::memcpy(to, at_address(from), bytes);
}

void load_any(void* to, std::uint32_t from, std::size_t bytes, Place at) {
  check_window(from, bytes, at);
  now.block->shadow.read_any(now.warp->clock, now.lane, from, static_cast<std::uint32_t>(bytes), at);
  std::memcpy(to, at_address(from), bytes);
}

void check_aligned(const void* pointer, std::size_t bytes, Place at) {
  if (reinterpret_cast<std::uintptr_t>(pointer) % bytes != 0)
    fail(tessera::core::concat("touches ", bytes, " bytes at once at ", pointer), at);
}

unsigned char* dynamic_shared(int alignment) {
  if (kReservedBytes % static_cast<unsigned>(alignment) != 0)
    throw std::logic_error("dynamic shared memory begins on a multiple of 1024 bytes");
  return now.window + kReservedBytes;
}

void* static_shared(const void* key, std::size_t bytes, std::size_t alignment) {
  Block& block = *now.block;
  for (const StaticVariable& variable : block.variables) {
    if (variable.key == key) return now.window + variable.offset;
  }
  const auto step = static_cast<std::uint32_t>(alignment);
  const std::uint32_t offset = (block.static_end + step - 1) / step * step;
  block.static_end = offset + static_cast<std::uint32_t>(bytes);
  if (block.static_end > kWindowBytes) fail("has more static shared memory than the model", nullptr);
  block.variables.push_back({key, offset});
  return now.window + offset;
}

void check_end(Thread& thread) {
  if (!thread.copies.empty()) fail("ends with cp.async under way", thread.copies.front().at);
  if (!thread.stores.empty())
    fail("ends while a bulk store still reads shared memory", thread.stores.front().at);
  if (!thread.products.empty()) fail("ends with wgmma under way", thread.products.front().at);
  if (!thread.product_groups.empty()) fail("ends with wgmma under way", nullptr);
}

void check_end(Block& block) {
  if (!block.loads.empty()) fail("ends the thread block while bulk copies write its shared memory", nullptr);
  for (std::size_t id = 0; id < block.named.size(); ++id) {
    const NamedBarrier& barrier = block.named[id];
    if (barrier.arrived == 0) continue;
    fail(tessera::core::concat("ends the thread block while barrier ", id, " has ", barrier.arrived, " of ",
                               barrier.expected, " arrivals"),
         nullptr);
  }
}

}  // namespace gpu_model

// What the compiler calls before every access of a kernel (-fsanitize=thread, without its runtime).
extern "C" {
#define TESSERA_ACCESS(bytes)                                                                           \
  void __tsan_read##bytes(void* p) { gpu_model::access(p, bytes, false, __builtin_return_address(0)); } \
  void __tsan_write##bytes(void* p) { gpu_model::access(p, bytes, true, __builtin_return_address(0)); } \
  void __tsan_unaligned_read##bytes(void* p) {                                                          \
    gpu_model::access(p, bytes, false, __builtin_return_address(0));                                    \
  }                                                                                                     \
  void __tsan_unaligned_write##bytes(void* p) {                                                         \
    gpu_model::access(p, bytes, true, __builtin_return_address(0));                                     \
  }                                                                                                     \
  void __tsan_volatile_read##bytes(void* p) {                                                           \
    gpu_model::access(p, bytes, false, __builtin_return_address(0));                                    \
  }                                                                                                     \
  void __tsan_volatile_write##bytes(void* p) {                                                          \
    gpu_model::access(p, bytes, true, __builtin_return_address(0));                                     \
  }
TESSERA_ACCESS(1)
TESSERA_ACCESS(2)
TESSERA_ACCESS(4)
TESSERA_ACCESS(8)
TESSERA_ACCESS(16)
#undef TESSERA_ACCESS
void __tsan_read_range(void* p, std::size_t bytes) {
  gpu_model::access(p, bytes, false, __builtin_return_address(0));
}
void __tsan_write_range(void* p, std::size_t bytes) {
  gpu_model::access(p, bytes, true, __builtin_return_address(0));
}
void* __tsan_memcpy(void* to, const void* from, std::size_t bytes) {
  gpu_model::access(from, bytes, false, __builtin_return_address(0));
  gpu_model::access(to, bytes, true, __builtin_return_address(0));
  return std::memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, std::size_t bytes) {
  gpu_model::access(from, bytes, false, __builtin_return_address(0));
  gpu_model::access(to, bytes, true, __builtin_return_address(0));
  return std::memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int byte, std::size_t bytes) {
  gpu_model::access(to, bytes, true, __builtin_return_address(0));
  return std::memset(to, byte, bytes);
}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_init() {}
}
