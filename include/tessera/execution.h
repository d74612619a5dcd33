/// \file
/// Execution: where a call runs and which resources it uses.
#pragma once

#include <cstddef>

#include "tessera/export.h"

namespace tessera {

/// Runs the parallel parts of CPU kernels on the caller's own threads.
///
/// An exception that `concurrency` or `run` throws leaves the call unchanged, except std::bad_alloc
/// and std::length_error, which become Error (out_of_memory). Nothing is leaked and the library
/// stays usable; outputs may be partly written.
class TESSERA_API Executor {
 public:
  virtual ~Executor();

  /// Returns how many workers are worth starting: from 1 to 4096.
  [[nodiscard]] virtual int concurrency() const = 0;

  /// Calls body(context, w) once for every w in [0, workers) and returns when all calls have
  /// returned. The calls may run on any threads, in any order, concurrently or not. The body does
  /// not throw. When `run` throws, no body may still be running or run later.
  virtual void run(int workers, void (*body)(void* context, int worker), void* context) = 0;
};

/// Supplies workspace. It must be thread-safe when several threads make calls.
///
/// An exception that `allocate` throws leaves the call as one of an Executor does; outputs are
/// untouched.
class TESSERA_API Allocator {
 public:
  virtual ~Allocator();

  /// Returns `bytes` (> 0) of device memory aligned to `alignment` (a power of two), or null when
  /// out of memory. `stream` is the call's stream (null on the CPU).
  virtual void* allocate(std::size_t bytes, std::size_t alignment, void* stream) = 0;

  /// Frees memory that `allocate` returned; the sizes are the same. It should not throw: such an
  /// exception leaves the call although its outputs are complete. When the call has already failed,
  /// the first error counts and this one is dropped.
  virtual void deallocate(void* data, std::size_t bytes, std::size_t alignment, void* stream) = 0;
};

/// Memory of the call's device that the caller lends for the time of one call. The call may
/// overwrite all of it. It must not overlap any other memory that the call uses (Error
/// invalid_argument).
struct Workspace {
  void* data = nullptr;   ///< Aligned to 256 bytes.
  std::size_t bytes = 0;  ///< At least Plan::workspace_bytes.
};

/// Where a call runs and which resources it uses. Default: all cores, the library's thread pool and
/// allocator. No field changes a result.
///
/// **The thread pool.** Its threads are named tessera-1, tessera-2 ... and leave signals to the
/// process's other threads. They end when the process exits or the library is unloaded
/// (tessera::static in a plugin). Calls from destructors that run later use only their own thread.
/// A forked child starts its own threads.
struct Execution {
  /// CPU threads; 0: as many as the executor has, at most 4096. The library's pool has one thread
  /// for every CPU that the process may use by its affinity and the quota of its cgroups, and lends
  /// a call only as many as its work is worth. It reads affinity and quota once, in the first call;
  /// when they change later, set the number here.
  int threads = 0;
  Executor* executor = nullptr;  ///< The caller's threads; null: the library's pool.
  void* stream = nullptr;        ///< The cudaStream_t to launch on (CUDA only).
  Workspace workspace{};         ///< Workspace that the caller lends; empty: use the allocator.
  /// Supplies workspace; null: host memory, or a stream-ordered pool of the GPU.
  Allocator* allocator = nullptr;
};

}  // namespace tessera
