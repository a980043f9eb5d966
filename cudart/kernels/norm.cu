// RMSNorm: y = x · r · scale with r = 1/√(mean(x²) + eps), and its backward. A narrow row (a head of QK-norm) is one warp's, a wide one a block's: which it is depends on the
// number of columns alone. What a thread has of a row is asked for at once, and stays in registers.
#include "norm.h"

// y may be x: a thread reads and writes the same elements. With add, x += add comes first.
template <bool narrow_rows> INLINE void norm(const norm_arguments &a, float *room) {
  using R = norm_row<narrow_rows>;
  int64_t r = R::row(), cols = a.x.cols;
  if (r >= a.x.rows) return; // a whole warp at once, or a whole block
  float *x = row_of<float>(a.x, r), held[R::held], squares = 0.0f;
  const float *add = a.add.at ? row_of<const float>(a.add, r) : nullptr, *scale = memory<const float>(a.scale);
  UNROLL for (int e = 0; e < R::held; e++) {
    int64_t c = R::first() + e * R::threads;
    held[e] = c < cols ? x[c] : 0.0f;
  }
  if (add) {
    UNROLL for (int e = 0; e < R::held; e++) {
      int64_t c = R::first() + e * R::threads;
      if (c < cols) held[e] = held[e] + add[c];
    }
    UNROLL for (int e = 0; e < R::held; e++) {
      int64_t c = R::first() + e * R::threads;
      if (c < cols) x[c] = held[e];
    }
  }
  UNROLL for (int e = 0; e < R::held; e++)
    if (R::first() + e * R::threads < cols) squares = fma_rn(held[e], held[e], squares);
  for (int64_t c = R::first() + R::held * R::threads; c < cols; c += R::threads) {
    if (add) x[c] = x[c] + add[c];
    squares = fma_rn(x[c], x[c], squares);
  }
  float inverse = inverse_root(R::sum(squares, room), cols, a.eps);
  UNROLL for (int e = 0; e < R::held; e++) {
    int64_t c = R::first() + e * R::threads;
    if (c < cols) store_as(a.y.at, r * a.y.stride + c, a.y_type, held[e] * inverse * scale[c]);
  }
  for (int64_t c = R::first() + R::held * R::threads; c < cols; c += R::threads) store_as(a.y.at, r * a.y.stride + c, a.y_type, x[c] * inverse * scale[c]);
}

KERNEL(rms_norm, NORM_THREADS, norm_arguments) {
  SHARED(float, room[NORM_THREADS / 32]);
  norm<false>(a, room);
}
KERNEL(rms_norm_narrow, NORM_THREADS, norm_arguments) { norm<true>(a, nullptr); }

// dx (+)= r·dy·scale - x · r³ · mean(dy·scale·x). dx may be dy when not accumulating.
template <bool narrow_rows> INLINE void norm_backward(const norm_backward_arguments &a, float *room) {
  using R = norm_row<narrow_rows>;
  int64_t r = R::row(), cols = a.x.cols;
  if (r >= a.x.rows) return;
  const float *x = row_of<const float>(a.x, r), *dy = row_of<const float>(a.dy, r), *scale = memory<const float>(a.scale);
  float *dx = row_of<float>(a.dx, r), held[R::held], by_normed[R::held], squares = 0.0f, along = 0.0f;
  UNROLL for (int e = 0; e < R::held; e++) {
    int64_t c = R::first() + e * R::threads;
    held[e] = c < cols ? x[c] : 0.0f;
    by_normed[e] = c < cols ? dy[c] * scale[c] : 0.0f;
  }
  UNROLL for (int e = 0; e < R::held; e++)
    if (R::first() + e * R::threads < cols) {
      squares = fma_rn(held[e], held[e], squares);
      along = fma_rn(by_normed[e], held[e], along);
    }
  for (int64_t c = R::first() + R::held * R::threads; c < cols; c += R::threads) {
    squares = fma_rn(x[c], x[c], squares);
    along = fma_rn(dy[c] * scale[c], x[c], along);
  }
  float inverse = inverse_root(R::sum(squares, room), cols, a.eps), factor = norm_factor(inverse, R::sum(along, room + NORM_THREADS / 32), cols);
  UNROLL for (int e = 0; e < R::held; e++) {
    int64_t c = R::first() + e * R::threads;
    if (c < cols) {
      float g = norm_gradient(by_normed[e], held[e], inverse, factor);
      dx[c] = a.accumulate ? dx[c] + g : g;
    }
  }
  for (int64_t c = R::first() + R::held * R::threads; c < cols; c += R::threads) {
    float g = norm_gradient(dy[c] * scale[c], x[c], inverse, factor);
    dx[c] = a.accumulate ? dx[c] + g : g;
  }
}

KERNEL(rms_norm_backward, NORM_THREADS, norm_backward_arguments) {
  SHARED(float, room[2 * (NORM_THREADS / 32)]);
  norm_backward<false>(a, room);
}
KERNEL(rms_norm_backward_narrow, NORM_THREADS, norm_backward_arguments) { norm_backward<true>(a, nullptr); }
