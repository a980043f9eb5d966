// What kernels that norm rows share.
#pragma once
#include "arithmetic.h"

INLINE float inverse_root(float squares, int64_t n, float eps) { return 1.0f / sqrt_rn(squares / (float)n + eps); }

// norm_factor is that of x in the gradient by x.
INLINE float norm_factor(float inverse, float along, int64_t n) { return inverse * inverse * inverse * (along / (float)n); }
INLINE float norm_gradient(float by_normed, float x, float inverse, float factor) { return fma_rn(by_normed, inverse, -(x * factor)); }
