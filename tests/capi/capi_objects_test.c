// The C interface from C: tensors and DLPack, block masks, callbacks, plans, and
// what the build has. Returns 0 when everything holds and prints what does not.
#include <dlpack/dlpack.h>

#include "capi_check.h"

// --- tensors -------------------------------------------------------------------------------------

static void test_tensors(void) {
  float memory[24];
  tsr_tensor t = tsr_tensor_contiguous(memory, TSR_BF16, 1, 2, 3, 4);
  CHECK(t.data == memory && t.dtype == TSR_BF16 && t.read_only == 0 && t.device.type == TSR_CPU);
  CHECK(t.shape[0] == 1 && t.shape[1] == 2 && t.shape[2] == 3 && t.shape[3] == 4);
  CHECK(t.strides[0] == 24 && t.strides[1] == 12 && t.strides[2] == 4 && t.strides[3] == 1);
  t = tsr_tensor_contiguous(memory, TSR_FP32, 2, INT64_MAX, 3, 4);
  CHECK(t.strides[0] == INT64_MAX);
  CHECK(strcmp(tsr_dtype_name(TSR_FP64), "fp64") == 0 && strcmp(tsr_dtype_name(TSR_BF16), "bf16") == 0);
  CHECK(strcmp(tsr_dtype_name(-1), "unknown") == 0);

  int64_t shape[3] = {2, 3, 4};
  DLTensor foreign;
  memset(&foreign, 0, sizeof(foreign));
  foreign.data = memory;
  foreign.device.device_type = kDLCPU;
  foreign.ndim = 3;
  foreign.dtype.code = kDLFloat;
  foreign.dtype.bits = 32;
  foreign.dtype.lanes = 1;
  foreign.shape = shape;
  CHECK_OK(tsr_tensor_from_dlpack(&foreign, TSR_ROLE_TOKENS, &t));
  CHECK(t.data == memory && t.dtype == TSR_FP32 && t.shape[0] == 1 && t.shape[3] == 4 && t.strides[1] == 12);
  CHECK_OK(tsr_tensor_from_dlpack(&foreign, TSR_ROLE_LSE, &t));
  CHECK(t.shape[0] == 2 && t.shape[2] == 4 && t.shape[3] == 1);
  CHECK_OK(tsr_tensor_from_dlpack(&foreign, TSR_ROLE_BIAS, &t));
  CHECK(t.shape[0] == 1 && t.shape[1] == 2);
  t.data = NULL;
  CHECK_FAILS(tsr_tensor_from_dlpack(NULL, TSR_ROLE_TOKENS, &t), TSR_INVALID_ARGUMENT, "dl_tensor is null");
  CHECK_FAILS(tsr_tensor_from_dlpack(&foreign, TSR_ROLE_TOKENS, NULL), TSR_INVALID_ARGUMENT,
              "result is null");
  CHECK_FAILS(tsr_tensor_from_dlpack(&foreign, 4, &t), TSR_INVALID_ARGUMENT,
              "role is 4; it must be 0 (TSR_ROLE_TOKENS)");
  shape[1] = -3;
  CHECK_FAILS(tsr_tensor_from_dlpack(&foreign, TSR_ROLE_TOKENS, &t), TSR_INVALID_ARGUMENT,
              "dl_tensor.shape[1] is -3; it must be at least 0");
  CHECK(t.data == NULL);
}

// --- block masks ---------------------------------------------------------------------------------

static void check_picture(tsr_block_mask* mask, const char* expected) {
  char picture[64];
  size_t length = 0;
  CHECK_OK(tsr_block_mask_draw(mask, 0, NULL, 0, &length));
  CHECK(length == strlen(expected));
  CHECK_OK(tsr_block_mask_draw(mask, 0, picture, sizeof(picture), &length));
  CHECK(strcmp(picture, expected) == 0);
  tsr_block_mask_release(mask);
}

