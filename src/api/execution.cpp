#include "api/execution.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <new>

#include "api/tensor_checks.h"
#include "core/kernel.h"
#include "cpu/machine/thread_pool.h"
#include "cuda/common/host/memory.h"

namespace tessera::api {
namespace {

using core::kWorkspaceAlignment;

constexpr int kMaxThreads = 4096;

// Host memory from the C++ runtime, aligned here and not there: with glibc's aligned allocation (2.36) every call of
// some sizes found its pages anew, plain blocks up to 32 MiB are the same pages again from the second or third call
// on (docs/notebook/cpu.md).
class SystemAllocator final : public Allocator {
 public:
  void* allocate(std::size_t bytes, std::size_t alignment, void* /*stream*/) override {
    const std::size_t room = alignment + sizeof(void*);
    if (bytes > std::numeric_limits<std::size_t>::max() - room) return nullptr;
    void* block = ::operator new(bytes + room, std::nothrow);
    if (block == nullptr) return nullptr;
    std::size_t left = bytes + alignment;
    void* data = static_cast<void**>(block) + 1;
    std::align(alignment, bytes, data, left);
    static_cast<void**>(data)[-1] = block;
    return data;
  }
  void deallocate(void* data, std::size_t /*bytes*/, std::size_t /*alignment*/, void* /*stream*/) override {
    ::operator delete(static_cast<void**>(data)[-1]);
  }
};

// Calls use(allocator) with the caller's allocator, or the default one of the device.
template <typename Use>
auto with_allocator(const Execution& execution, Device device, Use&& use) {
  if (execution.allocator != nullptr) return use(*execution.allocator);
  if (device.type == DeviceType::cuda) {
    cuda::StreamAllocator pool(device.index);
    return use(static_cast<Allocator&>(pool));
  }
  SystemAllocator system;
  return use(static_cast<Allocator&>(system));
}

}  // namespace

Executor& executor_of(const Execution& execution) {
  return execution.executor != nullptr ? *execution.executor : cpu::ThreadPool::instance();
}

int workers_of(const Execution& execution, const Executor& executor) {
  if (execution.threads < 0 || execution.threads > kMaxThreads) {
    refuse("execution.threads is ", execution.threads, "; it must be between 0 (all) and ", kMaxThreads);
  }
  if (execution.threads > 0) return execution.threads;
  const int concurrency = executor.concurrency();
  if (concurrency < 1 || concurrency > kMaxThreads) {
    refuse("execution.executor->concurrency() is ", concurrency, "; it must be between 1 and ", kMaxThreads);
  }
  return concurrency;
}

WorkspaceLease::WorkspaceLease(const Execution& execution, std::size_t bytes, Device device)
    : execution_(execution), device_(device), bytes_(bytes) {
  if (bytes == 0) return;
  const Workspace& lent = execution.workspace;
  if (lent.data != nullptr || lent.bytes != 0) {
    if (lent.bytes < bytes) {
      refuse("execution.workspace.bytes is ", lent.bytes, "; it must be at least ", bytes,
             ", as Plan::workspace_bytes says");
    }
    if (lent.data == nullptr || reinterpret_cast<std::uintptr_t>(lent.data) % kWorkspaceAlignment != 0) {
      refuse("execution.workspace.data is ", lent.data, "; it must be aligned to ", kWorkspaceAlignment,
             " bytes");
    }
    data_ = lent.data;
    return;
  }
  data_ = with_allocator(execution, device, [&](Allocator& allocator) {
    return allocator.allocate(bytes, kWorkspaceAlignment, execution.stream);
  });
  owned_ = true;
  if (data_ == nullptr) {
    core::fail(ErrorCode::out_of_memory, "no workspace of ", bytes, " bytes on ", describe(device));
  }
  if (reinterpret_cast<std::uintptr_t>(data_) % kWorkspaceAlignment != 0) {
    give_back();
    refuse("execution.allocator->allocate() gave ", data_, "; it must be aligned to ", kWorkspaceAlignment,
           " bytes, as it is asked to");
  }
}

WorkspaceLease::~WorkspaceLease() {
  try {
    give_back();
  } catch (...) {  // NOLINT: see the header
  }
}

void WorkspaceLease::give_back() {
  if (!owned_) return;
  owned_ = false;  // once, also when the allocator throws
  with_allocator(execution_, device_, [&](Allocator& allocator) {
    allocator.deallocate(data_, bytes_, kWorkspaceAlignment, execution_.stream);
  });
}

}  // namespace tessera::api
