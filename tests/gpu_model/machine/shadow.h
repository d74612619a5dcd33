// What a thread block knows about each byte of its shared memory: who wrote it, by which proxy, and
// who has read it since; and what each warp knows about the others.
//
// Time. A clock ticks at every synchronisation. An access carries the time of its warp; a warp's
// time moves on when the warp synchronises or one of its lanes releases something.
//
// Views. Of every warp a view holds three numbers: it sees all accesses before `full`, and those of
// `lanes` before `partial`. A lane that arrives at an mbarrier releases its own accesses and what
// its warp knew at its last __syncwarp, but not what other lanes did since. Where two lanes of a
// warp release to the same view, the view keeps the later time for both, which may hide an error
// but never invents one.
//
// Reads. When the lanes of a warp meet at any instruction, what they have read before is there: the
// hardware keeps a warp's accesses to shared memory in order. So a vote or a shuffle orders the
// reads before it, though no writes.
//
// Proxies. The copy engine and wgmma see ordinary writes only behind a fence.proxy.async. So
// everything is known twice: `seen`, and `fenced`, what was seen when a fence came after it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "gpu_model/machine/machine.h"

namespace gpu_model {

using Time = std::uint32_t;

inline constexpr int kMostWarps = 32, kMostBarriers = 64;
inline constexpr std::uint32_t kWindowBytes = 288 * 1024;
inline constexpr int kUnitBytes = 2;  // the shadow's resolution
inline constexpr int kEveryLane = 255;
// The phase entry of a view that stands for griddepcontrol.wait.
inline constexpr int kPredecessors = kMostBarriers;

struct WarpView {
  Time full = 0, partial = 0;
  std::uint32_t lanes = 0;
  Time reads = 0;  // reads before it are over, whatever lane they were of
};

struct View {
  WarpView warps[kMostWarps];
  Time phases[kMostBarriers + 1] = {};  // of mbarriers: the last one that is complete

  void join(const View& other, int warp_count, int barrier_count);
};

struct Knowledge {
  View seen, fenced;
  void join(const Knowledge& other, int warp_count, int barrier_count);
};

// A warp's time and what it knows. Its own entry says what its lanes know of each other.
struct WarpClock {
  int warp = 0;
  Time time = 0;
  Knowledge knowledge;
};

enum class Proxy { generic, async };

// Of a write: any, or the same that other threads may be storing in the same place; then whether it
// stood there before.
enum class Value { any, same, unchanged };

class Shadow {
 public:
  Shadow();
  ~Shadow();
  Shadow(const Shadow&) = delete;
  Shadow& operator=(const Shadow&) = delete;

  // Forgets everything; shared memory is [kReservedBytes, dynamic_end) and what `allow` adds.
  void reset(int warp_count);
  void set_barriers(int count) { barriers_ = count; }
  Time tick() { return ++time_; }
  [[nodiscard]] Time base() const { return base_; }

  // --- synchronisation ---
  void sync(WarpClock& warp);                                    // all lanes of a warp
  void meet(WarpClock& warp);                                    // the same for reads alone
  void release(WarpClock& warp, int lane, Knowledge& to);        // one lane
  void release_all(WarpClock& warp, Knowledge& to, bool syncs);  // all lanes
  void acquire(WarpClock& warp, const Knowledge& from) const;
  void fence(WarpClock& warp, int lane);

  // --- accesses, before they happen; they fail with a message ---
  void read(const WarpClock& warp, int lane, std::uint32_t address, std::uint32_t bytes, Proxy proxy,
            Place at);
  void write(const WarpClock& warp, int lane, std::uint32_t address, std::uint32_t bytes, Place at,
             Value value = Value::any);

  // A read that another thread's write of the same value need not wait for.
  void check_same(const WarpClock& warp, int lane, std::uint32_t address, std::uint32_t bytes,
                  Place at) const;
  // A read of what may never have been written.
  void read_any(const WarpClock& warp, int lane, std::uint32_t address, std::uint32_t bytes, Place at);

  // An asynchronous read: from its issue, which checks the order, to its end.
  void begin_read(const WarpClock& warp, int lane, std::uint32_t address, std::uint32_t bytes, Place at);
  void end_read(const WarpClock& warp, int lane, std::uint32_t address, std::uint32_t bytes);

  // A copy of a thread (cp.async), and one of the engine whose bytes arrive at phase `id` of a
  // barrier.
  void begin_copy(const WarpClock& warp, int lane, std::uint32_t address, std::uint32_t bytes, Place at);
  void end_copy(const WarpClock& warp, int lane, std::uint32_t address, std::uint32_t bytes);
  void begin_load(const WarpClock& warp, int lane, std::uint32_t address, std::uint32_t bytes, int barrier,
                  Time id, Place at);
  void end_load(std::uint32_t address, std::uint32_t bytes);

  // Whether an mbarrier's initialisation is visible to a lane.
  void use_barrier(const WarpClock& warp, int lane, std::uint32_t address, Place at) const;

 private:
  struct Cell {
    Time time = 0;
    std::uint32_t place = 0;    // of the write, from the program's beginning
    std::uint32_t readers = 0;  // warps that have read it since
    std::uint8_t same = 0;      // stored by `Value::same`: the writer is one of several
    std::uint8_t writer = 0, lane = 0;
    std::uint8_t flying = 0;   // a copy is writing it
    std::uint8_t reading = 0;  // asynchronous operations that read it
    bool operator==(const Cell&) const = default;
  };
  struct Reads {
    Time time;
    std::uint32_t lanes;  // 0: an instruction of the whole warp
  };

  [[nodiscard]] bool visible(const View& view, const Cell& cell) const;
  [[nodiscard]] bool written(const Cell& cell) const { return cell.time >= base_; }
  void check_read(const WarpClock& warp, int lane, std::uint32_t unit, Proxy proxy, Place at) const;
  void check_write(const WarpClock& warp, int lane, std::uint32_t unit, Proxy proxy, Place at) const;
  void note_read(const WarpClock& warp, int lane, std::uint32_t unit);
  [[noreturn]] void fail(const char* what, std::uint32_t unit, Place at) const;

  int warps_ = 0, barriers_ = 0;
  Time time_ = 1, base_ = 1;
  std::unique_ptr<Cell[]> cells_;
  Reads* reads_;  // [unit / 8][warp][unit % 8]: pages appear when they are touched
};

}  // namespace gpu_model