static void test_block_masks(void) {
  tsr_block_layout layout = TSR_BLOCK_LAYOUT_INIT;
  CHECK(layout.block_q == 128 && layout.block_k == 128 && layout.heads == 1);
  layout.q_length = layout.k_length = 8;
  layout.block_q = layout.block_k = 2;
  tsr_block_mask* mask = NULL;

  const int64_t offsets[5] = {0, 1, 3, 3, 4};
  const int32_t columns[4] = {0, 0, 3, 2};
  CHECK_OK(tsr_block_mask_from_csr(&layout, offsets, 5, columns, 4, &mask));
  check_picture(mask, "#...\n#..#\n....\n..#.\n");
  const uint8_t kept[16] = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
  CHECK_OK(tsr_block_mask_from_blocks(&layout, kept, 16, &mask));
  check_picture(mask, "#...\n.#..\n..#.\n...#\n");
  uint8_t visible[64] = {0};
  visible[0] = visible[1] = visible[8] = visible[9] = 1;
  CHECK_OK(tsr_block_mask_from_dense(&layout, visible, 64, &mask));
  check_picture(mask, "#...\n....\n....\n....\n");
  CHECK_OK(tsr_block_mask_local(&layout, 1, &mask));
  check_picture(mask, "##..\n###.\n.###\n..##\n");
  CHECK_OK(tsr_block_mask_strided(&layout, 2, &mask));
  check_picture(mask, "###.\n####\n####\n.###\n");
  CHECK_OK(tsr_block_mask_fixed(&layout, 2, 1, &mask));
  check_picture(mask, "##.#\n##.#\n.###\n.###\n");
  CHECK_OK(tsr_block_mask_big_bird(&layout, 0, 1, 0, 3, &mask));
  check_picture(mask, "####\n##..\n#.#.\n#..#\n");
  CHECK_OK(tsr_block_mask_butterfly(&layout, &mask));
  check_picture(mask, "###.\n##.#\n#.##\n.###\n");
  CHECK_OK(tsr_block_mask_random(&layout, 1.0, 5, &mask));
  check_picture(mask, "####\n####\n####\n####\n");

  CHECK_OK(tsr_block_mask_local(&layout, 0, &mask));
  tsr_block_mask_retain(mask);
  tsr_block_mask_release(mask);  // one reference is left
  tsr_block_mask_info info = TSR_BLOCK_MASK_INFO_INIT;
  CHECK_OK(tsr_block_mask_describe(mask, &info));
  CHECK(info.q_length == 8 && info.block_k == 2 && info.heads == 1 && info.q_blocks == 4 &&
        info.k_blocks == 4);
  CHECK(info.kept == 4 && info.density == 0.25);
  const int32_t* indices = NULL;
  size_t count = 0;
  CHECK_OK(tsr_block_mask_row(mask, 0, 2, &indices, &count));
  CHECK(count == 1 && indices[0] == 2);
  CHECK_OK(tsr_block_mask_column(mask, 0, 3, &indices, &count));
  CHECK(count == 1 && indices[0] == 3);

  const tsr_device host = {TSR_CPU, 0}, no_gpu = {TSR_CUDA, 9}, no_device = {7, 0};
  CHECK_OK(tsr_block_mask_prepare(mask, host));
  CHECK(tsr_block_mask_prepare(mask, no_gpu) == TSR_UNSUPPORTED);
  CHECK(strstr(tsr_last_error(), "cuda:9 ") != NULL);
  CHECK(tsr_block_mask_prepare(mask, no_device) == TSR_INVALID_ARGUMENT);
  CHECK(tsr_block_mask_prepare(NULL, host) == TSR_INVALID_ARGUMENT);

  // Each query sees the two keys of its own block, which differ by one.
  float q[8] = {0}, k[8] = {0}, v[8] = {0, 1, 2, 3, 4, 5, 6, 7}, out[8];
  column_call call;
  make_columns(&call, 8, 8, q, k, v, out);
  tsr_attention attention = TSR_ATTENTION_INIT;
  attention.block_mask = mask;
  CHECK_OK(tsr_forward(&attention, &call.forward, NULL));
  for (int i = 0; i < 8; ++i) CHECK(near(out[i], i / 2 * 2 + 0.5));

  char small[3] = "ab";
  size_t length = 0;
  CHECK_FAILS(tsr_block_mask_draw(mask, 0, small, sizeof(small), &length), TSR_INVALID_ARGUMENT,
              "capacity is 3; it must be at least 21");
  CHECK(length == 20 && strcmp(small, "ab") == 0);
  CHECK_FAILS(tsr_block_mask_draw(mask, 1, NULL, 0, &length), TSR_INVALID_ARGUMENT, "head is 1");
  CHECK_FAILS(tsr_block_mask_draw(NULL, 0, NULL, 0, &length), TSR_INVALID_ARGUMENT, "mask is null");
  CHECK_FAILS(tsr_block_mask_row(mask, 0, 4, &indices, &count), TSR_INVALID_ARGUMENT, "q_block is 4");
  CHECK_FAILS(tsr_block_mask_column(mask, 0, -1, &indices, &count), TSR_INVALID_ARGUMENT, "k_block is -1");
  CHECK_FAILS(tsr_block_mask_row(mask, 0, 0, NULL, &count), TSR_INVALID_ARGUMENT, "indices is null");
  CHECK_FAILS(tsr_block_mask_describe(mask, NULL), TSR_INVALID_ARGUMENT, "info is null");
  tsr_block_mask_release(mask);
  mask = NULL;
  CHECK_FAILS(tsr_block_mask_local(NULL, 1, &mask), TSR_INVALID_ARGUMENT, "layout is null");
  CHECK_FAILS(tsr_block_mask_local(&layout, 1, NULL), TSR_INVALID_ARGUMENT, "mask is null");
  CHECK_FAILS(tsr_block_mask_local(&layout, -1, &mask), TSR_INVALID_ARGUMENT, "radius is -1");
  CHECK_FAILS(tsr_block_mask_from_csr(&layout, NULL, 5, columns, 4, &mask), TSR_INVALID_ARGUMENT,
              "row_offsets is null");
  layout.block_q = 0;
  CHECK_FAILS(tsr_block_mask_butterfly(&layout, &mask), TSR_INVALID_ARGUMENT, "block_q is 0");
  CHECK(mask == NULL);
  tsr_block_mask_retain(NULL);
  tsr_block_mask_release(NULL);
}

