// AdamW over any number of arenas in one launch, and the sum of squares of a gradient in float64.
#include "arithmetic.h"

// Block (x, y): y is the job, x walks over its rows and pieces of columns. The new values may be written over the old ones.
KERNEL(adamw, 256, adamw_arguments) {
  const adamw_job &j = memory<const adamw_job>(a.jobs)[block_y()];
  int64_t pieces = (j.p.cols + PIECE - 1) / PIECE;
  for (int64_t i = block_x(); i < j.p.rows * pieces; i += blocks_x()) {
    int64_t r = i / pieces, from = i % pieces * PIECE;
    const float *p = row_of<const float>(j.p, r), *m = row_of<const float>(j.m, r), *v = row_of<const float>(j.v, r), *grad = row_of<const float>(j.g, r);
    float *new_p = row_of<float>(j.new_p, r), *new_m = row_of<float>(j.new_m, r), *new_v = row_of<float>(j.new_v, r);
    for (int64_t c = from + thread(); c < from + PIECE && c < j.p.cols; c += 256) {
      float g = grad[c] * j.grad_scale, old = p[c];
      float mm = fma_rn(j.rest1, g, j.beta1 * m[c]), vv = fma_rn(j.rest2 * g, g, j.beta2 * v[c]);
      float ratio = mm / (sqrt_rn(vv) / j.root + j.eps);
      new_p[c] = fma_rn(j.minus_rate, ratio, j.decay * old);
      new_m[c] = mm;
      new_v[c] = vv;
    }
  }
}

// partial[block] = Σ x² over SUM_PIECE elements, counted row by row.
KERNEL(sum_squares, 256, sum_squares_arguments) {
  SHARED(double, room[256]);
  int64_t from = block_x() * SUM_PIECE, all = a.x.rows * a.x.cols;
  double s = 0.0;
  for (int64_t i = from + thread(); i < from + SUM_PIECE && i < all; i += 256) {
    double v = row_of<const float>(a.x, i / a.x.cols)[i % a.x.cols];
    s = fma_rn(v, v, s);
  }
  room[thread()] = s;
  for (int half = 128; half; half >>= 1) {
    barrier();
    if (thread() < half) room[thread()] = room[thread()] + room[thread() + half];
  }
  if (thread() == 0) memory<double>(a.partial)[block_x()] = room[0];
}

// sum = the partial sums, one block: a thread's in order, then the tree.
KERNEL(sum_partials, 256, sum_partials_arguments) {
  SHARED(double, room[256]);
  const double *partial = memory<const double>(a.partial);
  double s = 0.0;
  for (int64_t i = thread(); i < a.count; i += 256) s = s + partial[i];
  room[thread()] = s;
  for (int half = 128; half; half >>= 1) {
    barrier();
    if (thread() < half) room[thread()] = room[thread()] + room[thread() + half];
  }
  if (thread() == 0) *memory<double>(a.sum) = room[0];
}
