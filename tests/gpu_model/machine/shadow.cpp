#include "gpu_model/machine/shadow.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <new>

#include "core/base/text.h"
#include "gpu_model/machine/block.h"

extern "C" const char __executable_start;  // the linker's

namespace gpu_model {
namespace {

constexpr std::uint32_t kUnits = kWindowBytes / kUnitBytes;
constexpr std::uint32_t kGroup = 8;  // units whose readers lie together
constexpr std::size_t kReadsBytes = std::size_t{kUnits} * kMostWarps * 8;
constexpr Time kLateTime = 3'000'000'000U;  // before the clock wraps around
constexpr std::uint8_t kBarrierWriter = kMostWarps;

std::uint32_t offset_of(Place at) {
  return at == nullptr ? 0 : static_cast<std::uint32_t>(static_cast<const char*>(at) - &__executable_start);
}

void join(WarpView& to, const WarpView& from) {
  const Time full = std::max(to.full, from.full);
  const bool keeps = to.partial > full, adds = from.partial > full;
  if (keeps && adds) to.lanes |= from.lanes;
  else if (adds) to.lanes = from.lanes;
  else if (!keeps) to.lanes = 0;
  to.partial = keeps || adds ? std::max(to.partial, from.partial) : 0;
  to.full = full;
  to.reads = std::max(to.reads, from.reads);
}

bool covers_read(const WarpView& view, Time time, std::uint32_t lanes) {
  return time < view.full || time < view.reads || (time < view.partial && (lanes & ~view.lanes) == 0);
}

bool covers(const WarpView& view, Time time, std::uint32_t lanes) {
  return time < view.full || (time < view.partial && (lanes & ~view.lanes) == 0);
}

std::uint32_t bit(int lane) { return lane == kEveryLane ? 0 : 1U << lane; }

template <typename Visit>
void for_units(std::uint32_t address, std::uint32_t bytes, Visit&& visit) {
  for (std::uint32_t unit = address / kUnitBytes, last = (address + bytes - 1) / kUnitBytes; unit <= last;
       ++unit)
    visit(unit);
}

}  // namespace

void View::join(const View& other, int warp_count, int barrier_count) {
  for (int i = 0; i < warp_count; ++i) gpu_model::join(warps[i], other.warps[i]);
  for (int i = 0; i < barrier_count; ++i) phases[i] = std::max(phases[i], other.phases[i]);
  phases[kPredecessors] = std::max(phases[kPredecessors], other.phases[kPredecessors]);
}

void Knowledge::join(const Knowledge& other, int warp_count, int barrier_count) {
  seen.join(other.seen, warp_count, barrier_count);
  fenced.join(other.fenced, warp_count, barrier_count);
}

Shadow::Shadow() : cells_(new Cell[kUnits]()) {
  void* memory =
      mmap(nullptr, kReadsBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  reads_ = static_cast<Reads*>(memory);
}

Shadow::~Shadow() { munmap(reads_, kReadsBytes); }

void Shadow::reset(int warp_count) {
  if (time_ > kLateTime) {
    std::fill(cells_.get(), cells_.get() + kUnits, Cell{});
    madvise(reads_, kReadsBytes, MADV_DONTNEED);
    time_ = 1;
  }
  base_ = tick();  // what is older counts as never written
  warps_ = warp_count;
  barriers_ = 0;
}

// --- synchronisation ---

void Shadow::sync(WarpClock& warp) {
  warp.time = tick();
  warp.knowledge.seen.warps[warp.warp].full = warp.time;
}

void Shadow::meet(WarpClock& warp) {
  warp.time = tick();
  warp.knowledge.seen.warps[warp.warp].reads = warp.time;
}

void Shadow::release(WarpClock& warp, int lane, Knowledge& to) {
  Knowledge mine = warp.knowledge;
  join(mine.seen.warps[warp.warp], {0, warp.time + 1, bit(lane), 0});
  to.join(mine, warps_, barriers_);
  warp.time = tick();
}

void Shadow::release_all(WarpClock& warp, Knowledge& to, bool syncs) {
  Knowledge mine = warp.knowledge;
  mine.seen.warps[warp.warp].full = warp.time + 1;
  to.join(mine, warps_, barriers_);
  warp.time = tick();
  if (syncs) warp.knowledge.seen.warps[warp.warp].full = warp.time;
}

void Shadow::acquire(WarpClock& warp, const Knowledge& from) const {
  warp.knowledge.join(from, warps_, barriers_);
}

void Shadow::fence(WarpClock& warp, int lane) {
  Knowledge& k = warp.knowledge;
  k.fenced.join(k.seen, warps_, barriers_);
  join(k.fenced.warps[warp.warp], {0, warp.time + 1, bit(lane), 0});
  warp.time = tick();  // what this lane writes from now on needs another fence
}

// --- accesses ---

bool Shadow::visible(const View& view, const Cell& cell) const {
  if (cell.writer >= kBarrierWriter) return cell.time <= view.phases[cell.writer - kBarrierWriter];
  return covers(view.warps[cell.writer], cell.time, bit(cell.lane));
}

void Shadow::check_read(const WarpClock& warp, int lane, std::uint32_t unit, Proxy proxy, Place at) const {
  const Cell& cell = cells_[unit];
  if (cell.flying != 0) fail("reads what a copy is still writing", unit, at);
  if (!written(cell)) fail("reads what nobody has written", unit, at);
  if (cell.same != 0) return;  // whose write it was cannot matter
  const bool own = cell.writer == warp.warp && cell.lane == lane;
  if (!own && !visible(warp.knowledge.seen, cell)) {
    if (cell.writer == warp.warp) fail("reads another lane's write without __syncwarp", unit, at);
    if (cell.writer >= kBarrierWriter)
      fail("reads a bulk copy's bytes whose mbarrier it has not waited for", unit, at);
    fail("reads another warp's write that nothing orders before it", unit, at);
  }
  if (proxy == Proxy::async && cell.writer < kBarrierWriter && !visible(warp.knowledge.fenced, cell))
    fail("reads ordinary writes by the asynchronous proxy without fence.proxy.async", unit, at);
}

void Shadow::check_write(const WarpClock& warp, int lane, std::uint32_t unit, Proxy proxy, Place at) const {
  const Cell& cell = cells_[unit];
  if (cell.flying != 0) fail("writes what a copy is still writing", unit, at);
  if (cell.reading != 0) fail("writes what an asynchronous operation still reads", unit, at);
  if (!written(cell)) return;
  const View& seen = warp.knowledge.seen;
  const bool own = cell.writer == warp.warp && cell.lane == lane;
  if (!own && !visible(seen, cell)) fail("writes what another thread has written, in no order", unit, at);
  if (proxy == Proxy::async && cell.writer < kBarrierWriter && !visible(warp.knowledge.fenced, cell))
    fail("overwrites ordinary writes by the asynchronous proxy without fence.proxy.async", unit, at);
  const Reads* reads = reads_ + unit / kGroup * kGroup * kMostWarps + unit % kGroup;
  for (std::uint32_t left = cell.readers; left != 0; left &= left - 1) {
    const int reader = std::countr_zero(left);
    const Reads& read = reads[reader * kGroup];
    const std::uint32_t others = reader == warp.warp ? read.lanes & ~bit(lane) : read.lanes;
    if (!(reader == warp.warp && others == 0) && !covers_read(seen.warps[reader], read.time, others)) {
      const std::string what =
          tessera::core::concat("writes what warp ", reader, " has read, in no order after the read");
      fail(what.c_str(), unit, at);
    }
  }
}

void Shadow::note_read(const WarpClock& warp, int lane, std::uint32_t unit) {
  Reads& read =
      reads_[unit / kGroup * kGroup * kMostWarps + static_cast<unsigned>(warp.warp) * kGroup + unit % kGroup];
  const std::uint32_t mine = 1U << warp.warp;
  const bool ongoing =
      (cells_[unit].readers & mine) != 0 && read.time >= warp.knowledge.seen.warps[warp.warp].full;
  read = {warp.time, bit(lane) | (ongoing ? read.lanes : 0)};
  cells_[unit].readers |= mine;
}

void Shadow::read(const WarpClock& warp, int lane, std::uint32_t address, std::uint32_t bytes, Proxy proxy,
                  Place at) {
  Cell before;  // neighbours are mostly alike: checked once
  bool first = true;
  for_units(address, bytes, [&](std::uint32_t unit) {
    if (first || !(before == cells_[unit])) check_read(warp, lane, unit, proxy, at);
    first = false, before = cells_[unit];
    note_read(warp, lane, unit);
  });
}

void Shadow::check_same(const WarpClock& warp, int lane, std::uint32_t address, std::uint32_t bytes,
                        Place at) const {
  for_units(address, bytes, [&](std::uint32_t unit) { check_read(warp, lane, unit, Proxy::generic, at); });
}

void Shadow::read_any(const WarpClock& warp, int lane, std::uint32_t address, std::uint32_t bytes, Place at) {
  for_units(address, bytes, [&](std::uint32_t unit) {
    if (!written(cells_[unit])) return;
    check_read(warp, lane, unit, Proxy::generic, at);
    note_read(warp, lane, unit);
  });
}

void Shadow::write(const WarpClock& warp, int lane, std::uint32_t address, std::uint32_t bytes, Place at,
                   Value value) {
  const std::uint32_t place = offset_of(at);
  for_units(address, bytes, [&](std::uint32_t unit) {
    if (value == Value::unchanged && written(cells_[unit])) return;
    check_write(warp, lane, unit, Proxy::generic, at);
    cells_[unit] = {.time = warp.time,
                    .place = place,
                    .same = value != Value::any,
                    .writer = static_cast<std::uint8_t>(warp.warp),
                    .lane = static_cast<std::uint8_t>(lane)};
  });
}

void Shadow::begin_read(const WarpClock& warp, int lane, std::uint32_t address, std::uint32_t bytes,
                        Place at) {
  for_units(address, bytes, [&](std::uint32_t unit) {
    check_read(warp, lane, unit, Proxy::async, at);
    ++cells_[unit].reading;
  });
}

void Shadow::end_read(const WarpClock& warp, int lane, std::uint32_t address, std::uint32_t bytes) {
  for_units(address, bytes, [&](std::uint32_t unit) {
    --cells_[unit].reading;
    note_read(warp, lane, unit);
  });
}

void Shadow::begin_copy(const WarpClock& warp, int lane, std::uint32_t address, std::uint32_t bytes,
                        Place at) {
  write(warp, lane, address, bytes, at);
  for_units(address, bytes, [&](std::uint32_t unit) { cells_[unit].flying = 1; });
}

void Shadow::end_copy(const WarpClock& warp, int lane, std::uint32_t address, std::uint32_t bytes) {
  for_units(address, bytes, [&](std::uint32_t unit) {
    Cell& cell = cells_[unit];
    cell.flying = 0, cell.time = warp.time, cell.lane = static_cast<std::uint8_t>(lane);
  });
}

void Shadow::begin_load(const WarpClock& warp, int lane, std::uint32_t address, std::uint32_t bytes,
                        int barrier, Time id, Place at) {
  const std::uint32_t place = offset_of(at);
  for_units(address, bytes, [&](std::uint32_t unit) {
    check_write(warp, lane, unit, Proxy::async, at);
    cells_[unit] = {.time = id,
                    .place = place,
                    .writer = static_cast<std::uint8_t>(kBarrierWriter + barrier),
                    .lane = kEveryLane,
                    .flying = 1};
  });
}

void Shadow::end_load(std::uint32_t address, std::uint32_t bytes) {
  for_units(address, bytes, [&](std::uint32_t unit) { cells_[unit].flying = 0; });
}

void Shadow::use_barrier(const WarpClock& warp, int lane, std::uint32_t address, Place at) const {
  const std::uint32_t unit = address / kUnitBytes;
  const Cell& cell = cells_[unit];
  const bool own = cell.writer == warp.warp && cell.lane == lane;
  if (!own && !visible(warp.knowledge.seen, cell))
    fail("uses an mbarrier whose initialisation nothing orders before it", unit, at);
}

void Shadow::fail(const char* what, std::uint32_t unit, Place at) const {
  using tessera::core::concat;
  const Cell& cell = cells_[unit];
  std::string text = concat(what, ": byte ", unit * kUnitBytes, " of shared memory");
  if (written(cell)) {
    text += cell.writer >= kBarrierWriter ? std::string(", written by the bulk copy of ")
            : cell.lane == kEveryLane
                ? concat(", written by warp ", int{cell.writer}, " at ")
                : concat(", written by warp ", int{cell.writer}, " lane ", int{cell.lane}, " at ");
    text += describe(&__executable_start + cell.place);
  }
  gpu_model::fail(text, at);
}

}  // namespace gpu_model
