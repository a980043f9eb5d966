// AdamW over any number of arenas in one launch, and the sums of squares of gradients and weights in float64.
#include "arithmetic.h"

// Block (x, y): y is the job, x walks over its rows and pieces of columns. The new values may be written over the old ones.
KERNEL(adamw, 256, adamw_arguments) {
  const adamw_job &j = memory<const adamw_job>(a.jobs)[block_y()];
  float grad_scale = memory<const float>(a.factors)[block_y()];
  int64_t pieces = (j.p.cols + PIECE - 1) / PIECE;
  for (int64_t i = block_x(); i < j.p.rows * pieces; i += blocks_x()) {
    int64_t r = i / pieces, from = i % pieces * PIECE;
    const float *p = row_of<const float>(j.p, r), *m = row_of<const float>(j.m, r), *v = row_of<const float>(j.v, r), *grad = row_of<const float>(j.g, r);
    float *new_p = row_of<float>(j.new_p, r), *new_m = row_of<float>(j.new_m, r), *new_v = row_of<float>(j.new_v, r);
    for (int64_t c = from + thread(); c < from + PIECE && c < j.p.cols; c += 256) {
      float g = grad[c] * grad_scale, old = p[c];
      float mm = fma_rn(j.rest1, g, j.beta1 * m[c]), vv = fma_rn(j.rest2 * g, g, j.beta2 * v[c]);
      float ratio = mm / (sqrt_rn(vv) / j.root + j.eps);
      new_p[c] = fma_rn(j.minus_rate, ratio, j.decay * old);
      new_m[c] = mm;
      new_v[c] = vv;
    }
  }
}

// The sum of squares of each piece of every job's rows. Block (x, y) has pieces from x · SUM_PIECES on of job y, SUM_LANES threads each.
KERNEL(sum_squares, 256, sum_squares_arguments) {
  SHARED(double, room[256]);
  const sum_squares_job &j = memory<const sum_squares_job>(a.jobs)[block_y()];
  int64_t piece = block_x() * SUM_PIECES + thread() / SUM_LANES, pieces = (j.x.cols + SUM_PIECE - 1) / SUM_PIECE;
  int one = thread() % SUM_LANES;
  double s = 0.0;
  if (piece < j.count) {
    const float *x = row_of<const float>(j.x, piece / pieces);
    int64_t from = piece % pieces * SUM_PIECE, to = from + SUM_PIECE < j.x.cols ? from + SUM_PIECE : j.x.cols;
    for (int64_t i = from + one; i < to; i += SUM_LANES) {
      double v = x[i];
      s = fma_rn(v, v, s);
    }
  }
  room[thread()] = s;
  for (int half = SUM_LANES / 2; half; half >>= 1) {
    barrier();
    if (one < half) room[thread()] = room[thread()] + room[thread() + half];
  }
  if (one == 0 && piece < j.count) memory<double>(a.partial)[j.first + piece] = room[thread()];
}

// clip_factor scales a gradient with this sum of squares to the largest norm that is allowed: operation by operation what the processor's device computes.
INLINE float clip_factor(double sum, double most) {
  if (most == 0.0) return 1.0f;
  double factor = most / (sqrt_rn(sum) + 1e-6);
  return (float)(factor < 1.0 ? factor : 1.0);
}

// sums[block] = the partial sums of its job: a thread's in order, then the tree. factors may be 0.
KERNEL(sum_partials, 256, sum_squares_arguments) {
  SHARED(double, room[256]);
  const sum_squares_job &j = memory<const sum_squares_job>(a.jobs)[block_x()];
  const double *partial = memory<const double>(a.partial) + j.first;
  double s = 0.0;
  for (int64_t i = thread(); i < j.count; i += 256) s = s + partial[i];
  room[thread()] = s;
  for (int half = 128; half; half >>= 1) {
    barrier();
    if (thread() < half) room[thread()] = room[thread()] + room[thread() + half];
  }
  if (thread() != 0) return;
  memory<double>(a.sums)[block_x()] = room[0];
  if (a.factors) memory<float>(a.factors)[block_x()] = clip_factor(room[0], j.most);
}
