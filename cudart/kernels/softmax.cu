// Log-sum-exp over the vocabulary, softmax, and the gradient of a loss by the logits. A row is one block's in log_sum_exp: 512 threads, each over every 512th
// column in order, then the tree of block_sum.
#include "arithmetic.h"

enum { VOCABULARY_THREADS = 512, VOCABULARY_HELD = 8 };

// -Inf is a logit of probability zero; a row with +Inf or NaN gives NaN.
KERNEL(log_sum_exp, VOCABULARY_THREADS, log_sum_exp_arguments) {
  SHARED(float, room[2 * (VOCABULARY_THREADS / 32)]);
  const float *x = row_of<const float>(a.logits, block_x());
  int64_t cols = a.logits.cols;
  float top = -infinity(), sum = 0.0f;
  auto load = [=](int64_t c) { return x[c]; };
  each_held<VOCABULARY_THREADS, VOCABULARY_HELD>((int64_t)thread(), cols, load, [&](int64_t, float v) { top = larger(v, top); });
  top = block_largest<VOCABULARY_THREADS>(top, room);
  float base = top == -infinity() ? 0.0f : top; // a row of -Inf only sums to 0
  each_held<VOCABULARY_THREADS, VOCABULARY_HELD>((int64_t)thread(), cols, load, [&](int64_t, float v) { sum = sum + exp_rn(v - base); });
  sum = block_sum<VOCABULARY_THREADS>(sum, room + VOCABULARY_THREADS / 32);
  if (thread() == 0) *row_of<float>(a.lse, block_x()) = sum == 0.0f ? top : top + log_rn(sum);
}

// each_of_pieces is EACH_COLUMN for f(c, x[c]): what a thread has of a piece is asked for at once.
template <class F> INLINE void each_of_pieces(const float *x, int64_t cols, F f) {
  for (int64_t piece = block_y() * PIECE; piece < cols; piece += blocks_y() * PIECE)
    each_held<256, PIECE / 256>(piece + thread(), piece + PIECE < cols ? piece + PIECE : cols, [=](int64_t c) { return x[c]; }, f);
}

// p may be logits.
KERNEL(softmax, 256, softmax_arguments) {
  float *p = row_of<float>(a.p, block_x()), lse = *row_of<const float>(a.lse, block_x());
  const float *x = row_of<const float>(a.logits, block_x());
  each_of_pieces(x, a.p.cols, [=](int64_t c, float v) { p[c] = exp_rn(v - lse); });
}

// logits become Σk c[k]·(1[column = target k] - softmax). The sum of c is taken first, in order; then each coefficient is added, in order. A target of -1 is a column of
// another device: it counts in the sum only.
KERNEL(softmax_gradient, 256, softmax_gradient_arguments) {
  float *x = row_of<float>(a.logits, block_x()), lse = *row_of<const float>(a.lse, block_x()), sum = 0.0f;
  const int32_t *targets = memory<const int32_t>(a.targets) + block_x() * a.k;
  const float *coefficients = memory<const float>(a.coefficients) + block_x() * a.k;
  for (int64_t k = 0; k < a.k; k++) sum = sum + coefficients[k];
  each_of_pieces(x, a.logits.cols, [=](int64_t c, float v) { x[c] = -sum * exp_rn(v - lse); });
  barrier();
  if (thread() != 0) return;
  for (int64_t k = 0; k < a.k; k++)
    if (targets[k] >= 0 && targets[k] / PIECE % blocks_y() == block_y()) x[targets[k]] = x[targets[k]] + coefficients[k];
}
