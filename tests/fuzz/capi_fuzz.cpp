// The C interface under any input: it refuses or it computes, and what it computes
// is the same for every execution and, but for rounding, for every algorithm. A
// plan and its call agree. Sanitizers watch the addresses.
//
// With Clang this is a target for libFuzzer (preset `fuzz`, `make fuzz`). Every
// other build drives it with random bytes (random_bytes.cpp).
#include <dlpack/dlpack.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "call.h"

namespace tessera::fuzz {
namespace {

constexpr std::size_t kMostWorkspace = std::size_t{64} << 20;

[[noreturn]] void violated(const std::string& property) {
  std::fprintf(stderr, "property violated: %s; last error: %s\n", property.c_str(), tsr_last_error());
  std::abort();
}

void require(bool holds, const char* property) {
  if (!holds) violated(property);
}

// ---- executions ---------------------------------------------------------------------------------

// The caller's memory, which knows what is out; `empty`: it has none.
struct Memory {
  long blocks = 0;
  bool empty = false;
};

void* allocate(void* context, std::size_t bytes, std::size_t alignment, void*) {
  auto* memory = static_cast<Memory*>(context);
  if (memory->empty) return nullptr;
  void* data = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (data == nullptr) return nullptr;
  std::memset(data, 0xFF, bytes);
  ++memory->blocks;
  return data;
}
void deallocate(void* context, void* data, std::size_t, std::size_t, void*) {
  --static_cast<Memory*>(context)->blocks;
  std::free(data);
}
int concurrency(void* context) { return *static_cast<int*>(context); }
void run_backwards(void*, int workers, void (*body)(void*, int), void* context) {
  for (int worker = workers - 1; worker >= 0; --worker) body(context, worker);
}

// Threads, executor, allocator and workspace of a call, none of which shows in a result.
struct Circumstances {
  int workers = 1;
  Memory memory;
  tsr_executor executor = TSR_EXECUTOR_INIT;
  tsr_allocator allocator = TSR_ALLOCATOR_INIT;
  tsr_execution execution = TSR_EXECUTION_INIT;
  std::unique_ptr<void, void (*)(void*)> workspace{nullptr, std::free};
  bool lends_too_little = false;

  explicit Circumstances(Bytes& bytes) {
    workers = static_cast<int>(bytes.between(1, 7));
    memory.empty = bytes.one_in(20);
    executor.context = &workers, executor.concurrency = concurrency, executor.run = run_backwards;
    allocator.context = &memory, allocator.allocate = allocate, allocator.deallocate = deallocate;
    if (bytes.one_in(2)) execution.executor = &executor;
    if (bytes.one_in(2)) execution.allocator = &allocator;
    execution.threads = static_cast<std::int32_t>(bytes.between(0, 5));
  }
  Circumstances(const Circumstances&) = delete;
  Circumstances& operator=(const Circumstances&) = delete;

  // Lends what a plan asks for, full of NaN, or a byte less.
  void lend(Bytes& bytes, std::size_t needed) {
    execution.workspace = nullptr, execution.workspace_bytes = 0, lends_too_little = false;
    if (needed == 0 || !bytes.one_in(3)) return;
    workspace.reset(std::aligned_alloc(256, (needed + 255) / 256 * 256));
    std::memset(workspace.get(), 0xFF, needed);
    lends_too_little = bytes.one_in(8);
    execution.workspace = workspace.get();
    execution.workspace_bytes = needed - (lends_too_little ? 1 : 0);
  }
  // What a call may answer when its plan answered `planned`.
  void check_answer(tsr_status planned, tsr_status answer) const {
    require(answer != TSR_INTERNAL_ERROR, "a call is never an internal error");
    if (planned != TSR_OK) return require(answer != TSR_OK, "what a plan refuses a call refuses");
    if (lends_too_little) return require(answer == TSR_INVALID_ARGUMENT, "too little workspace is refused");
    const bool starves = memory.empty && answer == TSR_OUT_OF_MEMORY;
    require(answer == TSR_OK || starves, "what a plan accepts a call computes");
  }
};

// ---- one call -----------------------------------------------------------------------------------

// Results by another algorithm may differ by rounding alone: by this, relative to `scale`.
void require_close(const std::vector<double>& a, const std::vector<double>& b, double tolerance,
                   const char* property) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i] && !(std::abs(a[i] - b[i]) <= tolerance * (1 + std::abs(a[i])))) {
      violated(std::string(property) + ": element " + std::to_string(i) + " is " + std::to_string(a[i]) +
               " and " + std::to_string(b[i]));
    }
  }
}