// --- execution -----------------------------------------------------------------------------------

typedef struct {
  int runs, bodies;
  size_t allocated, freed;
  int refuse;
} counters;

static int count_workers(void* context) {
  (void)context;
  return 3;
}

static void run_in_turn(void* context, int workers, void (*body)(void* body_context, int worker),
                        void* body_context) {
  counters* c = context;
  ++c->runs;
  for (int worker = workers - 1; worker >= 0; --worker) {
    ++c->bodies;
    body(body_context, worker);
  }
}

static void* count_allocation(void* context, size_t bytes, size_t alignment, void* stream) {
  counters* c = context;
  if (c->refuse || stream != NULL) return NULL;
  c->allocated += bytes;
  return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void count_release(void* context, void* data, size_t bytes, size_t alignment, void* stream) {
  counters* c = context;
  (void)alignment;
  (void)stream;
  c->freed += bytes;
  free(data);
}

static void test_execution(void) {
  small_problem p;
  make_small(&p);
  counters c = {0, 0, 0, 0, 0};
  tsr_executor executor = TSR_EXECUTOR_INIT;
  executor.context = &c;
  executor.concurrency = count_workers;
  executor.run = run_in_turn;
  tsr_allocator allocator = TSR_ALLOCATOR_INIT;
  allocator.context = &c;
  allocator.allocate = count_allocation;
  allocator.deallocate = count_release;
  tsr_execution execution = TSR_EXECUTION_INIT;
  execution.executor = &executor;
  execution.allocator = &allocator;
  CHECK_OK(tsr_forward(NULL, &p.forward, &execution));
  CHECK(near(p.out, 5.0));
  CHECK(c.runs > 0 && c.bodies >= c.runs);
  tsr_plan plan = TSR_PLAN_INIT;
  CHECK_OK(tsr_plan_forward(NULL, &p.forward, &execution, &plan));
  CHECK(c.allocated == plan.workspace_bytes && c.freed == c.allocated);
  const size_t needed = plan.workspace_bytes;
  tsr_plan_release(&plan);

  c.refuse = 1;
  if (needed > 0) {
    CHECK_FAILS(tsr_forward(NULL, &p.forward, &execution), TSR_OUT_OF_MEMORY, "bytes of workspace on cpu");
    // Memory that the caller lends needs no allocator.
    execution.workspace_bytes = (needed + 255) / 256 * 256;
    execution.workspace = aligned_alloc(256, execution.workspace_bytes);
    CHECK_OK(tsr_forward(NULL, &p.forward, &execution));
    execution.workspace_bytes = needed - 1;
    CHECK_FAILS(tsr_forward(NULL, &p.forward, &execution), TSR_INVALID_ARGUMENT,
                "execution.workspace.bytes is ");
    free(execution.workspace);
  }

  execution = (tsr_execution)TSR_EXECUTION_INIT;
  execution.threads = 2;
  CHECK_OK(tsr_forward(NULL, &p.forward, &execution));
  execution.threads = -2;
  CHECK_FAILS(tsr_forward(NULL, &p.forward, &execution), TSR_INVALID_ARGUMENT, "execution.threads is -2");
  execution = (tsr_execution)TSR_EXECUTION_INIT;
  execution.reserved = 4;
  CHECK_FAILS(tsr_forward(NULL, &p.forward, &execution), TSR_INVALID_ARGUMENT,
              "execution.reserved is 4; it must be 0");
  execution = (tsr_execution)TSR_EXECUTION_INIT;
  executor.run = NULL;
  execution.executor = &executor;
  CHECK_FAILS(tsr_forward(NULL, &p.forward, &execution), TSR_INVALID_ARGUMENT,
              "execution.executor.run is null");
  executor.concurrency = NULL;
  CHECK_FAILS(tsr_forward(NULL, &p.forward, &execution), TSR_INVALID_ARGUMENT,
              "execution.executor.concurrency is null");
  executor.struct_size = 1;
  CHECK_FAILS(tsr_forward(NULL, &p.forward, &execution), TSR_INVALID_ARGUMENT, "TSR_EXECUTOR_INIT");
  execution.executor = NULL;
  execution.workspace = p.t_q.data;
  execution.workspace_bytes = 1;
  CHECK_FAILS(tsr_forward(NULL, &p.forward, &execution), TSR_INVALID_ARGUMENT,
              "execution.workspace overlaps q in memory");
  execution.workspace = NULL;
  execution.workspace_bytes = 0;
  allocator.deallocate = NULL;
  execution.allocator = &allocator;
  CHECK_FAILS(tsr_forward(NULL, &p.forward, &execution), TSR_INVALID_ARGUMENT,
              "execution.allocator.deallocate is null");
  allocator.allocate = NULL;
  CHECK_FAILS(tsr_forward(NULL, &p.forward, &execution), TSR_INVALID_ARGUMENT,
              "execution.allocator.allocate is null");
}

// --- plans and what there is ---------------------------------------------------------------------

static void test_plans(void) {
  const tsr_device cpu = {TSR_CPU, 0};
  tsr_shapes shapes = TSR_SHAPES_INIT;
  CHECK(shapes.batch == 1 && shapes.q_heads == 1 && shapes.kv_heads == 0 && shapes.qk_dim == 64 &&
        shapes.lse == 1);
  shapes.q_length = shapes.k_length = 256;
  tsr_attention attention = TSR_ATTENTION_INIT;
  attention.algorithm = TSR_FLASH2;
  tsr_execution execution = TSR_EXECUTION_INIT;
  execution.threads = 2;
  tsr_plan plan = TSR_PLAN_INIT;
  CHECK_OK(tsr_plan_shapes(&attention, &shapes, cpu, TSR_FORWARD, &execution, &plan));
  CHECK(strcmp(plan.kernel, "cpu.flash2") == 0 && plan.algorithm == TSR_FLASH2 &&
        plan.direction == TSR_FORWARD);
  CHECK(plan.device.type == TSR_CPU && plan.threads >= 1 && plan.threads <= 2 && plan.block_q > 0 &&
        plan.block_k > 0);
  CHECK(plan.visible_pairs == 256.0 * 256.0 && plan.flops == 4.0 * 256 * 256 * 64);
  CHECK(plan.minimum_bytes > 0 && plan.traffic_bytes >= plan.minimum_bytes);
  CHECK(plan.standard_traffic_bytes > 0 && plan.standard_workspace_bytes > 0 && plan.details != NULL);
  for (size_t i = 0; i < plan.rejected_count; ++i) {
    CHECK(strlen(plan.rejected[i].kernel) > 0 && strlen(plan.rejected[i].reason) > 0);
  }
  size_t length = 0;
  CHECK_OK(tsr_plan_text(&plan, NULL, 0, &length));
  char* text = malloc(length + 1);
  CHECK_OK(tsr_plan_text(&plan, text, length + 1, NULL));
  CHECK(strlen(text) == length && strstr(text, "cpu.flash2") != NULL);
  CHECK_FAILS(tsr_plan_text(&plan, text, length, NULL), TSR_INVALID_ARGUMENT, "capacity is ");
  CHECK_FAILS(tsr_plan_text(&plan, NULL, 0, NULL), TSR_INVALID_ARGUMENT, "buffer and length are null");
  free(text);
  tsr_plan_release(&plan);
  CHECK(plan.kernel == NULL && plan.storage == NULL);
  CHECK_FAILS(tsr_plan_text(&plan, NULL, 0, &length), TSR_INVALID_ARGUMENT, "plan is empty");
  tsr_plan_release(&plan);
  tsr_plan_release(NULL);

  small_problem p;
  make_small(&p);
  p.t_q.data = p.t_k.data = NULL;  // nothing is touched
  CHECK_OK(tsr_plan_forward(NULL, &p.forward, NULL, &plan));
  CHECK(plan.direction == TSR_FORWARD && plan.visible_pairs == 2.0);
  tsr_plan_release(&plan);
  CHECK_OK(tsr_plan_backward(NULL, &p.backward, NULL, &plan));
  CHECK(plan.direction == TSR_BACKWARD);
  tsr_plan_release(&plan);

  CHECK_FAILS(tsr_plan_shapes(NULL, NULL, cpu, TSR_FORWARD, NULL, &plan), TSR_INVALID_ARGUMENT,
              "shapes is null");
  CHECK_FAILS(tsr_plan_shapes(NULL, &shapes, cpu, TSR_FORWARD, NULL, NULL), TSR_INVALID_ARGUMENT,
              "plan is null");
  CHECK_FAILS(tsr_plan_shapes(NULL, &shapes, cpu, 2, NULL, &plan), TSR_INVALID_ARGUMENT,
              "direction is 2; it must be 0 (TSR_FORWARD) or 1 (TSR_BACKWARD)");
  CHECK_FAILS(tsr_plan_shapes(NULL, &shapes, (tsr_device){5, 0}, TSR_FORWARD, NULL, &plan),
              TSR_INVALID_ARGUMENT, "device.type is 5");
  shapes.kv_heads = 3;
  CHECK_FAILS(tsr_plan_shapes(NULL, &shapes, cpu, TSR_FORWARD, NULL, &plan), TSR_INVALID_ARGUMENT,
              "shapes.kv_heads is 3; it must divide 1, shapes.q_heads");
  shapes.kv_heads = 0;
  shapes.k_length = (int64_t)1 << 33;
  CHECK_FAILS(tsr_plan_shapes(NULL, &shapes, cpu, TSR_FORWARD, NULL, &plan), TSR_INVALID_ARGUMENT,
              "shapes.k_length is 8589934592; it must be between 0 and 2^32");
  shapes.k_length = 256;
  shapes.dtype = 4;
  CHECK_FAILS(tsr_plan_shapes(NULL, &shapes, cpu, TSR_FORWARD, NULL, &plan), TSR_INVALID_ARGUMENT,
              "shapes.dtype is 4");
  shapes.dtype = TSR_FP32;
  CHECK_FAILS(tsr_plan_forward(NULL, NULL, NULL, &plan), TSR_INVALID_ARGUMENT, "tensors is null");
  CHECK_FAILS(tsr_plan_backward(NULL, NULL, NULL, &plan), TSR_INVALID_ARGUMENT, "tensors is null");
  CHECK(plan.storage == NULL);
}

static void test_lists(void) {
  tsr_kernel_list* kernels = NULL;
  size_t count = 0;
  CHECK_OK(tsr_kernel_list_create(&kernels, &count));
  CHECK(count >= 2);
  int flash2_forward = 0;
  for (size_t i = 0; i < count; ++i) {
    tsr_kernel_info info = TSR_KERNEL_INFO_INIT;
    CHECK_OK(tsr_kernel_list_get(kernels, i, &info));
    CHECK(strlen(info.name) > 0 && info.feature_count > 0);
    for (size_t f = 0; f < info.feature_count; ++f) CHECK(strlen(info.features[f]) > 0);
    for (size_t m = 0; m < info.missing_count; ++m) CHECK(strlen(info.missing[m]) > 0);
    flash2_forward |= strcmp(info.name, "cpu.flash2") == 0 && info.algorithm == TSR_FLASH2 &&
                      info.direction == TSR_FORWARD && info.device_type == TSR_CPU;
  }
  CHECK(flash2_forward);
  tsr_kernel_info info = TSR_KERNEL_INFO_INIT;
  CHECK_FAILS(tsr_kernel_list_get(kernels, count, &info), TSR_INVALID_ARGUMENT, "it must be less than ");
  CHECK_FAILS(tsr_kernel_list_get(NULL, 0, &info), TSR_INVALID_ARGUMENT, "list is null");
  CHECK_FAILS(tsr_kernel_list_get(kernels, 0, NULL), TSR_INVALID_ARGUMENT, "info is null");
  CHECK_FAILS(tsr_kernel_list_create(NULL, &count), TSR_INVALID_ARGUMENT, "list is null");
  tsr_kernel_list_release(kernels);
  tsr_kernel_list_release(NULL);

  tsr_device_list* devices = NULL;
  CHECK_OK(tsr_device_list_create(&devices, &count));
  CHECK(count >= 1);
  tsr_device_info device = TSR_DEVICE_INFO_INIT;
  CHECK_OK(tsr_device_list_get(devices, 0, &device));
  CHECK(device.device.type == TSR_CPU && strlen(device.name) > 0 && strlen(device.description) > 0);
  CHECK_FAILS(tsr_device_list_get(devices, count, &device), TSR_INVALID_ARGUMENT, "it must be less than ");
  device.struct_size = 0;
  CHECK_FAILS(tsr_device_list_get(devices, 0, &device), TSR_INVALID_ARGUMENT, "TSR_DEVICE_INFO_INIT");
  CHECK_FAILS(tsr_device_list_create(NULL, NULL), TSR_INVALID_ARGUMENT, "list is null");
  tsr_device_list_release(devices);
  tsr_device_list_release(NULL);
}

static void test_facts(void) {
  int major = -1, minor = -1, patch = -1;
  CHECK(sscanf(tsr_version(), "%d.%d.%d", &major, &minor, &patch) == 3);
  size_t length = 0;
  CHECK_OK(tsr_build_info(NULL, 0, &length));
  char* text = malloc(length + 1);
  CHECK_OK(tsr_build_info(text, length + 1, &length));
  CHECK(strstr(text, tsr_version()) != NULL);
  free(text);
  float slopes[8];
  CHECK_OK(tsr_alibi_slopes(8, slopes));
  for (int h = 0; h < 8; ++h) CHECK(near(slopes[h], pow(2.0, -(h + 1))));
  CHECK_FAILS(tsr_alibi_slopes(0, slopes), TSR_INVALID_ARGUMENT, "heads is 0");
  CHECK_FAILS(tsr_alibi_slopes(8, NULL), TSR_INVALID_ARGUMENT, "slopes is null");
  CHECK(strcmp(tsr_algorithm_name(TSR_FLASH2), "flash2") == 0 &&
        strcmp(tsr_algorithm_name(99), "unknown") == 0);
  CHECK(strcmp(tsr_direction_name(TSR_BACKWARD), "backward") == 0 &&
        strcmp(tsr_direction_name(-1), "unknown") == 0);
}

int main(void) {
  test_tensors();
  test_block_masks();
  test_execution();
  test_plans();
  test_lists();
  test_facts();
  if (failures == 0) printf("the objects of the C interface: all checks passed\n");
  return failures == 0 ? 0 : 1;
}
