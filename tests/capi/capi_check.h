// For the tests of the C interface in C: checks that print what does not hold, and
// a problem small enough to compute by hand.
#ifndef TESSERA_TESTS_CAPI_CHECK_H
#define TESSERA_TESTS_CAPI_CHECK_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tessera/capi.h"

static int failures = 0;

#define CHECK(condition)                                                                                \
  do {                                                                                                  \
    if (!(condition)) {                                                                                 \
      ++failures;                                                                                       \
      printf("%s:%d: %s is false; last error: %s\n", __FILE__, __LINE__, #condition, tsr_last_error()); \
    }                                                                                                   \
  } while (0)

#define CHECK_OK(call) CHECK((call) == TSR_OK)

// The call fails with this status and a text that contains this part.
#define CHECK_FAILS(call, status, part)              \
  do {                                               \
    CHECK((call) == (status));                       \
    CHECK(strstr(tsr_last_error(), (part)) != NULL); \
  } while (0)

static int near(double a, double b) { return fabs(a - b) < 1e-6; }

// Two keys, one query, head_dim 1: scores 0 and ln 3, so the probabilities are 1/4 and 3/4.
typedef struct {
  float q, k[2], v[2], out, lse, grad_out, grad_q, grad_k[2], grad_v[2];
  tsr_tensor t_q, t_k, t_v, t_out, t_lse, t_grad_out, t_grad_q, t_grad_k, t_grad_v;
  tsr_forward_tensors forward;
  tsr_backward_tensors backward;
} small_problem;

static void make_small(small_problem* p) {
  const tsr_forward_tensors forward = TSR_FORWARD_TENSORS_INIT;
  const tsr_backward_tensors backward = TSR_BACKWARD_TENSORS_INIT;
  memset(p, 0, sizeof(*p));
  p->q = 1.0F;
  p->k[1] = (float)log(3.0);
  p->v[0] = 8.0F;
  p->v[1] = 4.0F;
  p->grad_out = 1.0F;
  p->t_q = tsr_tensor_contiguous(&p->q, TSR_FP32, 1, 1, 1, 1);
  p->t_k = tsr_tensor_contiguous(p->k, TSR_FP32, 1, 2, 1, 1);
  p->t_v = tsr_tensor_contiguous(p->v, TSR_FP32, 1, 2, 1, 1);
  p->t_out = tsr_tensor_contiguous(&p->out, TSR_FP32, 1, 1, 1, 1);
  p->t_lse = tsr_tensor_contiguous(&p->lse, TSR_FP32, 1, 1, 1, 1);
  p->t_grad_out = tsr_tensor_contiguous(&p->grad_out, TSR_FP32, 1, 1, 1, 1);
  p->t_grad_q = tsr_tensor_contiguous(&p->grad_q, TSR_FP32, 1, 1, 1, 1);
  p->t_grad_k = tsr_tensor_contiguous(p->grad_k, TSR_FP32, 1, 2, 1, 1);
  p->t_grad_v = tsr_tensor_contiguous(p->grad_v, TSR_FP32, 1, 2, 1, 1);
  p->forward = forward;
  p->forward.q = &p->t_q;
  p->forward.k = &p->t_k;
  p->forward.v = &p->t_v;
  p->forward.out = &p->t_out;
  p->forward.lse = &p->t_lse;
  p->backward = backward;
  p->backward.q = &p->t_q;
  p->backward.k = &p->t_k;
  p->backward.v = &p->t_v;
  p->backward.out = &p->t_out;
  p->backward.lse = &p->t_lse;
  p->backward.grad_out = &p->t_grad_out;
  p->backward.grad_q = &p->t_grad_q;
  p->backward.grad_k = &p->t_grad_k;
  p->backward.grad_v = &p->t_grad_v;
}

// A call with columns of numbers: one head, head_dim 1.
typedef struct {
  tsr_tensor t_q, t_k, t_v, t_out;
  tsr_forward_tensors forward;
} column_call;

static void make_columns(column_call* p, int64_t queries, int64_t keys, float* q, float* k, float* v,
                         float* out) {
  const tsr_forward_tensors forward = TSR_FORWARD_TENSORS_INIT;
  p->t_q = tsr_tensor_contiguous(q, TSR_FP32, 1, queries, 1, 1);
  p->t_k = tsr_tensor_contiguous(k, TSR_FP32, 1, keys, 1, 1);
  p->t_v = tsr_tensor_contiguous(v, TSR_FP32, 1, keys, 1, 1);
  p->t_out = tsr_tensor_contiguous(out, TSR_FP32, 1, queries, 1, 1);
  p->forward = forward;
  p->forward.q = &p->t_q;
  p->forward.k = &p->t_k;
  p->forward.v = &p->t_v;
  p->forward.out = &p->t_out;
}

#endif  // TESSERA_TESTS_CAPI_CHECK_H