constexpr double kForwardTolerance[] = {1e-9, 2e-4, 2e-2,
                                        1e-1};  // by type, as TSR_FP64 ... TSR_BF16 count them
constexpr double kGradientTolerance[] = {1e-8, 1e-3};

tsr_attention by_another_algorithm(tsr_attention attention) {
  attention.algorithm = attention.algorithm == TSR_STANDARD ? TSR_FLASH2 : TSR_STANDARD;
  return attention;
}

// Forward's results, once computed: finite, reproducible, and those of another algorithm.
void check_forward(Call& call) {
  const tsr_attention& attention = call.description.attention;
  const std::vector<double> out = call.out.values(), lse = call.lse.values();
  for (const double x : out) require(std::isfinite(x), "finite inputs give finite outputs");
  for (const double x : lse)
    require(!std::isnan(x) && !(x > 0 && std::isinf(x)), "an LSE is a number or -infinity");
  tsr_execution one = TSR_EXECUTION_INIT;
  one.threads = 1;
  require(tsr_forward(&attention, &call.forward, &one) == TSR_OK, "a call that succeeded succeeds again");
  require(call.out.values() == out && call.lse.values() == lse,
          "forward has the same bits in every execution");
  const tsr_attention other = by_another_algorithm(attention);
  const tsr_status status = tsr_forward(&other, &call.forward, &one);
  require(status == TSR_OK || status == TSR_UNSUPPORTED,
          "another algorithm computes it or says that it cannot");
  if (status != TSR_OK) return;
  const double kept = attention.dropout_probability > 0 ? 1 - attention.dropout_probability : 1;
  require_close(out, call.out.values(), kForwardTolerance[call.dtype] / kept,
                "algorithms agree on the output");
  require_close(lse, call.lse.values(), call.dtype == TSR_FP64 ? 1e-9 : 2e-3, "algorithms agree on the LSE");
}

