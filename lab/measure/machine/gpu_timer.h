// A GPU under measurement: its own stream, its clock, its cache, its memory. Compiled in every
// build; without CUDA, or without such a GPU, the constructors throw Error (unsupported).
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lab/measure/machine/counting_allocator.h"

namespace tessera::lab {

// "NVIDIA H200"; empty when there is no such GPU.
std::string gpu_name(int device);

// Free memory of a GPU in bytes; 0 when there is no such GPU.
std::size_t gpu_available_memory(int device);

// Times calls on a stream with CUDA events, each with an empty L2 cache, and watches the SM clock
// meanwhile.
class GpuTimer {
 public:
  explicit GpuTimer(int device);
  ~GpuTimer();
  GpuTimer(const GpuTimer&) = delete;
  GpuTimer& operator=(const GpuTimer&) = delete;

  // The stream that timed calls must use.
  [[nodiscard]] void* stream() const;

  // Seconds the GPU takes for what `call` puts on the stream. The cache is emptied first, on the
  // same stream: the GPU is then busy while the call is prepared, and the time is free of that.
  // Throws what the call throws, and Error (device_failure) when something failed on the device.
  double time(const std::function<void()>& call);

  // The SM clock in MHz, as seen during timed calls (a few times a second); empty when NVML is not
  // there.
  [[nodiscard]] const std::vector<double>& clocks() const;
  void forget_clocks();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Workspace from a stream-ordered pool of its own that keeps what it was given back; the pool
// itself says what was in use at most.
class GpuPool final : public MeasuringAllocator {
 public:
  // Never more than `limit` bytes at a time.
  GpuPool(int device, std::size_t limit);
  ~GpuPool() override;
  GpuPool(const GpuPool&) = delete;
  GpuPool& operator=(const GpuPool&) = delete;

  void* allocate(std::size_t bytes, std::size_t alignment, void* stream) override;
  void deallocate(void* data, std::size_t bytes, std::size_t alignment, void* stream) override;
  [[nodiscard]] std::size_t peak() const override;
  void reset_peak() override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::lab
