// Causal attention over four tokens, from C.
#include <stdio.h>

#include "tessera/capi.h"

int main(void) {
  // Tensors are views of your memory: batch, sequence, heads, head_dim.
  float q[] = {1, 0, 0, 1, 1, 1, 0, 0}, k[] = {1, 0, 0, 1, 1, 1, 0, 0};
  float v[] = {1, 10, 2, 20, 3, 30, 4, 40}, out[8];
  tsr_tensor tq = tsr_tensor_contiguous(q, TSR_FP32, 1, 4, 1, 2);
  tsr_tensor tk = tsr_tensor_contiguous(k, TSR_FP32, 1, 4, 1, 2);
  tsr_tensor tv = tsr_tensor_contiguous(v, TSR_FP32, 1, 4, 1, 2);
  tsr_tensor to = tsr_tensor_contiguous(out, TSR_FP32, 1, 4, 1, 2);

  tsr_attention attention = TSR_ATTENTION_INIT;
  attention.right = 0;  // causal: no key after the query
  tsr_forward_tensors tensors = TSR_FORWARD_TENSORS_INIT;
  tensors.q = &tq, tensors.k = &tk, tensors.v = &tv, tensors.out = &to;
  if (tsr_forward(&attention, &tensors, NULL) != TSR_OK) return puts(tsr_last_error()), 1;

  for (int row = 0; row < 4; ++row) printf("%.3f %.3f\n", out[2 * row], out[2 * row + 1]);
  return 0;
}
