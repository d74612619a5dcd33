#include "cpu/baselines/standard/blas.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "core/base/dynamic_library.h"
#include "core/base/lazy.h"

namespace tessera::cpu {
namespace {

// The C interface of BLAS and the little of OpenBLAS's own that is needed. Enumerators have fixed
// values.
constexpr int kRowMajor = 101, kNoTranspose = 111, kTranspose = 112;
using Sgemm = void (*)(int, int, int, int, int, int, float, const float*, int, const float*, int, float,
                       float*, int);
using Dgemm = void (*)(int, int, int, int, int, int, double, const double*, int, const double*, int, double,
                       double*, int);

struct Library {
  Sgemm sgemm = nullptr;
  Dgemm dgemm = nullptr;
  int (*get_num_threads)() = nullptr;
  void (*set_num_threads)(int) = nullptr;
  char* (*get_config)() = nullptr;
  bool sequential = false;  // built without threads, hence without locks
  std::string missing;
};

Library load() {
  Library library;
  core::DynamicLibrary file;
  if (!file.open("libopenblas.so.0")) {
    library.missing = "OpenBLAS (libopenblas.so.0) is not installed";
    return library;
  }
  int (*get_parallel)() = nullptr;
  file.find(library.sgemm, "cblas_sgemm");
  file.find(library.dgemm, "cblas_dgemm");
  file.find(library.get_num_threads, "openblas_get_num_threads");
  file.find(library.set_num_threads, "openblas_set_num_threads");
  file.find(library.get_config, "openblas_get_config");
  file.find(get_parallel, "openblas_get_parallel");
  library.missing = file.missing();
  library.sequential = library.missing.empty() && get_parallel() == 0;
  return library;
}

// A fork waits until no thread is inside OpenBLAS, because the child would keep what they hold
// there (locks, buffers, a half-loaded library). Threads that want to enter meanwhile wait for the
// fork.
class ForkGate {
 public:
  void enter() {
    while (true) {
      inside_.fetch_add(1);
      if (!closed_.load()) return;
      leave();
      while (closed_.load()) std::this_thread::yield();
    }
  }
  void leave() { inside_.fetch_sub(1); }

  void close() {
    one_fork_.lock();
    closed_.store(true);
    // Not forever: a signal handler may fork inside, and before glibc 2.36 a thread that loads
    // OpenBLAS waits for the end of the fork.
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (inside_.load() != 0 && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
  }
  void open() {
    closed_.store(false);
    one_fork_.unlock();
  }
  void open_in_child() {
    inside_.store(0);  // those at the gate are threads of the parent
    open();
  }

 private:
  std::atomic<int> inside_{0};
  std::atomic<bool> closed_{false};
  std::mutex one_fork_;
};
constinit ForkGate fork_gate;

struct Inside {
  Inside() { fork_gate.enter(); }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  ~Inside() { fork_gate.leave(); }
};

constinit core::Lazy<const Library> loaded_library;

const Library& library() {
  return loaded_library.get([] {
    const Inside inside;
    return load();
  });
}

// How many SingleThreadedBlas live, and OpenBLAS's thread count before the first; 0: it is as it
// was.
struct Holders {
  std::mutex mutex;
  int count = 0;
  int threads_before = 0;
};
constinit Holders holders;

// A build of OpenBLAS without threads hands out its buffers without a lock and is not safe from
// several threads: with Debian's 0.3.21, 1 in 130 concurrent products was wrong. There, one product
// at a time.
constinit std::mutex one_product;

std::unique_lock<std::mutex> sequential_lock() {
  return library().sequential ? std::unique_lock(one_product) : std::unique_lock<std::mutex>();
}

[[maybe_unused]] const int fork_handlers = pthread_atfork(
    [] { fork_gate.close(); }, [] { fork_gate.open(); },
    [] {
      holders.count = 0;  // they were other threads; the thread count is restored by the next one
      fork_gate.open_in_child();
    });

int flag(Transpose transposed) { return transposed == Transpose::yes ? kTranspose : kNoTranspose; }

int narrow(std::int64_t size) { return static_cast<int>(size); }

}  // namespace

const std::string& blas_missing() { return library().missing; }

std::string blas_description() { return library().missing.empty() ? library().get_config() : ""; }

SingleThreadedBlas::SingleThreadedBlas() {
  const Inside inside;
  const std::lock_guard lock(holders.mutex);
  if (holders.count++ > 0) return;
  if (holders.threads_before == 0) holders.threads_before = library().get_num_threads();
  if (holders.threads_before != 1) library().set_num_threads(1);
}

SingleThreadedBlas::~SingleThreadedBlas() {
  const Inside inside;
  const std::lock_guard lock(holders.mutex);
  if (--holders.count > 0) return;
  if (holders.threads_before != 1) library().set_num_threads(holders.threads_before);
  holders.threads_before = 0;
}

void gemm(Transpose a_transposed, Transpose b_transposed, std::int64_t rows, std::int64_t columns,
          std::int64_t depth, float alpha, const float* a, std::int64_t a_row, const float* b,
          std::int64_t b_row, float beta, float* c, std::int64_t c_row) {
  const Inside inside;
  const std::unique_lock lock = sequential_lock();
  library().sgemm(kRowMajor, flag(a_transposed), flag(b_transposed), narrow(rows), narrow(columns),
                  narrow(depth), alpha, a, narrow(a_row), b, narrow(b_row), beta, c, narrow(c_row));
}

void gemm(Transpose a_transposed, Transpose b_transposed, std::int64_t rows, std::int64_t columns,
          std::int64_t depth, double alpha, const double* a, std::int64_t a_row, const double* b,
          std::int64_t b_row, double beta, double* c, std::int64_t c_row) {
  const Inside inside;
  const std::unique_lock lock = sequential_lock();
  library().dgemm(kRowMajor, flag(a_transposed), flag(b_transposed), narrow(rows), narrow(columns),
                  narrow(depth), alpha, a, narrow(a_row), b, narrow(b_row), beta, c, narrow(c_row));
}

}  // namespace tessera::cpu
