// A model of the Hopper backward kernel's protocol, run on the host. The actors are the loading
// thread and the computing warps. They perform every wait, arrival and turn of loader.cuh,
// consumer.cuh and epilogue.cuh in the same order, and take their steps in random order. No actor
// may wait for ever, and no product may read a stage that holds something else, from its issue
// until it is waited for. The model also shows that each wait is needed: without it, runs fail.
#include <gtest/gtest.h>

#include <array>
#include <coroutine>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace tessera::cuda::sm90::backward {
namespace {

// The loading thread or a computing warp. It yields at every wait.
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

struct Until {  // not an aggregate: GCC 12 destroys those twice in co_await
  explicit Until(std::function<bool()> when) : ready(std::move(when)) {}
  std::function<bool()> ready;
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<Actor::promise_type> h) const { h.promise().ready = ready; }
  void await_resume() const noexcept {}
};

Until later() {
  return Until([] { return true; });
}

// An mbarrier: complete(p) is the result of try_wait.parity.
struct Mbarrier {
  int count, pending;
  unsigned phase = 0;
  explicit Mbarrier(int arrivals = 1) : count(arrivals), pending(arrivals) {}
  void arrive() {
    if (--pending == 0) pending = count, phase ^= 1;
  }
  bool complete(unsigned parity) const { return phase != parity; }
  Until wait(unsigned parity) const {
    return Until([this, parity] { return complete(parity); });
  }
};

// A named barrier, counted in warps: bar.arrive, and bar.sync, which waits.
struct Named {
  int expected, arrived = 0;
  unsigned generation = 0;
  void arrive() {
    if (++arrived == expected) arrived = 0, ++generation;
  }
  Until sync() {
    const unsigned before = generation;
    arrive();
    return Until([this, before] { return generation != before; });
  }
};

// A wait or a stage that a run leaves out, to show that the protocol needs it.
enum class Without {
  nothing,
  scores_empty,
  keys_used,
  keys_empty,
  stores_read,
  second_score_stage,
  products_before_q_empty
};

// A tile of keys, which has `steps` steps for each of `heads` query heads. Careful: its steps clear
// non-finite values from Q and dO.
struct Job {
  int heads, steps;
  bool careful;
};

class BackwardPipeline {
 public:
  static constexpr int kWarps = 8;

  BackwardPipeline(int parts, std::vector<Job> jobs, Without without)
      : parts_(parts),
        score_stages_(without == Without::second_score_stage ? 1 : 2),
        without_(without),
        jobs_(std::move(jobs)) {}

