/* One query against two keys with equal scores, from C: the output is the mean of both values. */
#include <stdio.h>
#include <tessera/capi.h>

int main(void) {
  float q[] = {1.0F, 0.0F};
  float k[] = {0.5F, 1.0F, 0.5F, -1.0F};
  float v[] = {1.0F, 10.0F, 3.0F, 30.0F};
  float out[2] = {0.0F, 0.0F};

  const tsr_tensor q_view = tsr_tensor_contiguous(q, TSR_FP32, 1, 1, 1, 2);
  const tsr_tensor k_view = tsr_tensor_contiguous(k, TSR_FP32, 1, 2, 1, 2);
  const tsr_tensor v_view = tsr_tensor_contiguous(v, TSR_FP32, 1, 2, 1, 2);
  const tsr_tensor out_view = tsr_tensor_contiguous(out, TSR_FP32, 1, 1, 1, 2);
  tsr_forward_tensors tensors = TSR_FORWARD_TENSORS_INIT;
  tensors.q = &q_view;
  tensors.k = &k_view;
  tensors.v = &v_view;
  tensors.out = &out_view;

  if (tsr_forward(NULL, &tensors, NULL) != TSR_OK) {
    printf("%s\n", tsr_last_error());
    return 1;
  }
  printf("tessera %s: %g %g\n", tsr_version(), (double)out[0], (double)out[1]);
  return out[0] == 2.0F && out[1] == 20.0F ? 0 : 1;
}
