// What the kernels of the gated delta rule share: queries and keys of unit length, and gates. They are the same wherever they are computed.
#pragma once
#include "gates.h"

enum { DELTA_HELD = MAX_DELTA_DIM / 32 }; // elements of a head that a lane has

// delta_row brings a row of a head as a warp has it: lane l has elements l, l + 32, …, zeros behind the last. n says how many a lane has at most.
template <int n> INLINE void delta_row(float (&x)[n], const float *from, int64_t dim) {
  UNROLL for (int e = 0; e < n; e++) x[e] = lane() + 32 * e < dim ? from[lane() + 32 * e] : 0.0f;
}
// delta_dot is a chain for each lane, and the tree over the lanes; zeros behind the last change nothing.
template <int n> INLINE float delta_dot(const float (&x)[n], const float (&y)[n]) {
  float s = 0.0f;
  UNROLL for (int e = 0; e < n; e++) s = fma_rn(x[e], y[e], s);
  return warp_sum(s);
}
INLINE float unit_factor(float squares) { return 1.0f / sqrt_rn(squares + 1e-6f); }
// query_factor is the further one of queries: dim^-½.
INLINE float query_factor(int64_t dim) { return 1.0f / sqrt_rn((float)dim); }

// log1p_rn is ln(1 + x) for x ≥ 0.
INLINE float log1p_rn(float x) {
  float u = x + 1.0f;
  return log_rn(u) + (x - (u - 1.0f)) / u;
}

// delta_decay is the exponent of a row's decay, for a head whose rate is -exp(ALog), of y = a + Bias.
INLINE float delta_decay(float rate, float y) { return rate * (y > 20.0f ? y : log1p_rn(exp_rn(y < 21.0f ? y : 21.0f))); }

INLINE int64_t delta_keys(const delta_inputs &in) { return in.key_heads * in.key_dim; }
INLINE int64_t delta_group(const delta_inputs &in) { return in.value_heads / in.key_heads; }
INLINE int64_t delta_value(const delta_inputs &in, int64_t head) { return 2 * delta_keys(in) + head * in.value_dim; } // the column where a head's values begin
