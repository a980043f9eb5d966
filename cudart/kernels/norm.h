// What kernels that norm rows share.
#pragma once
#include "arithmetic.h"

INLINE float inverse_root(float squares, int64_t n, float eps) { return 1.0f / sqrt_rn(squares / (float)n + eps); }

// norm_factor is that of x in the gradient by x.
INLINE float norm_factor(float inverse, float along, int64_t n) { return inverse * inverse * inverse * (along / (float)n); }
INLINE float norm_gradient(float by_normed, float x, float inverse, float factor) { return fma_rn(by_normed, inverse, -(x * factor)); }

enum { NORM_THREADS = 256, NORM_HELD = 16 };

// A row is summed by its threads, each over every threads-th column in order, and then across threads. Columns from held · threads on are read twice.
template <bool narrow_rows> struct norm_row {
  static constexpr int threads = narrow_rows ? 32 : NORM_THREADS, held = narrow_rows ? NARROW_ROW / 32 : NORM_HELD;
  INLINE int first() { return narrow_rows ? lane() : thread(); }
  INLINE int64_t row() { return narrow_rows ? block_x() * (NORM_THREADS / 32) + warp() : block_x(); }
  INLINE float sum(float v, float *room) {
    if constexpr (narrow_rows) return warp_sum(v);
    else return block_sum<NORM_THREADS>(v, room);
  }
};
