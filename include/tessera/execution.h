/// \file
/// Execution: where a call runs and what it may use.
#pragma once

#include <cstddef>

#include "tessera/export.h"

namespace tessera {

/// Runs the parallel parts of CPU kernels on the caller's own threads.
///
/// What `concurrency` and `run` throw leaves the call unchanged, but for std::bad_alloc and std::length_error, which
/// become Error (out_of_memory). Nothing is leaked and the library stays usable; outputs may be partly written.
class TESSERA_API Executor {
 public:
  virtual ~Executor();

  /// How many workers are worth starting; at least 1.
  [[nodiscard]] virtual int concurrency() const = 0;

  /// Calls body(context, w) once for every w in [0, workers), on any threads, in any order, together or one
  /// after the other, and returns when all have returned. The body does not throw. When `run` throws, no body
  /// may be running, nor run later.
  virtual void run(int workers, void (*body)(void* context, int worker), void* context) = 0;
};

/// Supplies workspace. Must be safe from several threads when calls come from several threads.
///
/// What `allocate` throws leaves the call as it does from an Executor, with the outputs untouched.
class TESSERA_API Allocator {
 public:
  virtual ~Allocator();

  /// `bytes` > 0 of memory of the device the call runs on, aligned to `alignment` (a power of two), or null
  /// when there is none. `stream` is the call's stream (null on the CPU).
  virtual void* allocate(std::size_t bytes, std::size_t alignment, void* stream) = 0;

  /// Takes back what `allocate` gave, with the same sizes. Should not throw: that leaves the call although its
  /// outputs are complete, unless the call fails for another reason, which then counts.
  virtual void deallocate(void* data, std::size_t bytes, std::size_t alignment, void* stream) = 0;
};

/// Memory the caller lends for the time of a call, in the memory of its device. The call may write all of it: nothing
/// else that the call uses may lie there (Error invalid_argument).
struct Workspace {
  void* data = nullptr;   ///< Aligned to 256 bytes.
  std::size_t bytes = 0;  ///< At least Plan::workspace_bytes.
};

/// Where and with what a call runs. The default: all cores, a pool of the library's own, default memory.
/// A result never depends on anything in here.
///
/// The pool's threads are named tessera-1, tessera-2 ... and leave the process's signals to its other threads.
/// They end when the process exits or the library is unloaded (tessera::static in a plugin); calls from destructors
/// that run later use their own thread alone. A forked child starts threads of its own.
struct Execution {
  /// CPU threads. 0: as many as the executor has. The library's pool has one for every CPU that the process may use by
  /// its affinity and its cgroups' quota. It asks once, in the first call; where that changes later, set the number here.
  int threads = 0;
  Executor* executor = nullptr;  ///< The caller's threads; null: the library's pool.
  void* stream = nullptr;        ///< The cudaStream_t to launch on (CUDA only).
  Workspace workspace{};         ///< Workspace the caller lends; empty: taken from the allocator.
  Allocator* allocator =
      nullptr;  ///< Where workspace comes from; null: the system, or a stream-ordered pool of the GPU.
};

}  // namespace tessera
