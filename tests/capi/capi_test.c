// The C interface from C: the calls, their options, errors and their text, and struct versions.
// Returns 0 when everything holds and prints what does not.
#include <pthread.h>

#include "capi_check.h"

static void test_forward_and_backward(void) {
  small_problem p;
  make_small(&p);
  CHECK_OK(tsr_forward(NULL, &p.forward, NULL));
  CHECK(near(p.out, 0.25 * 8 + 0.75 * 4));
  CHECK(near(p.lse, log(4.0)));

  // dP = dO V = (8, 4), dS = P (dP - O) = (1/4 * 3, 3/4 * -1), dQ = dS K, dK = dS Q, dV = P dO.
  CHECK_OK(tsr_backward(NULL, &p.backward, NULL));
  CHECK(near(p.grad_q, -0.75 * log(3.0)));
  CHECK(near(p.grad_k[0], 0.75) && near(p.grad_k[1], -0.75));
  CHECK(near(p.grad_v[0], 0.25) && near(p.grad_v[1], 0.75));
}

static void test_options(void) {
  small_problem p;
  make_small(&p);
  tsr_attention attention = TSR_ATTENTION_INIT;

  attention.has_scale = 1;  // a scale of 0 is a scale: both keys weigh the same
  CHECK_OK(tsr_forward(&attention, &p.forward, NULL));
  CHECK(near(p.out, 6.0));

  attention = (tsr_attention)TSR_ATTENTION_INIT;
  attention.right = 0;
  attention.align = TSR_TOP_LEFT;  // causal from the first key: only that one
  CHECK_OK(tsr_forward(&attention, &p.forward, NULL));
  CHECK(near(p.out, 8.0));

  attention.has_diagonal = 1;
  attention.diagonal = 1;  // now both
  CHECK_OK(tsr_forward(&attention, &p.forward, NULL));
  CHECK(near(p.out, 5.0));

  attention.diagonal = -1;  // and now none: output 0, LSE -infinity
  CHECK_OK(tsr_forward(&attention, &p.forward, NULL));
  CHECK(p.out == 0.0F && isinf(p.lse) && p.lse < 0);

  attention.diagonal = 0;
  attention.origin_row = 4;  // a shard: row 4 against columns 3 and 4
  attention.origin_column = 3;
  CHECK_OK(tsr_forward(&attention, &p.forward, NULL));
  CHECK(near(p.out, 5.0));

  attention = (tsr_attention)TSR_ATTENTION_INIT;
  attention.left = 0;  // only the last key
  CHECK_OK(tsr_forward(&attention, &p.forward, NULL));
  CHECK(near(p.out, 4.0));

  attention = (tsr_attention)TSR_ATTENTION_INIT;
  attention.softcap = 1e-6;  // squeezes both scores to 0
  CHECK_OK(tsr_forward(&attention, &p.forward, NULL));
  CHECK(fabs(p.out - 6.0) < 1e-4);

  const float slope = (float)log(3.0);  // takes from key 0 (distance 1) as much again
  attention = (tsr_attention)TSR_ATTENTION_INIT;
  attention.alibi_slopes = &slope;
  CHECK_OK(tsr_forward(&attention, &p.forward, NULL));
  CHECK(fabs(p.out - (0.1 * 8 + 0.9 * 4)) < 1e-5);

  float bias[2] = {(float)log(3.0), 0.0F};  // makes up for the difference
  const tsr_tensor t_bias = tsr_tensor_contiguous(bias, TSR_FP32, 1, 1, 1, 2);
  p.forward.bias = &t_bias;
  CHECK_OK(tsr_forward(NULL, &p.forward, NULL));
  CHECK(near(p.out, 6.0));
  p.forward.bias = NULL;

  uint8_t visible[2] = {0, 255};  // hides key 0
  const tsr_tensor t_visible = tsr_tensor_contiguous(visible, TSR_BOOL, 1, 1, 1, 2);
  p.forward.visible = &t_visible;
  CHECK_OK(tsr_forward(NULL, &p.forward, NULL));
  CHECK(near(p.out, 4.0));
  p.backward.visible = &t_visible;
  CHECK_OK(tsr_backward(NULL, &p.backward, NULL));
  CHECK(p.grad_k[0] == 0.0F && p.grad_v[0] == 0.0F && near(p.grad_v[1], 1.0));
  visible[1] = 0;
  CHECK_OK(tsr_forward(NULL, &p.forward, NULL));
  CHECK(p.out == 0.0F && isinf(p.lse) && p.lse < 0);
  p.forward.visible = p.backward.visible = NULL;

  for (int algorithm = TSR_STANDARD; algorithm <= TSR_MINIMAL; ++algorithm) {
    attention = (tsr_attention)TSR_ATTENTION_INIT;
    attention.algorithm = algorithm;
    attention.deterministic = 1;
    p.out = 0;
    const tsr_status status = tsr_forward(&attention, &p.forward, NULL);
    CHECK(status == TSR_OK ? near(p.out, 5.0) : status == TSR_UNSUPPORTED);
  }
}

