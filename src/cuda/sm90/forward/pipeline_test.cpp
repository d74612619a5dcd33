// The protocol between the loading and the computing warp groups of the Hopper forward kernel,
// played on the host: actors that run in random order perform every wait, arrival and turn of
// loader.cuh and consumer.cuh. No actor waits for ever, and none reads a stage that has been
// overwritten.
#if TESSERA_HAVE_CUDA

#include <gtest/gtest.h>

#include <array>
#include <coroutine>
#include <functional>
#include <random>
#include <vector>

#include "cuda/sm90/forward/table.h"

namespace tessera::cuda::sm90::forward {
namespace {

// A warp group. It suspends at every wait.
struct Actor {
  struct promise_type {
    std::function<bool()> ready = [] { return true; };
    Actor get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { throw; }
  };
  std::coroutine_handle<promise_type> handle;
};

struct Until {
  std::function<bool()> ready;
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<Actor::promise_type> h) const { h.promise().ready = ready; }
  void await_resume() const noexcept {}
};

// An mbarrier: complete(p) is what try_wait.parity says.
struct Mbarrier {
  int count = 1, pending = 1;
  unsigned phase = 0;
  explicit Mbarrier(int arrivals = 1) : count(arrivals), pending(arrivals) {}
  void arrive() {
    if (--pending == 0) pending = count, phase ^= 1;
  }
  bool complete(unsigned parity) const { return phase != parity; }
};

struct Place {  // as Ring in ring.cuh
  unsigned slots, count = 0;
  unsigned slot() const { return count % slots; }
  unsigned phase() const { return count / slots & 1; }
};

struct Stage {
  Mbarrier full, empty;
  int tag = -1;  // what it holds
};

struct Job {
  Steps steps;
  std::vector<Steps> own;  // of each warp group
};

class Pipeline {
 public:
  Pipeline(const Config& c, std::vector<Job> jobs)
      : c_(c), jobs_(std::move(jobs)), turns_(static_cast<std::size_t>(c.warp_groups), 0) {
    auto stages = [&](int n) {
      return std::vector<Stage>(static_cast<std::size_t>(n), {Mbarrier(), Mbarrier(c.warp_groups)});
    };
    k_ = stages(c.k_stages), v_ = stages(c.v_stages);
    q_.resize(static_cast<std::size_t>(c.q_stages * c.q_parts()),
              {Mbarrier(), Mbarrier(c.warp_groups / c.q_parts())});
    tiles_.resize(kTileSlots);
  }

  // False if it hangs.
  bool run(unsigned seed) {
    std::mt19937 random(seed);
    std::vector<Actor> actors{load()};
    for (int g = 0; g < c_.warp_groups; ++g) actors.push_back(compute(g));
    while (true) {
      std::vector<std::coroutine_handle<Actor::promise_type>> able;
      bool done = true;
      for (const Actor& actor : actors) {
        done = done && actor.handle.done();
        if (!actor.handle.done() && actor.handle.promise().ready()) able.push_back(actor.handle);
      }
      if (able.empty()) {
        for (const Actor& actor : actors) actor.handle.destroy();
        return done;
      }
      able[random() % able.size()].resume();
    }
  }

  int wrong = 0, multiplied = 0;

 private:
  // A warp group's part of a stage of Q.
  Stage& queries(const Place& at, int group) {
    const int part = group * c_.q_parts() / c_.warp_groups;
    return q_[static_cast<std::size_t>(static_cast<int>(at.slot()) * c_.q_parts() + part)];
  }
  static int tag(std::size_t job, int step) { return static_cast<int>(job) * 1000 + step; }

