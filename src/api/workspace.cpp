#include "api/workspace.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <new>
#include <utility>

#include "api/overlap.h"
#include "api/tensor_checks.h"
#include "core/kernel.h"
#include "cuda/common/host/memory.h"

namespace tessera::api {
namespace {

using core::kWorkspaceAlignment;
using core::Problem;

// Host memory from the C++ runtime. This class aligns it: glibc's aligned allocation (2.36) maps
// new pages in every call for some sizes, while plain blocks up to 32 MiB reuse their pages from
// the second or third call on.
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

// The call writes workspace before it has read all inputs.
template <typename Arguments>
void check_lent(const Workspace& lent, const Problem& p, const Arguments& arguments) {
  auto check = [&](const char* name, const Tensor& tensor) {
    if (!tensor.given() || !overlap(tensor, lent.data, lent.bytes)) return;
    refuse("execution.workspace overlaps ", name, " in memory (", lent.bytes, " bytes at ", lent.data,
           ", and ", tensor.data, "); lend memory that the call uses for nothing else");
  };
  for (const auto& [name, tensor] : arguments) check(name, *tensor);
  auto check_array = [&](const char* name, const auto* data, std::int64_t count) {
    if (data == nullptr) return;
    const auto bytes = count * static_cast<std::int64_t>(sizeof(*data));
    // As bf16: the type of two bytes each.
    check(name, tensor(const_cast<void*>(static_cast<const void*>(data)), DType::bf16, {1, 1, 1, bytes / 2}));
  };
  check_array("attention.mask.lengths.q", p.cumulative_q, p.batch + 1);
  check_array("attention.mask.lengths.k", p.cumulative_k, p.batch + 1);
  const std::int64_t last_entry = std::max<std::int64_t>(p.batch - 1, 0) * p.alibi_batch_stride;
  check_array("attention.alibi.slopes", p.alibi_slopes, last_entry + p.q_heads);
  check_array("attention.dropout.state", p.dropout_state, 2);
}

using Named = std::pair<const char*, const Tensor*>;

}  // namespace

CallWorkspace::CallWorkspace(const Execution& execution, std::size_t bytes, Device device)
    : execution_(execution), device_(device), bytes_(bytes) {
  if (bytes == 0) return;
  const Workspace& lent = execution.workspace;
  if (lent.data != nullptr || lent.bytes != 0) {
    if (lent.bytes < bytes) {
      refuse("execution.workspace.bytes is ", lent.bytes, "; it must be at least ", bytes,
             ", the workspace_bytes of the plan");
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
  allocated_ = true;
  if (data_ == nullptr) {
    core::fail(ErrorCode::out_of_memory, "out of memory: the call needs ", bytes, " bytes of workspace on ",
               device,
               "; lend it as execution.workspace, or call with a smaller batch or shorter sequences: ",
               "`tessera fit` finds those that fit");
  }
  if (reinterpret_cast<std::uintptr_t>(data_) % kWorkspaceAlignment != 0) {
    release();
    refuse("execution.allocator->allocate() returned ", data_, "; it must be aligned to ",
           kWorkspaceAlignment, " bytes");
  }
}

CallWorkspace::~CallWorkspace() {
  try {
    release();
  } catch (...) {  // NOLINT: see the header
  }
}

void CallWorkspace::release() {
  if (!allocated_) return;
  allocated_ = false;  // once, also when the allocator throws
  with_allocator(execution_, device_, [&](Allocator& allocator) {
    allocator.deallocate(data_, bytes_, kWorkspaceAlignment, execution_.stream);
  });
}

void check_workspace(const Workspace& lent, const Problem& p, const ForwardTensors& t) {
  check_lent(lent, p,
             std::initializer_list<Named>{{"q", &t.q},
                                          {"k", &t.k},
                                          {"v", &t.v},
                                          {"bias", &t.bias},
                                          {"out", &t.out},
                                          {"lse", &t.lse},
                                          {"visible", &t.visible}});
}

void check_workspace(const Workspace& lent, const Problem& p, const BackwardTensors& t) {
  check_lent(lent, p,
             std::initializer_list<Named>{{"q", &t.q},
                                          {"k", &t.k},
                                          {"v", &t.v},
                                          {"bias", &t.bias},
                                          {"out", &t.out},
                                          {"lse", &t.lse},
                                          {"grad_out", &t.grad_out},
                                          {"grad_lse", &t.grad_lse},
                                          {"grad_q", &t.grad_q},
                                          {"grad_k", &t.grad_k},
                                          {"grad_v", &t.grad_v},
                                          {"grad_bias", &t.grad_bias},
                                          {"visible", &t.visible}});
}

}  // namespace tessera::api