static void test_dropout(void) {
  enum { kRows = 64, kKeys = 64 };
  static float q[kRows], k[kKeys], v[kKeys], by_value[kRows], by_state[kRows];
  for (int j = 0; j < kKeys; ++j) v[j] = 1.0F;
  tsr_tensor t_q = tsr_tensor_contiguous(q, TSR_FP32, 1, kRows, 1, 1);
  tsr_tensor t_k = tsr_tensor_contiguous(k, TSR_FP32, 1, kKeys, 1, 1);
  tsr_tensor t_v = tsr_tensor_contiguous(v, TSR_FP32, 1, kKeys, 1, 1);
  tsr_tensor t_out = tsr_tensor_contiguous(by_value, TSR_FP32, 1, kRows, 1, 1);
  tsr_forward_tensors tensors = TSR_FORWARD_TENSORS_INIT;
  tensors.q = &t_q;
  tensors.k = &t_k;
  tensors.v = &t_v;
  tensors.out = &t_out;
  tsr_attention attention = TSR_ATTENTION_INIT;
  attention.dropout_probability = 0.5;
  attention.dropout_seed = 42;
  attention.dropout_offset = 7;
  CHECK_OK(tsr_forward(&attention, &tensors, NULL));

  const uint64_t state[2] = {42, 7};
  attention.dropout_seed = attention.dropout_offset = 0;
  attention.dropout_state = state;
  t_out.data = by_state;
  CHECK_OK(tsr_forward(&attention, &tensors, NULL));
  CHECK(memcmp(by_value, by_state, sizeof(by_value)) == 0);

  double mean = 0;  // of kept * 2 with a keep rate of 1/2
  for (int i = 0; i < kRows; ++i) mean += (double)by_value[i] / (double)kRows;
  CHECK(fabs(mean - 1.0) < 0.1 && mean != 1.0);
}

static void test_packed(void) {
  // Two sequences with one and two keys, a query each: the first sees only its own key.
  float q[2] = {1, 1}, k[3] = {0, 0, 0}, v[3] = {1, 2, 4}, out[2];
  const int32_t lengths_q[3] = {0, 1, 2}, lengths_k[3] = {0, 1, 3};
  column_call call;
  make_columns(&call, 2, 3, q, k, v, out);
  tsr_attention attention = TSR_ATTENTION_INIT;
  attention.lengths_q = lengths_q;
  attention.lengths_k = lengths_k;
  attention.lengths_count = 2;
  CHECK_OK(tsr_forward(&attention, &call.forward, NULL));
  CHECK(near(out[0], 1.0) && near(out[1], 3.0));
  attention.lengths_max_q = 1;
  attention.lengths_max_k = 1;
  CHECK_FAILS(tsr_forward(&attention, &call.forward, NULL), TSR_INVALID_ARGUMENT,
              "lengths.max_k is 1; it must be at least 2");
}

// --- errors --------------------------------------------------------------------------------------

