// From the structs of the C interface to those of the C++ interface.
#pragma once

#include <string>

#include "tessera/attention.h"
#include "tessera/capi.h"
#include "tessera/execution.h"
#include "tessera/mask.h"
#include "tessera/plan.h"

namespace tessera::api {

// The mask behind a handle; defined where handles are made.
const BlockMask& block_mask_of(const tsr_block_mask& handle) noexcept;

Attention attention_from(const tsr_attention* given);
Tensor tensor_from(const tsr_tensor* given, const char* argument);
ForwardTensors tensors_from(const tsr_forward_tensors* given);
BackwardTensors tensors_from(const tsr_backward_tensors* given);
Shapes shapes_from(const tsr_shapes* given);
Device device_from(const tsr_device& given, const std::string& argument);
Direction direction_from(tsr_direction given);
TensorRole role_from(tsr_role given);

tsr_device to_c(const Device& device) noexcept;

// The caller's threads behind the C++ interface.
class CallbackExecutor final : public Executor {
 public:
  CallbackExecutor() = default;
  explicit CallbackExecutor(const tsr_executor& callbacks) : callbacks_(callbacks) {}
  [[nodiscard]] int concurrency() const override { return callbacks_.concurrency(callbacks_.context); }
  void run(int workers, void (*body)(void* context, int worker), void* context) override {
    callbacks_.run(callbacks_.context, workers, body, context);
  }

 private:
  tsr_executor callbacks_ = TSR_EXECUTOR_INIT;
};

// The caller's memory behind the C++ interface.
class CallbackAllocator final : public Allocator {
 public:
  CallbackAllocator() = default;
  explicit CallbackAllocator(const tsr_allocator& callbacks) : callbacks_(callbacks) {}
  void* allocate(std::size_t bytes, std::size_t alignment, void* stream) override {
    return callbacks_.allocate(callbacks_.context, bytes, alignment, stream);
  }
  void deallocate(void* data, std::size_t bytes, std::size_t alignment, void* stream) override {
    callbacks_.deallocate(callbacks_.context, data, bytes, alignment, stream);
  }

 private:
  tsr_allocator callbacks_ = TSR_ALLOCATOR_INIT;
};

// An Execution together with the adapters it points to; stays where it is made.
class TranslatedExecution {
 public:
  explicit TranslatedExecution(const tsr_execution* given);
  TranslatedExecution(const TranslatedExecution&) = delete;
  TranslatedExecution& operator=(const TranslatedExecution&) = delete;
  [[nodiscard]] const Execution& get() const noexcept { return execution_; }

 private:
  CallbackExecutor executor_;
  CallbackAllocator allocator_;
  Execution execution_;
};

}  // namespace tessera::api
