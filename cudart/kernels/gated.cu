// What stands beside the delta rule: the norm of a head's outputs times silu of its gates, and the sigmoid gates of attention; and their gradients.
#include "gates.h"
#include "norm.h"

// y = x · r · scale · silu(z), r as in norm.cu. y may be x or z: a thread reads and writes the same elements.
template <bool narrow_rows> INLINE void gated_norm_row(const gated_norm_arguments &a, float *room) {
  using R = norm_row<narrow_rows>;
  int64_t r = R::row(), cols = a.x.cols;
  if (r >= a.x.rows) return; // a whole warp at once, or a whole block
  const float *x = row_of<const float>(a.x, r), *z = row_of<const float>(a.z, r), *scale = memory<const float>(a.scale);
  float *y = row_of<float>(a.y, r), held[R::held], squares = 0.0f;
  UNROLL for (int e = 0; e < R::held; e++) {
    int64_t c = R::first() + e * R::threads;
    held[e] = c < cols ? x[c] : 0.0f;
  }
  UNROLL for (int e = 0; e < R::held; e++)
    if (R::first() + e * R::threads < cols) squares = fma_rn(held[e], held[e], squares);
  for (int64_t c = R::first() + R::held * R::threads; c < cols; c += R::threads) squares = fma_rn(x[c], x[c], squares);
  float inverse = inverse_root(R::sum(squares, room), cols, a.eps);
  UNROLL for (int e = 0; e < R::held; e++) {
    int64_t c = R::first() + e * R::threads;
    if (c < cols) y[c] = held[e] * inverse * scale[c] * silu(z[c]);
  }
  for (int64_t c = R::first() + R::held * R::threads; c < cols; c += R::threads) y[c] = x[c] * inverse * scale[c] * silu(z[c]);
}

KERNEL(gated_norm, NORM_THREADS, gated_norm_arguments) {
  SHARED(float, room[NORM_THREADS / 32]);
  gated_norm_row<false>(a, room);
}
KERNEL(gated_norm_narrow, NORM_THREADS, gated_norm_arguments) { gated_norm_row<true>(a, nullptr); }

// dz = dy · scale · x · r · silu'(z), and dx is the norm's for dy · silu(z). dx may be dy and dz may be z: every thread has read what it needs of an element before it writes there.
template <bool narrow_rows> INLINE void gated_norm_backward_row(const gated_norm_backward_arguments &a, float *room) {
  using R = norm_row<narrow_rows>;
  int64_t r = R::row(), cols = a.x.cols;
  if (r >= a.x.rows) return;
  const float *x = row_of<const float>(a.x, r), *z = row_of<const float>(a.z, r), *dy = row_of<const float>(a.dy, r), *scale = memory<const float>(a.scale);
  float *dx = row_of<float>(a.dx, r), *dz = row_of<float>(a.dz, r), held[R::held], by_scaled[R::held], gate[R::held], squares = 0.0f, along = 0.0f;
  UNROLL for (int e = 0; e < R::held; e++) {
    int64_t c = R::first() + e * R::threads;
    held[e] = c < cols ? x[c] : 0.0f, gate[e] = c < cols ? z[c] : 0.0f, by_scaled[e] = c < cols ? dy[c] * scale[c] : 0.0f;
  }
  UNROLL for (int e = 0; e < R::held; e++)
    if (R::first() + e * R::threads < cols) {
      squares = fma_rn(held[e], held[e], squares);
      along = fma_rn(by_scaled[e] * silu(gate[e]), held[e], along);
    }
  for (int64_t c = R::first() + R::held * R::threads; c < cols; c += R::threads) {
    squares = fma_rn(x[c], x[c], squares);
    along = fma_rn(dy[c] * scale[c] * silu(z[c]), x[c], along);
  }
  float inverse = inverse_root(R::sum(squares, room), cols, a.eps), factor = norm_factor(inverse, R::sum(along, room + NORM_THREADS / 32), cols);
  auto put = [&](int64_t c, float v, float by, float g) {
    dx[c] = norm_gradient(by * silu(g), v, inverse, factor);
    dz[c] = by * (v * inverse) * silu_slope(g);
  };
  UNROLL for (int e = 0; e < R::held; e++) {
    int64_t c = R::first() + e * R::threads;
    if (c < cols) put(c, held[e], by_scaled[e], gate[e]);
  }
  for (int64_t c = R::first() + R::held * R::threads; c < cols; c += R::threads) put(c, x[c], dy[c] * scale[c], z[c]);
}

KERNEL(gated_norm_backward, NORM_THREADS, gated_norm_backward_arguments) {
  SHARED(float, room[2 * (NORM_THREADS / 32)]);
  gated_norm_backward_row<false>(a, room);
}
KERNEL(gated_norm_backward_narrow, NORM_THREADS, gated_norm_backward_arguments) { gated_norm_backward_row<true>(a, nullptr); }

// y = x · sigmoid(gate). y may be x.
KERNEL(sigmoid_gate, 256, sigmoid_gate_arguments) {
  int64_t row = block_x();
  each_some(a.y.cols, in_fours(a.y, FLOAT32) && in_fours(a.x, FLOAT32) && in_fours(a.gate, FLOAT32), [&a, row](auto some, int64_t c) {
    constexpr int n = decltype(some)::n;
    floats<n> y, x = load_some<n>(a.x.at, row * a.x.stride + c, FLOAT32), gate = load_some<n>(a.gate.at, row * a.gate.stride + c, FLOAT32);
    UNROLL for (int e = 0; e < n; e++) y.v[e] = x.v[e] * sigmoid(gate.v[e]);
    store_some<n>(a.y.at, row * a.y.stride + c, FLOAT32, y);
  });
}

// dx may be dy, and dgate may be gate.
KERNEL(sigmoid_gate_backward, 256, sigmoid_gate_backward_arguments) {
  int64_t row = block_x();
  bool fours = in_fours(a.dx, FLOAT32) && in_fours(a.dgate, FLOAT32) && in_fours(a.dy, FLOAT32) && in_fours(a.x, FLOAT32) && in_fours(a.gate, FLOAT32);
  each_some(a.dx.cols, fours, [&a, row](auto some, int64_t c) {
    constexpr int n = decltype(some)::n;
    floats<n> dx, dgate, dy = load_some<n>(a.dy.at, row * a.dy.stride + c, FLOAT32), x = load_some<n>(a.x.at, row * a.x.stride + c, FLOAT32);
    floats<n> gate = load_some<n>(a.gate.at, row * a.gate.stride + c, FLOAT32);
    UNROLL for (int e = 0; e < n; e++) {
      float s = sigmoid(gate.v[e]);
      dx.v[e] = dy.v[e] * s, dgate.v[e] = dy.v[e] * x.v[e] * (s * (1.0f - s));
    }
    store_some<n>(a.dx.at, row * a.dx.stride + c, FLOAT32, dx);
    store_some<n>(a.dgate.at, row * a.dgate.stride + c, FLOAT32, dgate);
  });
}