static void test_errors(void) {
  small_problem p;
  make_small(&p);
  p.out = 123.0F;
  CHECK_FAILS(tsr_forward(NULL, NULL, NULL), TSR_INVALID_ARGUMENT, "tensors is null");
  p.t_q.dtype = 9;
  CHECK_FAILS(
      tsr_forward(NULL, &p.forward, NULL), TSR_INVALID_ARGUMENT,
      "q.dtype is 9; it must be 0 (TSR_FP64), 1 (TSR_FP32), 2 (TSR_FP16), 3 (TSR_BF16) or 4 (TSR_BOOL)");
  p.t_q.dtype = TSR_FP16;
  CHECK_FAILS(tsr_forward(NULL, &p.forward, NULL), TSR_INVALID_ARGUMENT,
              "k.dtype is fp32; it must be fp16, as q");
  p.t_q.dtype = TSR_FP32;
  p.t_q.device.type = -3;
  CHECK_FAILS(tsr_forward(NULL, &p.forward, NULL), TSR_INVALID_ARGUMENT,
              "q.device.type is -3; it must be 0 (TSR_CPU)");
  p.t_q.device.type = TSR_CPU;
  p.t_out.read_only = 1;
  CHECK_FAILS(tsr_forward(NULL, &p.forward, NULL), TSR_INVALID_ARGUMENT, "out is read-only");
  p.t_out.read_only = 0;
  p.t_q.shape[3] = 300;
  CHECK_FAILS(tsr_forward(NULL, &p.forward, NULL), TSR_INVALID_ARGUMENT,
              "q.shape[3] (head_dim) is 300; it must be between 1 and 256");
  p.t_q.shape[3] = 1;
  p.forward.k = NULL;
  CHECK_FAILS(tsr_forward(NULL, &p.forward, NULL), TSR_INVALID_ARGUMENT, "k is not given");
  const tsr_tensor zero = {0};  // a tensor of zeros is one that is not given
  p.forward.k = &zero;
  CHECK_FAILS(tsr_forward(NULL, &p.forward, NULL), TSR_INVALID_ARGUMENT, "k is not given");
  p.forward.k = &p.t_k;
  p.forward.bias = &zero;
  CHECK_OK(tsr_forward(NULL, &p.forward, NULL));
  CHECK(near(p.out, 5.0));
  p.out = 123.0F;

  tsr_attention attention = TSR_ATTENTION_INIT;
  attention.algorithm = 6;
  CHECK_FAILS(tsr_forward(&attention, &p.forward, NULL), TSR_INVALID_ARGUMENT,
              "attention.algorithm is 6; it must be 0 (TSR_AUTOMATIC)");
  attention.algorithm = TSR_FLASH3;
  CHECK_FAILS(tsr_forward(&attention, &p.forward, NULL), TSR_UNSUPPORTED,
              "no CPU kernel implements flash3; it requires a GPU");
  attention = (tsr_attention)TSR_ATTENTION_INIT;
  attention.align = 2;
  CHECK_FAILS(tsr_forward(&attention, &p.forward, NULL), TSR_INVALID_ARGUMENT,
              "attention.align is 2; it must be 0 (TSR_BOTTOM_RIGHT) or 1 (TSR_TOP_LEFT)");
  attention = (tsr_attention)TSR_ATTENTION_INIT;
  attention.reserved = 1;
  CHECK_FAILS(tsr_forward(&attention, &p.forward, NULL), TSR_INVALID_ARGUMENT,
              "attention.reserved is 1; it must be 0");
  attention = (tsr_attention)TSR_ATTENTION_INIT;
  attention.dropout_probability = 1;
  CHECK_FAILS(tsr_backward(&attention, &p.backward, NULL), TSR_INVALID_ARGUMENT,
              "dropout.probability is 1; it must be in [0, 1)");
  CHECK(p.out == 123.0F);

  // A text stays until the next failure; a call that succeeds leaves it alone.
  CHECK_OK(tsr_forward(NULL, &p.forward, NULL));
  CHECK(strstr(tsr_last_error(), "dropout.probability") != NULL);

  CHECK(strcmp(tsr_status_name(TSR_OK), "ok") == 0);
  CHECK(strcmp(tsr_status_name(TSR_INVALID_ARGUMENT), "invalid_argument") == 0);
  CHECK(strcmp(tsr_status_name(TSR_UNSUPPORTED), "unsupported") == 0);
  CHECK(strcmp(tsr_status_name(TSR_OUT_OF_MEMORY), "out_of_memory") == 0);
  CHECK(strcmp(tsr_status_name(TSR_DEVICE_FAILURE), "device_failure") == 0);
  CHECK(strcmp(tsr_status_name(TSR_INTERNAL_ERROR), "internal_error") == 0);
  CHECK(strcmp(tsr_status_name(77), "unknown") == 0);
}

