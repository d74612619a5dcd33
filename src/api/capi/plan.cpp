// Plans in the C interface: the C++ plan kept behind the struct, which points into it.
#include <memory>
#include <vector>

#include "api/capi/support.h"
#include "api/capi/translate.h"
#include "tessera/capi.h"
#include "tessera/plan.h"

using namespace tessera;
using namespace tessera::api;

struct tsr_plan_storage {
  Plan plan;
  std::vector<tsr_rejection> rejected;
};

namespace {

constexpr std::size_t kSmallestPlan = offsetof(tsr_plan, storage) + sizeof(tsr_plan_storage*);

tsr_plan view_of(tsr_plan_storage* storage) noexcept {
  const Plan& plan = storage->plan;
  return {.struct_size = 0,
          .storage = storage,
          .kernel = plan.kernel.c_str(),
          .details = plan.details.c_str(),
          .algorithm = static_cast<tsr_algorithm>(plan.algorithm),
          .direction = static_cast<tsr_direction>(plan.direction),
          .device = to_c(plan.device),
          .block_q = plan.block_q,
          .block_k = plan.block_k,
          .shared_memory_bytes = plan.shared_memory_bytes,
          .workspace_bytes = plan.workspace_bytes,
          .flops = plan.flops,
          .visible_pairs = plan.visible_pairs,
          .minimum_bytes = plan.minimum_bytes,
          .traffic_bytes = plan.traffic_bytes,
          .standard_traffic_bytes = plan.standard_traffic_bytes,
          .standard_workspace_bytes = plan.standard_workspace_bytes,
          .rejected = storage->rejected.data(),
          .rejected_count = storage->rejected.size(),
          .threads = plan.threads,
          .reserved = 0};
}

// Fills `result` with what `make` plans.
template <typename Make>
tsr_status plan_into(tsr_plan* result, Make&& make) noexcept {
  return guarded([&] {
    require(result, "plan");
    check_struct_size(result->struct_size, kSmallestPlan, "plan", "TSR_PLAN_INIT");
    auto storage = std::make_unique<tsr_plan_storage>();
    storage->plan = make();
    storage->rejected.reserve(storage->plan.rejected.size());
    for (const Rejection& rejection : storage->plan.rejected) {
      storage->rejected.push_back({rejection.kernel.c_str(), rejection.reason.c_str()});
    }
    write_versioned(result, view_of(storage.release()));
  });
}

}  // namespace

tsr_status tsr_plan_shapes(const tsr_attention* attention, const tsr_shapes* shapes, tsr_device device,
                           tsr_direction direction, const tsr_execution* execution, tsr_plan* plan) {
  return plan_into(plan, [&] {
    const TranslatedExecution translated(execution);
    return tessera::plan(attention_from(attention), shapes_from(shapes), device_from(device, "device"),
                         direction_from(direction), translated.get());
  });
}

tsr_status tsr_plan_forward(const tsr_attention* attention, const tsr_forward_tensors* tensors,
                            const tsr_execution* execution, tsr_plan* plan) {
  return plan_into(plan, [&] {
    const TranslatedExecution translated(execution);
    return tessera::plan(attention_from(attention), tensors_from(tensors), translated.get());
  });
}

tsr_status tsr_plan_backward(const tsr_attention* attention, const tsr_backward_tensors* tensors,
                             const tsr_execution* execution, tsr_plan* plan) {
  return plan_into(plan, [&] {
    const TranslatedExecution translated(execution);
    return tessera::plan(attention_from(attention), tensors_from(tensors), translated.get());
  });
}

tsr_status tsr_plan_text(const tsr_plan* plan, char* buffer, size_t capacity, size_t* length) {
  return guarded([&] {
    require(plan, "plan");
    check_struct_size(plan->struct_size, kSmallestPlan, "plan", "TSR_PLAN_INIT");
    if (plan->storage == nullptr)
      refuse(
          "plan is empty; it must have been filled by tsr_plan_shapes, "
          "tsr_plan_forward or tsr_plan_backward");
    copy_text(to_string(plan->storage->plan), buffer, capacity, length);
  });
}

void tsr_plan_release(tsr_plan* plan) {
  if (plan == nullptr || plan->struct_size < kSmallestPlan || plan->storage == nullptr) return;
  delete plan->storage;
  write_versioned(plan, tsr_plan{});
}