  Actor load() {
    Place q{static_cast<unsigned>(c_.q_stages)}, k{static_cast<unsigned>(c_.k_stages)},
        v{static_cast<unsigned>(c_.v_stages)}, t{kTileSlots};
    int waiting = -1;
    auto announce = [&](int job) {
      Stage& slot = tiles_[t.slot()];
      slot.tag = job;
      slot.full.arrive();
      ++t.count;
    };
    auto fill = [](std::vector<Stage>& stages, Place& at, int what) {
      stages[at.slot()].tag = what;
      stages[at.slot()].full.arrive();
      ++at.count;
    };
    int group = 0;  // whose part of Q comes next
    const Until q_empty{[&] { return queries(q, group).empty.complete(q.phase() ^ 1); }};
    auto fill_queries = [&](int job) {
      queries(q, group).tag = job;
      queries(q, group).full.arrive();
    };
    if (!jobs_.empty()) announce(0);
    if (!jobs_.empty() && c_.overlap_tiles()) {
      for (group = 0; group < c_.q_parts(); ++group) {
        co_await q_empty;
        fill_queries(0);
      }
      ++q.count;
    }
    for (std::size_t job = 0; job < jobs_.size(); ++job) {
      const bool more = job + 1 < jobs_.size();
      const Steps steps = jobs_[job].steps;
      for (int step = steps.top; step >= steps.bottom; --step) {
        co_await Until{[&] { return k_[k.slot()].empty.complete(k.phase() ^ 1); }};
        fill(k_, k, tag(job, step));
        if (!c_.overlap_tiles() && step == steps.top) {
          for (group = 0; group < c_.q_parts(); ++group) {
            co_await q_empty;
            fill_queries(static_cast<int>(job));
          }
          ++q.count;
        }
        if (waiting >= 0) {
          co_await Until{[&] { return v_[v.slot()].empty.complete(v.phase() ^ 1); }};
          fill(v_, v, waiting);
        }
        waiting = tag(job, step);
        if (more && step == std::max(steps.top - 1, steps.bottom)) {
          announce(static_cast<int>(job) + 1);
          if (c_.overlap_tiles()) {
            for (group = 0; group < c_.q_parts(); ++group) {
              co_await q_empty;
              fill_queries(static_cast<int>(job) + 1);
            }
            ++q.count;
          }
        }
      }
      if (!c_.overlap_tiles()) {
        co_await Until{[&] { return v_[v.slot()].empty.complete(v.phase() ^ 1); }};
        fill(v_, v, waiting);
        waiting = -1;
      }
    }
    if (waiting >= 0) {
      co_await Until{[&] { return v_[v.slot()].empty.complete(v.phase() ^ 1); }};
      fill(v_, v, waiting);
    }
    announce(-1);
  }

  static void release(std::vector<Stage>& stages, Place& at) {
    stages[at.slot()].empty.arrive();
    ++at.count;
  }
  // Until the stage at a place, wherever that is by then, is full.
  static Until full(const std::vector<Stage>& stages, const Place& at) {
    return {[&] { return stages[at.slot()].full.complete(at.phase()); }};
  }

  Actor compute(int g) {
    Place q{static_cast<unsigned>(c_.q_stages)}, k{static_cast<unsigned>(c_.k_stages)},
        v{static_cast<unsigned>(c_.v_stages)}, t{kTileSlots};
    const auto group = static_cast<std::size_t>(g);
    const bool overlap = c_.overlap_tiles();
    int job = -1, before = -1;
    Steps own;
    auto check = [&](int found, int expected) { wrong += found != expected; };
    auto pass = [&](std::size_t to) { wrong += c_.alternate && ++turns_[to] > 1; };
    const std::size_t next = (group + 1) % turns_.size();
    const Until my_turn{[&] { return !c_.alternate || turns_[group] > 0; }};
    auto begin = [&] { turns_[group] -= c_.alternate; };
    const Until k_full = full(k_, k), v_full = full(v_, v);
    const Until q_full{[&] { return queries(q, g).full.complete(q.phase()); }};
    const Until tile_full = full(tiles_, t);
    const Until later{[] { return true; }};

    if (c_.alternate && group + 1 == turns_.size()) pass(0);
    bool first = true;
    int last_tag = -1;  // whose P waits for its V
    while (true) {
      co_await tile_full;
      before = job, job = tiles_[t.slot()].tag;
      if (job < 0) break;
      const Job& work = jobs_[static_cast<std::size_t>(job)];
      own = work.own[group];
      for (int skip = work.steps.top; skip > own.top; --skip) {
        co_await k_full;
        co_await my_turn;
        begin(), pass(next);
        release(k_, k);
      }
      if (!first && overlap) {  // change_tile
        co_await v_full;
        co_await my_turn;
        begin();
        check(v_[v.slot()].tag, last_tag);
        co_await q_full;
        check(queries(q, g).tag, job);
        co_await k_full;
        pass(next);
        co_await later;
        check(v_[v.slot()].tag, last_tag), ++multiplied;
        release(v_, v);
        check(tiles_[(t.slot() + kTileSlots - 1) % kTileSlots].tag, before);  // stores its output
      } else {
        co_await q_full;
        check(queries(q, g).tag, job);
        co_await k_full;
        co_await my_turn;
        begin(), pass(next);
        co_await later;
        if (!first) check(tiles_[(t.slot() + kTileSlots - 1) % kTileSlots].tag, before);
      }
      co_await later;
      check(k_[k.slot()].tag, tag(static_cast<std::size_t>(job), own.top));
      check(queries(q, g).tag, job);
      release(k_, k);
      if (own.top == own.bottom) queries(q, g).empty.arrive();
      while (v.count + 1 != k.count) {
        co_await v_full;
        release(v_, v);
      }
      last_tag = tag(static_cast<std::size_t>(job), own.top);
      for (int step = own.top - 1; step >= own.bottom; --step) {
        co_await k_full;
        co_await my_turn;
        begin();
        check(k_[k.slot()].tag, tag(static_cast<std::size_t>(job), step));
        co_await v_full;
        check(v_[v.slot()].tag, last_tag);
        pass(next);
        co_await later;
        check(k_[k.slot()].tag, tag(static_cast<std::size_t>(job), step));
        check(queries(q, g).tag, job);
        release(k_, k);
        if (step == own.bottom) queries(q, g).empty.arrive();
        co_await later;
        check(v_[v.slot()].tag, last_tag), ++multiplied;
        release(v_, v);
        last_tag = tag(static_cast<std::size_t>(job), step);
      }
      ++q.count;
      for (int skip = own.bottom; skip > work.steps.bottom; --skip) {
        co_await k_full;
        co_await my_turn;
        begin(), pass(next);
        release(k_, k);
      }
      if (!overlap) {  // last_values
        co_await v_full;
        co_await my_turn;
        begin();
        check(v_[v.slot()].tag, last_tag);
        pass(next);
        co_await later;
        ++multiplied;
        release(v_, v);
        while (v.count != k.count) {
          co_await v_full;
          release(v_, v);
        }
      }
      ++t.count;
      first = false;
    }
    if (overlap && !first) {
      co_await v_full;
      check(v_[v.slot()].tag, last_tag);
      ++multiplied;
      release(v_, v);
      while (v.count != k.count) {
        co_await v_full;
        release(v_, v);
      }
    }
    if (c_.alternate && group == 0) {
      co_await my_turn;
      begin();
    }
  }