void check_backward(Bytes& bytes, Call& call, Circumstances& circumstances) {
  const tsr_attention& attention = call.description.attention;
  tsr_execution one = TSR_EXECUTION_INIT;
  one.threads = 1;
  if (tsr_forward(&attention, &call.forward, &one) != TSR_OK) violated("forward succeeds a third time");
  circumstances.lend(bytes, 0);
  tsr_plan plan = TSR_PLAN_INIT;
  const tsr_status planned = tsr_plan_backward(&attention, &call.backward, &circumstances.execution, &plan);
  const std::size_t needed = plan.workspace_bytes;
  tsr_plan_release(&plan);
  if (needed > kMostWorkspace) return;
  if (planned == TSR_OK) circumstances.lend(bytes, needed);
  const tsr_status answer = tsr_backward(&attention, &call.backward, &circumstances.execution);
  circumstances.check_answer(planned, answer);
  if (answer != TSR_OK) return;
  const std::pair<const tsr_tensor*, const Buffer*> gradients[] = {
      {call.backward.grad_q, &call.grad_q},
      {call.backward.grad_k, &call.grad_k},
      {call.backward.grad_v, &call.grad_v},
      {call.backward.grad_bias, &call.grad_bias}};
  auto results = [&] {
    std::vector<double> all;
    for (const auto& [given, buffer] : gradients) {
      if (given == nullptr) continue;
      const std::vector<double> values = buffer->values();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  const std::vector<double> first = results();
  double largest = 1;
  for (const double x : first) {
    require(std::isfinite(x) || call.dtype == TSR_FP16, "finite inputs give finite gradients");
    largest = std::max(largest, std::abs(x));
  }
  require(tsr_backward(&attention, &call.backward, &one) == TSR_OK, "backward succeeds again");
  require(results() == first || call.dtype == TSR_FP16, "backward has the same bits in every execution");
  if (call.dtype > TSR_FP32) return;
  const tsr_attention other = by_another_algorithm(attention);
  if (tsr_backward(&other, &call.backward, &one) != TSR_OK) return;
  require_close(first, results(), kGradientTolerance[call.dtype] * largest, "algorithms agree on gradients");
}

void attention_case(Bytes& bytes) {
  Call call(bytes);
  Circumstances circumstances(bytes);
  const tsr_attention& attention = call.description.attention;
  tsr_plan plan = TSR_PLAN_INIT;
  const tsr_status planned = tsr_plan_forward(&attention, &call.forward, &circumstances.execution, &plan);
  require(planned != TSR_INTERNAL_ERROR, "a plan is never an internal error");
  const std::size_t needed = plan.workspace_bytes;
  char text[4096];
  std::size_t length = 0;
  if (planned == TSR_OK) tsr_plan_text(&plan, text, sizeof text, &length);
  tsr_plan_release(&plan);
  if (!call.can_run() || needed > kMostWorkspace) return;
  if (planned == TSR_OK) circumstances.lend(bytes, needed);
  const tsr_status answer = tsr_forward(&attention, &call.forward, &circumstances.execution);
  circumstances.check_answer(planned, answer);
  if (answer == TSR_OK && call.forward.lse != nullptr) {
    check_forward(call);
    check_backward(bytes, call, circumstances);
  }
  require(circumstances.memory.blocks == 0, "what was allocated is given back");
}

// ---- DLPack -------------------------------------------------------------------------------------

void dlpack_case(Bytes& bytes) {
  std::int64_t shape[6], strides[6];
  for (int i = 0; i < 6; ++i) {
    shape[i] = bytes.mostly(bytes.between(0, 6), 3);
    strides[i] = bytes.mostly(bytes.between(-3, 40), 3);
  }
  std::byte data[64] = {};
  const int dimensions = static_cast<int>(bytes.between(-1, 6));
  DLTensor source{};
  source.data = bytes.one_in(6) ? nullptr : data;
  source.ndim = dimensions;
  source.shape = bytes.one_in(12) ? nullptr : shape;
  source.strides = bytes.one_in(3) ? nullptr : strides;
  source.dtype = {static_cast<std::uint8_t>(bytes.mostly(kDLFloat, 4)),
                  static_cast<std::uint8_t>(bytes.mostly(32, 4)),
                  static_cast<std::uint16_t>(bytes.mostly(1, 8))};
  const std::int32_t device = bytes.one_in(4) ? bytes.byte() : static_cast<std::int32_t>(kDLCPU);
  std::memcpy(&source.device.device_type, &device,
              sizeof device);  // any number, also one that is no enumerator
  source.device.device_id = bytes.one_in(8) ? static_cast<std::int32_t>(bytes.word()) : 0;
  source.byte_offset = bytes.one_in(4) ? static_cast<std::uint64_t>(bytes.hostile()) : 0;
  tsr_tensor tensor;
  const auto role = static_cast<std::int32_t>(bytes.one_in(16) ? bytes.between(-2, 5) : bytes.between(0, 3));
  const tsr_status status = tsr_tensor_from_dlpack(bytes.one_in(64) ? nullptr : &source, role, &tensor);
  require(status == TSR_OK || status == TSR_INVALID_ARGUMENT,
          "a DLPack tensor is taken or an invalid argument");
  if (status != TSR_OK) return;
  tsr_forward_tensors forward = TSR_FORWARD_TENSORS_INIT;
  forward.q = forward.k = forward.v = forward.out = &tensor;
  tsr_plan plan = TSR_PLAN_INIT;
  tsr_plan_forward(nullptr, &forward, nullptr, &plan);  // whatever it answers
  tsr_plan_release(&plan);
}

}  // namespace
}  // namespace tessera::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tessera::fuzz::Bytes bytes(data, size);
  if (bytes.one_in(6)) tessera::fuzz::dlpack_case(bytes);
  else tessera::fuzz::attention_case(bytes);
  return 0;
}
