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

  // A computing warp group: its places in the rings, and what it checks at every step.
  struct Computing {
    Pipeline& p;
    const int g;
    Place q{static_cast<unsigned>(p.c_.q_stages)}, k{static_cast<unsigned>(p.c_.k_stages)},
        v{static_cast<unsigned>(p.c_.v_stages)}, t{kTileSlots};
    int job = -1, before = -1;
    int last_tag = -1;  // whose P waits for its V

    // Until the stage at a place, wherever that is by then, is full.
    static Until full(const std::vector<Stage>& stages, const Place& at) {
      return {[&] { return stages[at.slot()].full.complete(at.phase()); }};
    }
    Until k_full() const { return full(p.k_, k); }
    Until v_full() const { return full(p.v_, v); }
    Until tile_full() const { return full(p.tiles_, t); }
    Until q_full() const {
      return {[this] { return p.queries(q, g).full.complete(q.phase()); }};
    }
    Until my_turn() const {
      return {[this] { return !p.c_.alternate || p.turns_[static_cast<std::size_t>(g)] > 0; }};
    }
    static Until later() {
      return {[] { return true; }};
    }

    void begin_turn() { p.turns_[static_cast<std::size_t>(g)] -= p.c_.alternate; }
    void pass_turn_to(std::size_t group) { p.wrong += p.c_.alternate && ++p.turns_[group] > 1; }
    void pass_turn() { pass_turn_to(static_cast<std::size_t>(g + 1) % p.turns_.size()); }

    void check(int found, int expected) { p.wrong += found != expected; }
    void check_queries() { check(p.queries(q, g).tag, job); }
    void check_keys(int step) { check(p.k_[k.slot()].tag, tag(static_cast<std::size_t>(job), step)); }
    void check_values() { check(p.v_[v.slot()].tag, last_tag); }
    // The tile before is still there when its output is stored.
    void check_tile_before() { check(p.tiles_[(t.slot() + kTileSlots - 1) % kTileSlots].tag, before); }

    static void release(std::vector<Stage>& stages, Place& at) {
      stages[at.slot()].empty.arrive();
      ++at.count;
    }
    void release_keys() { release(p.k_, k); }
    void release_values() { release(p.v_, v); }
    void release_queries() { p.queries(q, g).empty.arrive(); }
    // P of the last step has been multiplied by its V.
    void finish_values() {
      check_values(), ++p.multiplied;
      release_values();
    }
  };

  Actor compute(int g) {
    Computing at{*this, g};
    const auto group = static_cast<std::size_t>(g);
    const bool overlap = c_.overlap_tiles();
    const Until k_full = at.k_full(), v_full = at.v_full(), q_full = at.q_full();
    const Until my_turn = at.my_turn(), tile_full = at.tile_full(), later = Computing::later();

    if (c_.alternate && group + 1 == turns_.size()) at.pass_turn_to(0);
    bool first = true;
    while (true) {
      co_await tile_full;
      at.before = at.job, at.job = tiles_[at.t.slot()].tag;
      if (at.job < 0) break;
      const Job& work = jobs_[static_cast<std::size_t>(at.job)];
      const Steps own = work.own[group];
      for (int skip = work.steps.top; skip > own.top; --skip) {
        co_await k_full;
        co_await my_turn;
        at.begin_turn(), at.pass_turn();
        at.release_keys();
      }
      if (!first && overlap) {  // change_tile
        co_await v_full;
        co_await my_turn;
        at.begin_turn();
        at.check_values();
        co_await q_full;
        at.check_queries();
        co_await k_full;
        at.pass_turn();
        co_await later;
        at.finish_values();
        at.check_tile_before();
      } else {
        co_await q_full;
        at.check_queries();
        co_await k_full;
        co_await my_turn;
        at.begin_turn(), at.pass_turn();
        co_await later;
        if (!first) at.check_tile_before();
      }
      co_await later;
      at.check_keys(own.top);
      at.check_queries();
      at.release_keys();
      if (own.top == own.bottom) at.release_queries();
      while (at.v.count + 1 != at.k.count) {
        co_await v_full;
        at.release_values();
      }
      at.last_tag = tag(static_cast<std::size_t>(at.job), own.top);
      for (int step = own.top - 1; step >= own.bottom; --step) {
        co_await k_full;
        co_await my_turn;
        at.begin_turn();
        at.check_keys(step);
        co_await v_full;
        at.check_values();
        at.pass_turn();
        co_await later;
        at.check_keys(step);
        at.check_queries();
        at.release_keys();
        if (step == own.bottom) at.release_queries();
        co_await later;
        at.finish_values();
        at.last_tag = tag(static_cast<std::size_t>(at.job), step);
      }
      ++at.q.count;
      for (int skip = own.bottom; skip > work.steps.bottom; --skip) {
        co_await k_full;
        co_await my_turn;
        at.begin_turn(), at.pass_turn();
        at.release_keys();
      }
      if (!overlap) {  // last_values
        co_await v_full;
        co_await my_turn;
        at.begin_turn();
        at.check_values();
        at.pass_turn();
        co_await later;
        at.finish_values();
        while (at.v.count != at.k.count) {
          co_await v_full;
          at.release_values();
        }
      }
      ++at.t.count;
      first = false;
    }
    if (overlap && !first) {
      co_await v_full;
      at.finish_values();
      while (at.v.count != at.k.count) {
        co_await v_full;
        at.release_values();
      }
    }
    if (c_.alternate && group == 0) {
      co_await my_turn;
      at.begin_turn();
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
