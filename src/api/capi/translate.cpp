// From the structs of the C interface to those of the C++ interface. Only what C can express and
// C++ cannot is checked here (null pointers, unknown enumerators, struct sizes); the rest is
// validated once, below.
#include "api/capi/translate.h"

#include <cstddef>
#include <string>

#include "api/capi/support.h"

namespace tessera::api {
namespace {

constexpr const char* kDTypes = "0 (TSR_FP64), 1 (TSR_FP32), 2 (TSR_FP16) or 3 (TSR_BF16)";
constexpr const char* kTensorDTypes =
    "0 (TSR_FP64), 1 (TSR_FP32), 2 (TSR_FP16), 3 (TSR_BF16) or 4 (TSR_BOOL)";
constexpr const char* kDevices = "0 (TSR_CPU) or 1 (TSR_CUDA)";
constexpr const char* kAligns = "0 (TSR_BOTTOM_RIGHT) or 1 (TSR_TOP_LEFT)";
constexpr const char* kDirections = "0 (TSR_FORWARD) or 1 (TSR_BACKWARD)";
constexpr const char* kAlgorithms =
    "0 (TSR_AUTOMATIC), 1 (TSR_STANDARD), 2 (TSR_FLASH1), 3 (TSR_FLASH2), 4 (TSR_FLASH3) or 5 (TSR_MINIMAL)";

// A C enumeration as the C++ one, which must have the same numbers from 0 to `last`.
template <typename Enum>
Enum enumerator(std::int32_t value, Enum last, const std::string& argument, const char* allowed) {
  if (value < 0 || value > static_cast<std::int32_t>(last)) {
    refuse(argument, " is ", value, "; it must be ", allowed);
  }
  return static_cast<Enum>(value);
}

static_assert(TSR_FP64 == static_cast<int>(DType::fp64) && TSR_FP32 == static_cast<int>(DType::fp32) &&
              TSR_FP16 == static_cast<int>(DType::fp16) && TSR_BF16 == static_cast<int>(DType::bf16) &&
              TSR_BOOL == static_cast<int>(DType::boolean));
static_assert(TSR_CPU == static_cast<int>(DeviceType::cpu) && TSR_CUDA == static_cast<int>(DeviceType::cuda));
static_assert(TSR_BOTTOM_RIGHT == static_cast<int>(Align::bottom_right) &&
              TSR_TOP_LEFT == static_cast<int>(Align::top_left));
static_assert(TSR_FORWARD == static_cast<int>(Direction::forward) &&
              TSR_BACKWARD == static_cast<int>(Direction::backward));
static_assert(TSR_AUTOMATIC == static_cast<int>(Algorithm::automatic) &&
              TSR_STANDARD == static_cast<int>(Algorithm::standard) &&
              TSR_FLASH1 == static_cast<int>(Algorithm::flash1) &&
              TSR_FLASH2 == static_cast<int>(Algorithm::flash2) &&
              TSR_FLASH3 == static_cast<int>(Algorithm::flash3) &&
              TSR_MINIMAL == static_cast<int>(Algorithm::minimal));

// The structs have no padding at their ends. A field added later therefore never lies in bytes that
// an older program left unset.
static_assert(offsetof(tsr_attention, reserved) + 4 == sizeof(tsr_attention));
static_assert(offsetof(tsr_execution, reserved) + 4 == sizeof(tsr_execution));
static_assert(offsetof(tsr_shapes, visible) + 4 == sizeof(tsr_shapes));
static_assert(offsetof(tsr_plan, reserved) + 4 == sizeof(tsr_plan));
static_assert(offsetof(tsr_kernel_info, reserved) + 4 == sizeof(tsr_kernel_info));

}  // namespace

Attention attention_from(const tsr_attention* given) {
  static constexpr tsr_attention kInitial = TSR_ATTENTION_INIT;
  const tsr_attention a = read_optional(given, kInitial, "attention", "TSR_ATTENTION_INIT");
  require_reserved(a.reserved, "attention.reserved");
  Attention attention;
  if (a.has_scale != 0) attention.scale = a.scale;
  attention.softcap = a.softcap;
  attention.mask.left = a.left;
  attention.mask.right = a.right;
  attention.mask.align = enumerator(a.align, Align::top_left, "attention.align", kAligns);
  if (a.has_diagonal != 0) attention.mask.diagonal = a.diagonal;
  if (a.block_mask != nullptr) attention.mask.blocks = block_mask_of(*a.block_mask);
  attention.mask.lengths = {a.lengths_q, a.lengths_k, a.lengths_count, a.lengths_max_q, a.lengths_max_k};
  attention.alibi = {a.alibi_slopes, a.alibi_batch_stride};
  attention.dropout = {a.dropout_probability, a.dropout_seed, a.dropout_offset, a.dropout_state};
  attention.origin = {a.origin_row, a.origin_column, a.origin_batch, a.origin_head};
  attention.algorithm = enumerator(a.algorithm, Algorithm::minimal, "attention.algorithm", kAlgorithms);
  attention.deterministic = a.deterministic != 0;
  return attention;
}

Device device_from(const tsr_device& given, const std::string& argument) {
  return {enumerator(given.type, DeviceType::cuda, argument + ".type", kDevices), given.index};
}

Tensor tensor_from(const tsr_tensor* given, const char* argument) {
  if (given == nullptr) return {};
  Tensor tensor;
  tensor.data = given->data;
  for (std::size_t i = 0; i < 4; ++i) {
    tensor.shape[i] = given->shape[i];
    tensor.strides[i] = given->strides[i];
  }
  if (!tensor.given()) return {};
  tensor.dtype = enumerator(given->dtype, DType::boolean, std::string(argument) + ".dtype", kTensorDTypes);
  tensor.device = device_from(given->device, std::string(argument) + ".device");
  tensor.read_only = given->read_only != 0;
  return tensor;
}

ForwardTensors tensors_from(const tsr_forward_tensors* given) {
  static constexpr tsr_forward_tensors kInitial = TSR_FORWARD_TENSORS_INIT;
  const tsr_forward_tensors t = read_versioned(given, kInitial, "tensors", "TSR_FORWARD_TENSORS_INIT");
  return {.q = tensor_from(t.q, "q"),
          .k = tensor_from(t.k, "k"),
          .v = tensor_from(t.v, "v"),
          .bias = tensor_from(t.bias, "bias"),
          .out = tensor_from(t.out, "out"),
          .lse = tensor_from(t.lse, "lse"),
          .visible = tensor_from(t.visible, "visible")};
}

BackwardTensors tensors_from(const tsr_backward_tensors* given) {
  static constexpr tsr_backward_tensors kInitial = TSR_BACKWARD_TENSORS_INIT;
  const tsr_backward_tensors t = read_versioned(given, kInitial, "tensors", "TSR_BACKWARD_TENSORS_INIT");
  return {.q = tensor_from(t.q, "q"),
          .k = tensor_from(t.k, "k"),
          .v = tensor_from(t.v, "v"),
          .bias = tensor_from(t.bias, "bias"),
          .out = tensor_from(t.out, "out"),
          .lse = tensor_from(t.lse, "lse"),
          .grad_out = tensor_from(t.grad_out, "grad_out"),
          .grad_lse = tensor_from(t.grad_lse, "grad_lse"),
          .grad_q = tensor_from(t.grad_q, "grad_q"),
          .grad_k = tensor_from(t.grad_k, "grad_k"),
          .grad_v = tensor_from(t.grad_v, "grad_v"),
          .grad_bias = tensor_from(t.grad_bias, "grad_bias"),
          .visible = tensor_from(t.visible, "visible")};
}

Shapes shapes_from(const tsr_shapes* given) {
  static constexpr tsr_shapes kInitial = TSR_SHAPES_INIT;
  const tsr_shapes s = read_versioned(given, kInitial, "shapes", "TSR_SHAPES_INIT");
  return {.batch = s.batch,
          .q_length = s.q_length,
          .k_length = s.k_length,
          .q_heads = s.q_heads,
          .kv_heads = s.kv_heads,
          .qk_dim = s.qk_dim,
          .v_dim = s.v_dim,
          .dtype = enumerator(s.dtype, DType::bf16, "shapes.dtype", kDTypes),
          .lse = s.lse != 0,
          .bias = s.bias != 0,
          .visible = s.visible != 0};
}

Direction direction_from(tsr_direction given) {
  return enumerator(given, Direction::backward, "direction", kDirections);
}

TensorRole role_from(tsr_role given) {
  return enumerator(given, TensorRole::visible, "role",
                    "0 (TSR_ROLE_TOKENS), 1 (TSR_ROLE_LSE), 2 (TSR_ROLE_BIAS) or 3 (TSR_ROLE_VISIBLE)");
}

TranslatedExecution::TranslatedExecution(const tsr_execution* given) {
  static constexpr tsr_execution kInitial = TSR_EXECUTION_INIT;
  static constexpr tsr_executor kInitialExecutor = TSR_EXECUTOR_INIT;
  static constexpr tsr_allocator kInitialAllocator = TSR_ALLOCATOR_INIT;
  const tsr_execution e = read_optional(given, kInitial, "execution", "TSR_EXECUTION_INIT");
  require_reserved(e.reserved, "execution.reserved");
  execution_.threads = e.threads;
  execution_.stream = e.stream;
  execution_.workspace = {e.workspace, e.workspace_bytes};
  if (e.executor != nullptr) {
    const tsr_executor callbacks =
        read_versioned(e.executor, kInitialExecutor, "execution.executor", "TSR_EXECUTOR_INIT");
    if (callbacks.concurrency == nullptr)
      refuse("execution.executor.concurrency is null; it must be a function");
    if (callbacks.run == nullptr) refuse("execution.executor.run is null; it must be a function");
    executor_ = CallbackExecutor(callbacks);
    execution_.executor = &executor_;
  }
  if (e.allocator != nullptr) {
    const tsr_allocator callbacks =
        read_versioned(e.allocator, kInitialAllocator, "execution.allocator", "TSR_ALLOCATOR_INIT");
    if (callbacks.allocate == nullptr) refuse("execution.allocator.allocate is null; it must be a function");
    if (callbacks.deallocate == nullptr)
      refuse("execution.allocator.deallocate is null; it must be a function");
    allocator_ = CallbackAllocator(callbacks);
    execution_.allocator = &allocator_;
  }
}

tsr_device to_c(const Device& device) noexcept {
  return {static_cast<tsr_device_type>(device.type), device.index};
}

}  // namespace tessera::api