static void test_struct_versions(void) {
  small_problem p;
  make_small(&p);
  tsr_attention attention = TSR_ATTENTION_INIT;

  // An older program: its struct ends before `left`; what comes after is not its
  // own and is not read.
  memset((char*)&attention + offsetof(tsr_attention, left), 0x7F,
         sizeof(attention) - offsetof(tsr_attention, left));
  attention.struct_size = offsetof(tsr_attention, left);
  attention.has_scale = 1;
  CHECK_OK(tsr_forward(&attention, &p.forward, NULL));
  CHECK(near(p.out, 6.0));
  p.forward.struct_size = offsetof(tsr_forward_tensors, lse);  // one without LSE
  p.lse = 77.0F;
  CHECK_OK(tsr_forward(NULL, &p.forward, NULL));
  CHECK(near(p.out, 5.0) && p.lse == 77.0F);
  p.forward.struct_size = sizeof(p.forward);

  // A newer program: accepted as long as what is unknown is zero.
  struct {
    tsr_attention known;
    int64_t unknown[2];
  } newer = {TSR_ATTENTION_INIT, {0, 0}};
  newer.known.struct_size = sizeof(newer);
  CHECK_OK(tsr_forward(&newer.known, &p.forward, NULL));
  newer.unknown[1] = 5;
  CHECK_FAILS(tsr_forward(&newer.known, &p.forward, NULL), TSR_INVALID_ARGUMENT, "attention.struct_size is ");
  CHECK(strstr(tsr_last_error(), "newer header") != NULL && strstr(tsr_last_error(), tsr_version()) != NULL);

  // Sizes that no header sets.
  attention = (tsr_attention)TSR_ATTENTION_INIT;
  attention.struct_size = 0;
  CHECK_FAILS(tsr_forward(&attention, &p.forward, NULL), TSR_INVALID_ARGUMENT,
              "attention.struct_size is 0; it must be at least 8");
  CHECK(strstr(tsr_last_error(), "TSR_ATTENTION_INIT") != NULL);
  attention.struct_size = (size_t)-1;
  CHECK_FAILS(tsr_forward(&attention, &p.forward, NULL), TSR_INVALID_ARGUMENT, "at most 4096");
  p.backward.struct_size = 3;
  CHECK_FAILS(tsr_backward(NULL, &p.backward, NULL), TSR_INVALID_ARGUMENT, "TSR_BACKWARD_TENSORS_INIT");
  tsr_execution execution = TSR_EXECUTION_INIT;
  execution.struct_size = 5000;
  CHECK_FAILS(tsr_forward(NULL, &p.forward, &execution), TSR_INVALID_ARGUMENT,
              "execution.struct_size is 5000");

  // Results are written as far as the caller's struct reaches.
  tsr_shapes shapes = TSR_SHAPES_INIT;
  shapes.q_length = shapes.k_length = 16;
  tsr_plan plan = TSR_PLAN_INIT;
  plan.struct_size = offsetof(tsr_plan, flops);
  plan.flops = -1;
  CHECK_OK(tsr_plan_shapes(NULL, &shapes, (tsr_device){TSR_CPU, 0}, TSR_FORWARD, NULL, &plan));
  CHECK(plan.kernel != NULL && plan.flops == -1.0);
  tsr_plan_release(&plan);
  CHECK(plan.storage == NULL && plan.struct_size == offsetof(tsr_plan, flops) && plan.flops == -1.0);
  plan.struct_size = sizeof(size_t);  // too small to hold what must be released
  CHECK_FAILS(tsr_plan_shapes(NULL, &shapes, (tsr_device){TSR_CPU, 0}, TSR_FORWARD, NULL, &plan),
              TSR_INVALID_ARGUMENT, "plan.struct_size is 8; it must be at least 16");
  struct {
    tsr_plan known;
    int64_t unknown;
  } newer_plan = {TSR_PLAN_INIT, 9};
  newer_plan.known.struct_size = sizeof(newer_plan);
  CHECK_OK(tsr_plan_shapes(NULL, &shapes, (tsr_device){TSR_CPU, 0}, TSR_FORWARD, NULL, &newer_plan.known));
  CHECK(newer_plan.unknown == 0 && newer_plan.known.flops > 0);
  tsr_plan_release(&newer_plan.known);
}

static void* fail_elsewhere(void* context) {
  CHECK(strcmp(tsr_last_error(), "") == 0);  // this thread has not failed yet
  CHECK_FAILS(tsr_alibi_slopes(-5, context), TSR_INVALID_ARGUMENT, "heads is -5");
  return NULL;
}

static void test_error_text_is_per_thread(void) {
  float slopes[1];
  CHECK_FAILS(tsr_alibi_slopes(-3, slopes), TSR_INVALID_ARGUMENT, "heads is -3");
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, fail_elsewhere, slopes) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(strstr(tsr_last_error(), "heads is -3") != NULL);
}

int main(void) {
  CHECK(strcmp(tsr_last_error(), "") == 0);
  test_forward_and_backward();
  test_options();
  test_dropout();
  test_packed();
  test_errors();
  test_struct_versions();
  test_error_text_is_per_thread();
  if (failures == 0) printf("the calls of the C interface: all checks passed\n");
  return failures == 0 ? 0 : 1;
}
