// What gpt-oss has beside other mixtures of experts: a sink for each head behind attention, biases of experts, and a gated product that is clamped.
#include "experts.h"
#include "gates.h"

// Block x is a row, whose heads its warps take. A sink is one score more in the softmax, whose value is zero: the output is multiplied by what is left for the others. kept may be of another stride than o.
KERNEL(sink, 256, sink_arguments) {
  const int64_t row = block_x(), heads = a.sinks.cols, dim = a.o.cols / heads;
  const float *sinks = row_of<const float>(a.sinks, 0);
  float *lse = row_of<float>(a.lse, row);
  for (int64_t h = warp(); h < heads; h += 256 / 32) {
    const float z = lse[h], s = sinks[h];
    const bool above = s > z;
    const float less = exp_rn(above ? z - s : s - z), sum = 1.0f + less, factor = (above ? less : 1.0f) / sum; // of the smaller one, relative to the larger
    float *o = row_of<float>(a.o, row) + h * dim;
    for (int64_t d = lane(); d < dim; d += 32) {
      const float v = o[d] * factor;
      if (a.kept.at) store_as(a.kept.at, row * a.kept.stride + h * dim + d, BFLOAT16, v);
      else o[d] = v;
    }
    warp_barrier(); // all lanes have read it
    if (lane() == 0) lse[h] = (above ? s : z) + log_rn(sum);
  }
}

// clamped_gates are g and u of a clamped gated product, and the sigmoid of alpha · g. A NaN stays.
struct clamped_gates {
  float g, u, s;
};
INLINE clamped_gates clamp_gates(float gate, float up, float alpha, float limit) {
  const float g = gate > limit ? limit : gate, least = up < -limit ? -limit : up;
  return {g, least > limit ? limit : least, sigmoid(g * alpha)};
}

// gate and up are kept rounded, where there is room for it.
KERNEL(swiglu_clamped, 256, swiglu_clamped_arguments) {
  const int64_t row = block_x();
  const bool keep = a.of.kept_gate.at != 0;
  bool fours = in_fours(a.of.y, a.of.y_type) && in_fours(a.of.gate, a.of.from_type) && in_fours(a.of.up, a.of.from_type);
  if (keep) fours = fours && in_fours(a.of.kept_gate, BFLOAT16) && in_fours(a.of.kept_up, BFLOAT16);
  each_some(a.of.y.cols, fours, [&a, row, keep](auto some, int64_t c) {
    constexpr int n = decltype(some)::n;
    const floats<n> gate = load_some<n>(a.of.gate.at, row * a.of.gate.stride + c, a.of.from_type), up = load_some<n>(a.of.up.at, row * a.of.up.stride + c, a.of.from_type);
    floats<n> y;
    UNROLL for (int e = 0; e < n; e++) {
      const clamped_gates x = clamp_gates(gate.v[e], up.v[e], a.alpha, a.limit);
      y.v[e] = (x.u + 1.0f) * (x.g * x.s);
    }
    store_some<n>(a.of.y.at, row * a.of.y.stride + c, a.of.y_type, y);
    if (!keep) return;
    store_some<n>(a.of.kept_gate.at, row * a.of.kept_gate.stride + c, BFLOAT16, gate);
    store_some<n>(a.of.kept_up.at, row * a.of.kept_up.stride + c, BFLOAT16, up);
  });
}

// dgate may be gate, and dup may be up or dy. Where the limit cuts off, the gradient is zero.
KERNEL(swiglu_clamped_backward, 256, swiglu_clamped_backward_arguments) {
  const int64_t row = block_x();
  const bool fours = in_fours(a.of.dgate, FLOAT32) && in_fours(a.of.dup, FLOAT32) && in_fours(a.of.dy, FLOAT32) && in_fours(a.of.gate, a.of.from_type) && in_fours(a.of.up, a.of.from_type);
  each_some(a.of.dy.cols, fours, [&a, row](auto some, int64_t c) {
    constexpr int n = decltype(some)::n;
    const floats<n> gate = load_some<n>(a.of.gate.at, row * a.of.gate.stride + c, a.of.from_type), up = load_some<n>(a.of.up.at, row * a.of.up.stride + c, a.of.from_type);
    const floats<n> dy = load_some<n>(a.of.dy.at, row * a.of.dy.stride + c, FLOAT32);
    floats<n> dgate, dup;
    UNROLL for (int e = 0; e < n; e++) {
      const clamped_gates x = clamp_gates(gate.v[e], up.v[e], a.alpha, a.limit);
      const float by_gate = dy.v[e] * (x.u + 1.0f) * (x.s * fma_rn(x.g * a.alpha, 1.0f - x.s, 1.0f)), by_up = dy.v[e] * (x.g * x.s);
      dgate.v[e] = gate.v[e] > a.limit ? 0.0f : by_gate;
      dup.v[e] = up.v[e] > a.limit || up.v[e] < -a.limit ? 0.0f : by_up;
    }
    store_some<n>(a.of.dgate.at, row * a.of.dgate.stride + c, FLOAT32, dgate);
    store_some<n>(a.of.dup.at, row * a.of.dup.stride + c, FLOAT32, dup);
  });
}

// expert_of_row counts the experts whose rows end before a row, or with it. Every warp does it, each for itself.
INLINE int expert_of_row(const expert_table &t, int row) {
  const int32_t *ends = first_rows(t) + 1;
  int before = 0;
  UNROLL_4 for (int e = lane(); e < (int)t.experts; e += 32) before += ends[e] <= row;
  for (int m = 16; m; m >>= 1) before += shuffle_xor_of(before, m);
  return before;
}

// Block (x, y) has row x.
KERNEL(add_routed, 256, add_routed_arguments) {
  const int64_t row = block_x(), expert = expert_of_row(a.table, (int)row);
  each_some(a.rows.cols, in_fours(a.rows, FLOAT32) && in_fours(a.bias, FLOAT32), [&a, row, expert](auto some, int64_t c) {
    constexpr int n = decltype(some)::n;
    floats<n> v = load_some<n>(a.rows.at, row * a.rows.stride + c, FLOAT32);
    const floats<n> bias = load_some<n>(a.bias.at, expert * a.bias.stride + c, FLOAT32);
    UNROLL for (int e = 0; e < n; e++) v.v[e] = v.v[e] + bias.v[e];
    store_some<n>(a.rows.at, row * a.rows.stride + c, FLOAT32, v);
  });
}

// Half a warp has a slot of a token, so that a sum is that of 16 lanes. What is no expert's number counts as the nearest that is, as in the table.
KERNEL(add_routed_backward, 256, add_routed_backward_arguments) {
  const int64_t slot = block_x() * 16 + thread() / 16, slots = a.dp.cols;
  const bool have = slot < a.dp.rows * slots;
  const int64_t token = have ? slot / slots : 0, s = have ? slot % slots : 0, cols = have ? a.dy.cols : 0;
  int expert = row_of<const int32_t>(a.choice, token)[s];
  if (expert >= (int)a.bias.rows) expert = (int)a.bias.rows - 1;
  if (expert < 0) expert = 0;
  const float *dy = row_of<const float>(a.dy, token), *bias = row_of<const float>(a.bias, expert);
  float sum = 0.0f;
  each_held<16, 8>((int64_t)(thread() % 16), cols, [=](int64_t c) { return two_floats{dy[c], bias[c]}; }, [&](int64_t, const two_floats &v) { sum = fma_rn(v.a, v.b, sum); });
  sum = lanes_sum(sum);
  if (have && thread() % 16 == 0) {
    float *dp = row_of<float>(a.dp, token) + s;
    *dp = *dp + sum;
  }
}
