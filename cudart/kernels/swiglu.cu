// SwiGLU: y = gate · sigmoid(gate) · up, and its backward.
#include "gates.h"

// gate and up are kept rounded, where there is room for it.
KERNEL(swiglu, 256, swiglu_arguments) {
  int64_t row = block_x();
  bool keep = a.kept_gate.at != 0, fours = in_fours(a.y, a.y_type) && in_fours(a.gate, a.from_type) && in_fours(a.up, a.from_type);
  if (keep) fours = fours && in_fours(a.kept_gate, BFLOAT16) && in_fours(a.kept_up, BFLOAT16);
  each_some(a.y.cols, fours, [&a, row, keep](auto some, int64_t c) {
    constexpr int n = decltype(some)::n;
    floats<n> gate = load_some<n>(a.gate.at, row * a.gate.stride + c, a.from_type), up = load_some<n>(a.up.at, row * a.up.stride + c, a.from_type), y;
    UNROLL for (int e = 0; e < n; e++) y.v[e] = gate.v[e] * sigmoid(gate.v[e]) * up.v[e];
    store_some<n>(a.y.at, row * a.y.stride + c, a.y_type, y);
    if (!keep) return;
    store_some<n>(a.kept_gate.at, row * a.kept_gate.stride + c, BFLOAT16, gate);
    store_some<n>(a.kept_up.at, row * a.kept_up.stride + c, BFLOAT16, up);
  });
}

// dgate may be gate, and dup may be up or dy.
KERNEL(swiglu_backward, 256, swiglu_backward_arguments) {
  int64_t row = block_x();
  bool fours = in_fours(a.dgate, FLOAT32) && in_fours(a.dup, FLOAT32) && in_fours(a.dy, FLOAT32) && in_fours(a.gate, a.from_type) && in_fours(a.up, a.from_type);
  each_some(a.dy.cols, fours, [&a, row](auto some, int64_t c) {
    constexpr int n = decltype(some)::n;
    floats<n> gate = load_some<n>(a.gate.at, row * a.gate.stride + c, a.from_type), up = load_some<n>(a.up.at, row * a.up.stride + c, a.from_type);
    floats<n> dy = load_some<n>(a.dy.at, row * a.dy.stride + c, FLOAT32), dgate, dup;
    UNROLL for (int e = 0; e < n; e++) {
      float g = gate.v[e], u = up.v[e], d = dy.v[e], s = sigmoid(g);
      dgate.v[e] = d * u * (s * fma_rn(g, 1.0f - s, 1.0f));
      dup.v[e] = d * (g * s);
    }
    store_some<n>(a.dgate.at, row * a.dgate.stride + c, FLOAT32, dgate);
    store_some<n>(a.dup.at, row * a.dup.stride + c, FLOAT32, dup);
  });
}
