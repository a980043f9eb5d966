// RMSNorm: y = x · r · scale with r = 1/√(mean(x²) + eps), and its backward. A narrow row (a head of QK-norm) is one warp's, a wide one a block's: which it is depends on the
// number of columns alone.
#include "arithmetic.h"

enum { NORM_THREADS = 256 };

// A row is summed by its threads, each over every threads-th column in order, and then across threads.
template <bool narrow_rows> struct norm_row {
  static constexpr int threads = narrow_rows ? 32 : NORM_THREADS;
  INLINE int first() { return narrow_rows ? lane() : thread(); }
  INLINE int64_t row() { return narrow_rows ? block_x() * (NORM_THREADS / 32) + warp() : block_x(); }
  INLINE float sum(float v, float *room) {
    if constexpr (narrow_rows) return warp_sum(v);
    else return block_sum<NORM_THREADS>(v, room);
  }
};

INLINE float inverse_root(float squares, int64_t n, float eps) { return 1.0f / sqrt_rn(squares / (float)n + eps); }

// y may be x: a thread reads and writes the same elements.
template <bool narrow_rows> INLINE void norm(const norm_arguments &a, float *room) {
  using R = norm_row<narrow_rows>;
  int64_t r = R::row(), cols = a.x.cols;
  if (r >= a.x.rows) return; // a whole warp at once, or a whole block
  const float *x = row_of<const float>(a.x, r), *scale = memory<const float>(a.scale);
  float *y = row_of<float>(a.y, r), squares = 0.0f;
  for (int64_t c = R::first(); c < cols; c += R::threads) squares = fma_rn(x[c], x[c], squares);
  float inverse = inverse_root(R::sum(squares, room), cols, a.eps);
  for (int64_t c = R::first(); c < cols; c += R::threads) y[c] = x[c] * inverse * scale[c];
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
  float *dx = row_of<float>(a.dx, r), squares = 0.0f, along = 0.0f;
  for (int64_t c = R::first(); c < cols; c += R::threads) {
    squares = fma_rn(x[c], x[c], squares);
    along = fma_rn(dy[c] * scale[c], x[c], along);
  }
  float inverse = inverse_root(R::sum(squares, room), cols, a.eps);
  float factor = inverse * inverse * inverse * (R::sum(along, room + NORM_THREADS / 32) / (float)cols);
  for (int64_t c = R::first(); c < cols; c += R::threads) {
    float g = fma_rn(dy[c] * scale[c], inverse, -(x[c] * factor));
    dx[c] = a.accumulate ? dx[c] + g : g;
  }
}

KERNEL(rms_norm_backward, NORM_THREADS, norm_backward_arguments) {
  SHARED(float, room[2 * (NORM_THREADS / 32)]);
  norm_backward<false>(a, room);
}
KERNEL(rms_norm_backward_narrow, NORM_THREADS, norm_backward_arguments) { norm_backward<true>(a, nullptr); }