  const Config c_;
  std::vector<Job> jobs_;
  std::vector<Stage> q_, k_, v_, tiles_;
  std::vector<int> turns_;
};

TEST(HopperPipeline, NeitherHangsNorOverwrites) {
  std::mt19937 random(7);
  auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (const Config& c : kConfigs<ptx::Half16::bf16>) {
    for (unsigned round = 0; round < 300; ++round) {
      std::vector<Job> jobs(static_cast<std::size_t>(below(9)));
      int products = 0;
      for (Job& job : jobs) {
        job.steps.bottom = below(3);
        job.steps.top = job.steps.bottom + (below(3) == 0 ? 0 : below(12));
        for (int g = 0; g < c.warp_groups; ++g) {
          const int low = below(16), high = low + below(16);
          job.own.push_back(
              own_steps(job.steps, {high, low}, c.most_skipped_above(g), c.most_skipped_below(g)));
          products += job.own.back().top - job.own.back().bottom + 1;
        }
      }
      Pipeline pipeline(c, jobs);
      ASSERT_TRUE(pipeline.run(round))
          << "hangs: head_dim " << c.qk_dim << ", " << c.warp_groups << " warp groups, round " << round;
      ASSERT_EQ(pipeline.wrong, 0) << "head_dim " << c.qk_dim << ", " << c.warp_groups
                                   << " warp groups, round " << round;
      ASSERT_EQ(pipeline.multiplied, products);
    }
  }
}

TEST(HopperConfigs, LongTilesOfPackedSequencesComeFirstWhereTheyAreFew) {
  for (const Config& c : kConfigs<ptx::Half16::bf16>) {
    EXPECT_EQ(c.packed_order(), c.qk_dim == 256 ? PackedOrder::tiles : PackedOrder::sequences) << c.qk_dim;
  }
}

// The bound on skipped steps prevents hangs: beyond it, this test sees one.
TEST(HopperPipeline, TooManySkippedStepsWouldHang) {
  const Config c = kConfigs<ptx::Half16::bf16>[3];
  std::vector<Job> jobs(4, {{8, 0}, {}});
  for (Job& job : jobs) job.own = {{2, 0}, {8, 6}};
  bool hangs = false;
  for (unsigned seed = 0; seed < 20; ++seed) hangs = hangs || !Pipeline(c, jobs).run(seed);
  EXPECT_TRUE(hangs);
}

}  // namespace
}  // namespace tessera::cuda::sm90::forward

#endif
