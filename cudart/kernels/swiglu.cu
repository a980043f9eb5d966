// SwiGLU: y = gate · sigmoid(gate) · up, and its backward.
#include "arithmetic.h"

INLINE float sigmoid(float x) { return 1.0f / (1.0f + exp_rn(-x)); }

KERNEL(swiglu, 256, swiglu_arguments) {
  float *y = row_of<float>(a.y, block_x());
  const float *gate = row_of<const float>(a.gate, block_x()), *up = row_of<const float>(a.up, block_x());
  EACH_COLUMN(c, a.y.cols) y[c] = gate[c] * sigmoid(gate[c]) * up[c];
}

// dgate may be gate and dup may be up.
KERNEL(swiglu_backward, 256, swiglu_backward_arguments) {
  float *dgate = row_of<float>(a.dgate, block_x()), *dup = row_of<float>(a.dup, block_x());
  const float *dy = row_of<const float>(a.dy, block_x()), *gate = row_of<const float>(a.gate, block_x()), *up = row_of<const float>(a.up, block_x());
  EACH_COLUMN(c, a.dy.cols) {
    float g = gate[c], u = up[c], d = dy[c], s = sigmoid(g);
    dgate[c] = d * u * (s * fma_rn(g, 1.0f - s, 1.0f));
    dup[c] = d * (g * s);
  }
}
