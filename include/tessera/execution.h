/// \file
/// Execution: where a call runs and what it may use.
#pragma once

#include <cstddef>

#include "tessera/export.h"

namespace tessera {

/// Runs the parallel parts of CPU kernels on the caller's own threads.
class TESSERA_API Executor {
 public:
  virtual ~Executor();

  /// How many workers are worth starting; at least 1.
  [[nodiscard]] virtual int concurrency() const = 0;

  /// Calls body(context, w) once for every w in [0, workers), on any threads, in any order, together or one
  /// after the other, and returns when all have returned. The body does not throw.
  virtual void run(int workers, void (*body)(void* context, int worker), void* context) = 0;
};

/// Supplies workspace. Must be safe from several threads when calls come from several threads.
class TESSERA_API Allocator {
 public:
  virtual ~Allocator();

  /// `bytes` > 0 of memory of the device the call runs on, aligned to `alignment` (a power of two), or null
  /// when there is none. `stream` is the call's stream (null on the CPU).
  virtual void* allocate(std::size_t bytes, std::size_t alignment, void* stream) = 0;

  /// Takes back what `allocate` gave, with the same sizes. Does not throw.
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
struct Execution {
  int threads = 0;               ///< CPU threads; 0: as many as the machine (or the executor) has.
  Executor* executor = nullptr;  ///< The caller's threads; null: the library's pool.
  void* stream = nullptr;        ///< The cudaStream_t to launch on (CUDA only).
  Workspace workspace{};         ///< Workspace the caller lends; empty: taken from the allocator.
  Allocator* allocator =
      nullptr;  ///< Where workspace comes from; null: the system, or a stream-ordered pool of the GPU.
};

}  // namespace tessera