  // False: it hangs.
  bool run(unsigned seed) {
    random_.seed(seed);
    std::vector<Actor> actors{load()};
    for (int w = 0; w < kWarps; ++w) actors.push_back(compute(w / 4, w));
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
      able[random_() % able.size()].resume();
    }
  }

  std::string wrong;  // the first violation
  int steps_done = 0;

 private:
  void expect(bool right, const char* what) {
    if (!right && wrong.empty()) wrong = what;
  }

  Actor load() {
    unsigned keys = 0, queries = 0, tile = 0;
    int step = 0;
    for (std::size_t job = 0; job < jobs_.size(); ++job) {
      if (without_ != Without::keys_empty) co_await keys_empty_[keys % 2].wait((keys / 2 & 1) ^ 1);
      for (const bool storing : storing_[keys % 2]) expect(!storing, "K and V over gradients being stored");
      tiles_[tile % kSlots] = static_cast<int>(job), tile_full_[tile % kSlots].arrive(), ++tile;
      keys_[keys % 2] = static_cast<int>(job), keys_full_[keys % 2].arrive(), ++keys;
      for (int i = 0; i < jobs_[job].heads * jobs_[job].steps; ++i) {
        co_await q_empty_[queries % 2].wait((queries / 2 & 1) ^ 1);
        queries_[queries % 2] = step++;
        q_full_[queries % 2].arrive();
        co_await later();
        grad_out_full_[queries % 2].arrive(), ++queries;
      }
    }
    tiles_[tile % kSlots] = -1, tile_full_[tile % kSlots].arrive();
  }

  // A warp's place in the work: the tile and the step, counted over the whole run.
  struct Place {
    int group, warp;
    unsigned tile = 0, step = 0;
    int job = -1;
  };

  unsigned score_slot(unsigned step) const { return step % static_cast<unsigned>(score_stages_); }
  unsigned score_phase(unsigned step) const { return step / static_cast<unsigned>(score_stages_) & 1; }

  void expect_keys(const Place& at, const char* what) { expect(keys_[at.tile % 2] == at.job, what); }
  void expect_queries(const Place& at, const char* what) {
    expect(queries_[at.step % 2] == static_cast<int>(at.step), what);
  }
  void expect_scores(unsigned step) {
    for (const int stored : scores_[score_slot(step)])
      expect(stored == static_cast<int>(step), "dS of another step");
  }

  // The stores of the tile before have read its room, so the loader may have it.
  void release_keys_before(const Place& at) {
    if (at.tile == 0) return;
    if (without_ != Without::stores_read) storing_[(at.tile - 1) % 2][at.warp] = false;
    keys_empty_[(at.tile - 1) % 2].arrive();
  }

  Actor compute(int group, int warp) {
    Place at{group, warp};
    Named &turn = turn_[group], &others = turn_[1 - group], &product = product_[group], &own = own_[group];
    if (group == 1) turn_[0].arrive();
    for (;; ++at.tile) {
      co_await tile_full_[at.tile % kSlots].wait(at.tile / kSlots & 1);
      at.job = tiles_[at.tile % kSlots];
      if (at.job < 0) break;
      co_await keys_full_[at.tile % 2].wait(at.tile / 2 & 1);
      const Job& job = jobs_[static_cast<std::size_t>(at.job)];
      const int steps = job.heads * job.steps;
      for (int i = 0; i < steps; ++i, ++at.step, ++steps_done) {
        const bool first = i == 0;
        const unsigned slot = score_slot(at.step), before = at.step - 1;
        co_await q_full_[at.step % 2].wait(at.step / 2 & 1);
        if (first) co_await turn.sync();
        co_await product.sync();  // S
        expect_keys(at, "S: K"), expect_queries(at, "S: Q");
        co_await grad_out_full_[at.step % 2].wait(at.step / 2 & 1);
        co_await product.sync();  // dP
        others.arrive();
        co_await later();
        expect_queries(at, "S, waited for: Q");
        for (int part = 0; part < parts_; ++part) {
          co_await own.sync();  // spread_non_finite, as in a masked step
          expect_keys(at, "dP: V"), expect_queries(at, "dP: dO");
          if (part + 1 < parts_) co_await product.sync();
        }
        if (without_ != Without::scores_empty) co_await scores_empty_[slot].wait(score_phase(at.step) ^ 1);
        scores_[slot][warp] = static_cast<int>(at.step);
        co_await later();
        scores_full_[slot].arrive();
        if (job.careful) {  // clear_queries
          co_await scores_full_[slot].wait(score_phase(at.step));
          expect_queries(at, "cleared: Q");
          co_await own.sync();
        }
        co_await turn.sync();
        if (!first) {
          co_await scores_full_[score_slot(before)].wait(score_phase(before));
          co_await product.sync();  // dQ
          expect_scores(before), expect_keys(at, "dQ: K");
        }
        co_await product.sync();  // dV, dK
        if (!first) {
          co_await later();
          expect_scores(before), expect_keys(at, "dQ, waited for: K");
          scores_empty_[score_slot(before)].arrive();
        }
        if (without_ == Without::products_before_q_empty) q_empty_[at.step % 2].arrive();
        co_await later();
        expect_queries(at, "dV and dK: Q and dO");
        if (without_ != Without::products_before_q_empty) q_empty_[at.step % 2].arrive();
        if (first) release_keys_before(at);
      }
      if (steps > 0) {  // last_queries
        const unsigned last = at.step - 1;
        others.arrive();
        co_await scores_full_[score_slot(last)].wait(score_phase(last));
        co_await product.sync();
        expect_scores(last);
        co_await later();
        expect_scores(last), expect_keys(at, "the last dQ: K");
        scores_empty_[score_slot(last)].arrive();
      } else {
        release_keys_before(at);
      }
      if (without_ != Without::keys_used) {
        keys_used_.arrive();
        co_await keys_used_.wait(at.tile & 1);
      }
      keys_[at.tile % 2] =
          -100 - at.job;  // staged gradients: a product that still needs K or V would read them
      storing_[at.tile % 2][warp] = true;
      co_await later();
    }
    if (group == 0) co_await turn_[0].sync();
  }

  static constexpr int kSlots = 4;

  const int parts_, score_stages_;
  const Without without_;
  std::vector<Job> jobs_;
  std::mt19937 random_;
  Mbarrier keys_full_[2], keys_empty_[2]{Mbarrier(kWarps), Mbarrier(kWarps)};
  Mbarrier q_full_[2], grad_out_full_[2], q_empty_[2]{Mbarrier(kWarps), Mbarrier(kWarps)};
  Mbarrier scores_full_[2]{Mbarrier(kWarps), Mbarrier(kWarps)};
  Mbarrier scores_empty_[2]{Mbarrier(kWarps), Mbarrier(kWarps)};
  Mbarrier tile_full_[kSlots], keys_used_{kWarps};
  Named turn_[2]{{8}, {8}}, own_[2]{{4}, {4}}, product_[2]{{4}, {4}};
  int keys_[2] = {-1, -1}, queries_[2] = {-1, -1}, tiles_[kSlots] = {};  // what the stages hold
  std::array<int, kWarps> scores_[2] = {};  // the step whose dS each warp has stored
  bool storing_[2][kWarps] = {};            // gradients that leave through the room of K and V
};

// How many of 300 runs hang or violate the protocol.
int failures(Without without, std::string& first) {
  int count = 0;
  for (const int parts : {1, 2}) {
    for (unsigned seed = 0; seed < 150; ++seed) {
      std::mt19937 random(seed);
      std::vector<Job> jobs(random() % 7);
      int steps = 0;
      for (Job& job : jobs) {
        const int heads = 1 + static_cast<int>(random() % 3), of_each = static_cast<int>(random() % 4);
        job = {heads, of_each, random() % 4 == 0};
        steps += heads * of_each * BackwardPipeline::kWarps;
      }
      BackwardPipeline pipeline(parts, jobs, without);
      const bool ended = pipeline.run(seed);
      const bool failed = !ended || !pipeline.wrong.empty() || pipeline.steps_done != steps;
      if (failed && first.empty()) first = ended ? pipeline.wrong : "it hangs";
      count += failed;
    }
  }
  return count;
}

TEST(HopperBackwardPipeline, NeitherHangsNorOverwrites) {
  std::string first;
  EXPECT_EQ(failures(Without::nothing, first), 0) << first;
}

TEST(HopperBackwardPipeline, EveryWaitIsNeeded) {
  for (const Without without :
       {Without::scores_empty, Without::keys_used, Without::keys_empty, Without::stores_read,
        Without::second_score_stage, Without::products_before_q_empty}) {
    std::string first;
    EXPECT_GT(failures(without, first), 0) << static_cast<int>(without);
  }
}

}  // namespace
}  // namespace tessera::cuda::sm90::backward
