// What kernels that turn heads share.
#pragma once
#include "arithmetic.h"

// turn turns elements 0 and half by an angle.
INLINE void turn(float *p, int64_t half, float cosine, float sine) {
  float u = p[0], v = p[half];
  p[0] = fma_rn(u, cosine, -(v * sine));
  p[half] = fma_rn(v, cosine, u * sine);
}
