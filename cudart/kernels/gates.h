// The sigmoid and what is made of it.
#pragma once
#include "arithmetic.h"

INLINE float sigmoid(float x) { return 1.0f / (1.0f + exp_rn(-x)); }
INLINE float silu(float x) { return x * sigmoid(x); }
// silu_slope is the derivative of silu.
INLINE float silu_slope(float x) {
  float s = sigmoid(x);
  return s * fma_rn(x, 1.0f - s, 1.0f);
}
