// The gradient of the gated delta rule, in chunks of 32 rows: what the recurrence did within a chunk are products of small matrices. delta_rule gives the states S before the chunks; delta_prepare their queries and keys of unit length
// and their gates; delta_within what belongs to a chunk alone; delta_across goes back through a sequence's chunks with D, the gradient by the state after each; and delta_gradients, of all chunks at once, gives the gradients.
//
// Of a chunk, with G the sums of the decays' exponents from its first row on, γ = e^G, E[i][j] = e^(G[i]-G[j]) for j ≤ i, λ[j] = e^(G[last]-G[j]):
//   L = β·E·(K·Kᵀ) below the diagonal, X = V - γ·(K·S), T = (I+L)⁻¹, Δ = T·(β·X), P = E·(Q·Kᵀ); O = γ·(Q·S) + P·Δ, S' = γ[last]·S + Kᵀ·(λ·Δ)
//   dR = Tᵀ·(Pᵀ·dO + λ·(K·D)), of which delta_within leaves Tᵀ·Pᵀ·dO and W = Tᵀ·(λ·K); dX = β·dR, which is dV; D before = γ[last]·D + Qᵀ·(γ·dO) - Kᵀ·(γ·dX)
//   dL = -dR·Δᵀ, dP = dO·Δᵀ; dQ = γ·(dO·Sᵀ) + (dP·E)·K; dK = λ·(Δ·Dᵀ) - γ·(dX·Sᵀ) + (dP·E)ᵀ·Q + (M + Mᵀ)·K with M = β·dL·E
// Exponents of differences are never above 0, so nothing overflows, and no element of T is above 1. All sums have a fixed order. Rows that a chunk does not have are zeros.
#include "delta.h"

enum {
  CHUNK_THREADS = 128,
  CHUNK_WIDE = 64, // columns that are taken at once
  CHUNK_DEEP = 16, // of the inner axis, that are brought at once
};

typedef float chunk_row[CHUNK_WIDE + 1];  // rows have one element more, against bank conflicts
typedef float chunk_part[CHUNK_DEEP + 1];
typedef float square_row[DELTA_CHUNK + 1];

// The gates of a chunk: the sums of exponents as float64, for differences of float32 sums would be as coarse as the sums.
struct delta_gates {
  double sums[DELTA_CHUNK];
  float beta[DELTA_CHUNK], gamma[DELTA_CHUNK], lambda[DELTA_CHUNK];
};
static_assert(sizeof(delta_gates) == DELTA_GATES * sizeof(float));

// A thread has rows 4·down() … of 32, and columns across(), across() + 16, …
INLINE int down() { return thread() / 16; }
INLINE int across() { return thread() % 16; }

template <int n> struct chunk_sums { float v[4][n]; };
template <int n> INLINE void clear(chunk_sums<n> &s) {
  UNROLL for (int i = 0; i < 4; i++)
    UNROLL for (int j = 0; j < n; j++) s.v[i][j] = 0.0f;
}
// multiply adds products over depth elements: a(row, k) · b(k, column).
template <int n, class A, class B> INLINE void multiply(chunk_sums<n> &s, int depth, A a, B b) {
  UNROLL_4 for (int k = 0; k < depth; k++) {
    float left[4], right[n];
    UNROLL for (int i = 0; i < 4; i++) left[i] = a(4 * down() + i, k);
    UNROLL for (int j = 0; j < n; j++) right[j] = b(k, across() + 16 * j);
    UNROLL for (int i = 0; i < 4; i++)
      UNROLL for (int j = 0; j < n; j++) s.v[i][j] = fma_rn(left[i], right[j], s.v[i][j]);
  }
}
// each calls f(row, column, element).
template <int n, class F> INLINE void each(chunk_sums<n> &s, F f) {
  UNROLL for (int i = 0; i < 4; i++)
    UNROLL for (int j = 0; j < n; j++) f(4 * down() + i, across() + 16 * j, s.v[i][j]);
}

// bring fills rows of a matrix in shared memory by from(row, column).
template <int wide, class T, class F> INLINE void bring(T *to, int rows, F from) {
  for (int e = thread(); e < rows * wide; e += CHUNK_THREADS) to[e / wide][e % wide] = from(e / wide, e % wide);
}

// One value head's part of a chunk.
struct chunk_of_head {
  delta_chunk rows;
  int64_t number, head, keys, values;
  const float *q, *k; // of unit length; rows are pitch apart
  int64_t pitch;
  const delta_gates *gates;

  INLINE chunk_of_head at(const delta_backward_arguments &a, int64_t number, int64_t head) {
    chunk_of_head c;
    c.rows = memory<const delta_chunk>(a.chunks)[number];
    c.number = number, c.head = head, c.keys = a.in.key_dim, c.values = a.in.value_dim;
    c.pitch = 2 * delta_keys(a.in);
    c.q = memory<const float>(a.normed) + number * DELTA_CHUNK * c.pitch + head / delta_group(a.in) * 2 * c.keys, c.k = c.q + c.keys;
    c.gates = memory<const delta_gates>(a.gates) + number * a.in.value_heads + head;
    return c;
  }
  // of gives the chunk's part of memory that has so many elements of each.
  INLINE float *of(const delta_backward_arguments &a, const chunk_of_head &c, uint64_t at, int64_t size) { return memory<float>(at) + (c.number * a.in.value_heads + c.head) * size; }
};

// delta_prepare: block (x, y) has a chunk and a key head with its value heads.
KERNEL(delta_prepare, CHUNK_THREADS, delta_backward_arguments) {
  const delta_inputs &in = a.in;
  const delta_chunk c = memory<const delta_chunk>(a.chunks)[block_x()];
  const int64_t key_head = block_y(), dim = in.key_dim, group = delta_group(in);
  for (int t = warp(); t < DELTA_CHUNK; t += CHUNK_THREADS / 32) {
    float q[DELTA_HELD], k[DELTA_HELD];
    const bool have = t < c.count;
    const float *from = row_of<const float>(in.mixed, c.row + (have ? t : 0)) + key_head * dim;
    float *to = memory<float>(a.normed) + ((block_x() * DELTA_CHUNK + t) * in.key_heads + key_head) * 2 * dim;
    delta_row(q, from, dim), delta_row(k, from + delta_keys(in), dim);
    float by_q = unit_factor(delta_dot(q, q)) * query_factor(dim), by_k = unit_factor(delta_dot(k, k));
    UNROLL for (int e = 0; e < DELTA_HELD; e++)
      if (lane() + 32 * e < dim) to[lane() + 32 * e] = have ? q[e] * by_q : 0.0f, to[dim + lane() + 32 * e] = have ? k[e] * by_k : 0.0f;
  }
  for (int64_t i = thread(); i < group; i += CHUNK_THREADS) {
    const int64_t head = key_head * group + i;
    delta_gates &to = memory<delta_gates>(a.gates)[block_x() * in.value_heads + head];
    const float rate = -exp_rn(row_of<const float>(in.a_log, 0)[head]), bias = row_of<const float>(in.bias, 0)[head];
    double sum = 0;
    for (int t = 0; t < DELTA_CHUNK; t++) {
      const bool have = t < c.count;
      if (have) sum = sum + (double)delta_decay(rate, row_of<const float>(in.a, c.row + t)[head] + bias);
      to.sums[t] = sum;
      to.beta[t] = have ? sigmoid(row_of<const float>(in.b, c.row + t)[head]) : 0.0f;
      to.gamma[t] = exp_rn((float)sum);
    }
    for (int t = 0; t < DELTA_CHUNK; t++) to.lambda[t] = exp_rn((float)(sum - to.sums[t]));
  }
}

// weight is E[i][j].
INLINE float weight_between(const delta_gates *g, int i, int j) { return j <= i ? exp_rn((float)(g->sums[i] - g->sums[j])) : 0.0f; }

// squares gives K·Kᵀ and Q·Kᵀ.
INLINE void squares(const chunk_of_head &c, chunk_part *q, chunk_part *k, chunk_sums<2> &kk, chunk_sums<2> &qk) {
  clear(kk), clear(qk);
  for (int64_t d0 = 0; d0 < c.keys; d0 += CHUNK_DEEP) {
    barrier();
    bring<CHUNK_DEEP>(q, DELTA_CHUNK, [&](int r, int d) { return d0 + d < c.keys ? c.q[r * c.pitch + d0 + d] : 0.0f; });
    bring<CHUNK_DEEP>(k, DELTA_CHUNK, [&](int r, int d) { return d0 + d < c.keys ? c.k[r * c.pitch + d0 + d] : 0.0f; });
    barrier();
    multiply(kk, CHUNK_DEEP, [&](int r, int d) { return k[r][d]; }, [&](int d, int r) { return k[r][d]; });
    multiply(qk, CHUNK_DEEP, [&](int r, int d) { return q[r][d]; }, [&](int d, int r) { return k[r][d]; });
  }
}

// delta_within: block (x, y) has a chunk and a value head.
KERNEL_BLOCKS(delta_within, CHUNK_THREADS, 4, delta_backward_arguments) {
  SHARED(square_row, l[DELTA_CHUNK]);
  SHARED(square_row, p[DELTA_CHUNK]);
  SHARED(square_row, t[DELTA_CHUNK]);
  SHARED(chunk_part, x[DELTA_CHUNK]);
  SHARED(chunk_part, y[DELTA_CHUNK]);
  SHARED(chunk_row, s[DELTA_CHUNK]); // of a state, its first rows only, and what products leave
  SHARED(chunk_row, z[DELTA_CHUNK]);
  const chunk_of_head c = chunk_of_head::at(a, block_x(), block_y());
  const delta_gates *g = c.gates;
  {
    chunk_sums<2> kk, qk;
    squares(c, x, y, kk, qk);
    each(kk, [&](int i, int j, float v) { l[i][j] = j < i ? g->beta[i] * (weight_between(g, i, j) * v) : 0.0f; });
    each(qk, [&](int i, int j, float v) { p[i][j] = weight_between(g, i, j) * v; });
  }
  barrier();
  if (thread() < DELTA_CHUNK) { // a column of T: what (I+L) makes a column of I of
    float column[DELTA_CHUNK];
    UNROLL for (int i = 0; i < DELTA_CHUNK; i++) {
      float v = i == thread() ? 1.0f : 0.0f;
      UNROLL for (int r = 0; r < i; r++) v = fma_rn(-l[i][r], column[r], v);
      column[i] = v;
      t[i][thread()] = v;
    }
  }
  const float *before = chunk_of_head::of(a, c, a.before, c.keys * c.values);
  float *delta = chunk_of_head::of(a, c, a.delta, DELTA_CHUNK * c.values), *dr = chunk_of_head::of(a, c, a.dr, DELTA_CHUNK * c.values);
  const int64_t value = delta_value(a.in, c.head);
  for (int64_t c0 = 0; c0 < c.values; c0 += CHUNK_WIDE) {
    chunk_sums<4> sums;
    clear(sums);
    for (int64_t d0 = 0; d0 < c.keys; d0 += CHUNK_DEEP) {
      barrier();
      bring<CHUNK_DEEP>(x, DELTA_CHUNK, [&](int r, int d) { return d0 + d < c.keys ? c.k[r * c.pitch + d0 + d] : 0.0f; });
      bring<CHUNK_WIDE>(s, CHUNK_DEEP, [&](int d, int j) { return d0 + d < c.keys && c0 + j < c.values ? before[(d0 + d) * c.values + c0 + j] : 0.0f; });
      barrier();
      multiply(sums, CHUNK_DEEP, [&](int r, int d) { return x[r][d]; }, [&](int d, int j) { return s[d][j]; });
    }
    barrier();
    bring<CHUNK_WIDE>(s, DELTA_CHUNK, [&](int r, int j) { return r < c.rows.count && c0 + j < c.values ? row_of<const float>(a.dout, c.rows.row + r)[c.head * c.values + c0 + j] : 0.0f; });
    each(sums, [&](int r, int j, float v) {
      float mixed = r < c.rows.count && c0 + j < c.values ? row_of<const float>(a.in.mixed, c.rows.row + r)[value + c0 + j] : 0.0f;
      z[r][j] = g->beta[r] * fma_rn(-g->gamma[r], v, mixed);
    });
    barrier();
    clear(sums);
    multiply(sums, DELTA_CHUNK, [&](int r, int k) { return t[r][k]; }, [&](int k, int j) { return z[k][j]; });
    each(sums, [&](int r, int j, float v) {
      if (c0 + j < c.values) delta[r * c.values + c0 + j] = v;
    });
    clear(sums);
    multiply(sums, DELTA_CHUNK, [&](int r, int k) { return p[k][r]; }, [&](int k, int j) { return s[k][j]; });
    barrier();
    each(sums, [&](int r, int j, float v) { z[r][j] = v; });
    barrier();
    clear(sums);
    multiply(sums, DELTA_CHUNK, [&](int r, int k) { return t[k][r]; }, [&](int k, int j) { return z[k][j]; });
    each(sums, [&](int r, int j, float v) {
      if (c0 + j < c.values) dr[r * c.values + c0 + j] = v;
    });
  }
  float *w = chunk_of_head::of(a, c, a.w, DELTA_CHUNK * c.keys);
  for (int64_t d0 = 0; d0 < c.keys; d0 += CHUNK_WIDE) {
    barrier();
    bring<CHUNK_WIDE>(z, DELTA_CHUNK, [&](int r, int d) { return d0 + d < c.keys ? g->lambda[r] * c.k[r * c.pitch + d0 + d] : 0.0f; });
    barrier();
    chunk_sums<4> sums;
    clear(sums);
    multiply(sums, DELTA_CHUNK, [&](int r, int k) { return t[k][r]; }, [&](int k, int d) { return z[k][d]; });
    each(sums, [&](int r, int d, float v) {
      if (d0 + d < c.keys) w[r * c.keys + d0 + d] = v;
    });
  }
}

// delta_across: block x has a span and a tile of 32 columns, block y a value head. It goes on with D in carry and leaves it there, unless that is nobody's.
KERNEL_BLOCKS(delta_across, CHUNK_THREADS, 2, delta_backward_arguments) {
  DYNAMIC_SHARED(square_row, d); // D: up to MAX_DELTA_DIM rows
  square_row *dout = d + MAX_DELTA_DIM, *dr = dout + DELTA_CHUNK;
  chunk_row *w_or_q = (chunk_row *)(dr + DELTA_CHUNK), *k = w_or_q + DELTA_CHUNK;
  const int64_t tiles = (a.in.value_dim + DELTA_COLUMNS - 1) / DELTA_COLUMNS, head = block_y(), keys = a.in.key_dim, values = a.in.value_dim, c0 = block_x() % tiles * DELTA_COLUMNS;
  const delta_span span = memory<const delta_span>(a.spans)[block_x() / tiles];
  float *carry = memory<float>(a.carry) + head * keys * values;
  bring<DELTA_COLUMNS>(d, (int)keys, [&](int i, int j) { return !span.last && c0 + j < values ? carry[i * values + c0 + j] : 0.0f; });
  for (int64_t number = span.first + span.count - 1; number >= span.first; number--) {
    const chunk_of_head c = chunk_of_head::at(a, number, head);
    const delta_gates *g = c.gates;
    const float *w = chunk_of_head::of(a, c, a.w, DELTA_CHUNK * keys);
    float *after = chunk_of_head::of(a, c, a.after, keys * values), *all = chunk_of_head::of(a, c, a.dr, DELTA_CHUNK * values);
    barrier(); // D is there
    for (int e = thread(); e < keys * DELTA_COLUMNS; e += CHUNK_THREADS)
      if (c0 + e % DELTA_COLUMNS < values) after[e / DELTA_COLUMNS * values + c0 + e % DELTA_COLUMNS] = d[e / DELTA_COLUMNS][e % DELTA_COLUMNS];
    bring<DELTA_COLUMNS>(dout, DELTA_CHUNK, [&](int r, int j) { return r < c.rows.count && c0 + j < values ? g->gamma[r] * row_of<const float>(a.dout, c.rows.row + r)[head * values + c0 + j] : 0.0f; });
    chunk_sums<2> sums;
    each(sums, [&](int r, int j, float &v) { v = c0 + j < values ? all[r * values + c0 + j] : 0.0f; });
    for (int64_t d0 = 0; d0 < keys; d0 += CHUNK_WIDE) {
      barrier();
      bring<CHUNK_WIDE>(w_or_q, DELTA_CHUNK, [&](int r, int i) { return d0 + i < keys ? w[r * keys + d0 + i] : 0.0f; });
      barrier();
      multiply(sums, (int)(keys - d0 < CHUNK_WIDE ? keys - d0 : CHUNK_WIDE), [&](int r, int i) { return w_or_q[r][i]; }, [&](int i, int j) { return d[d0 + i][j]; });
    }
    each(sums, [&](int r, int j, float v) {
      if (c0 + j < values) all[r * values + c0 + j] = v;
      dr[r][j] = -g->gamma[r] * (g->beta[r] * v);
    });
    const float gamma = g->gamma[DELTA_CHUNK - 1];
    for (int64_t d0 = 0; d0 < keys; d0 += CHUNK_WIDE) {
      barrier();
      bring<CHUNK_WIDE>(w_or_q, DELTA_CHUNK, [&](int r, int i) { return d0 + i < keys ? c.q[r * c.pitch + d0 + i] : 0.0f; });
      bring<CHUNK_WIDE>(k, DELTA_CHUNK, [&](int r, int i) { return d0 + i < keys ? c.k[r * c.pitch + d0 + i] : 0.0f; });
      barrier();
      UNROLL for (int half = 0; half < CHUNK_WIDE; half += DELTA_CHUNK) {
        if (d0 + half >= keys) break;
        each(sums, [&](int i, int j, float &v) { v = d0 + half + i < keys ? gamma * d[d0 + half + i][j] : 0.0f; });
        multiply(sums, DELTA_CHUNK, [&](int i, int r) { return w_or_q[r][half + i]; }, [&](int r, int j) { return dout[r][j]; });
        multiply(sums, DELTA_CHUNK, [&](int i, int r) { return k[r][half + i]; }, [&](int r, int j) { return dr[r][j]; });
        each(sums, [&](int i, int j, float v) {
          if (d0 + half + i < keys) d[d0 + half + i][j] = v;
        });
      }
    }
  }
  if (span.first_of) return;
  barrier();
  for (int e = thread(); e < keys * DELTA_COLUMNS; e += CHUNK_THREADS)
    if (c0 + e % DELTA_COLUMNS < values) carry[e / DELTA_COLUMNS * values + c0 + e % DELTA_COLUMNS] = d[e / DELTA_COLUMNS][e % DELTA_COLUMNS];
}

// row_sum adds what the 16 threads of a row have.
INLINE float row_sum(float v) {
  for (int m = 8; m; m >>= 1) v = v + shuffle_xor(v, m);
  return v;
}

// delta_gradients: block (x, y) has a chunk and a key head, whose gradients are sums over its value heads in their order.
KERNEL(delta_gradients, CHUNK_THREADS, delta_backward_arguments) {
  SHARED(square_row, m[DELTA_CHUNK]);
  SHARED(square_row, pe[DELTA_CHUNK]); // dP·E
  SHARED(square_row, weights[DELTA_CHUNK]);
  SHARED(chunk_part, douts[DELTA_CHUNK]);
  SHARED(chunk_part, drs[DELTA_CHUNK]);
  SHARED(chunk_part, deltas[DELTA_CHUNK]);
  SHARED(chunk_part, befores[CHUNK_WIDE]);
  SHARED(chunk_part, afters[CHUNK_WIDE]);
  SHARED(chunk_row, q[DELTA_CHUNK]);
  SHARED(chunk_row, k[DELTA_CHUNK]);
  SHARED(float, room[CHUNK_THREADS / 32]);
  SHARED(float, dg[DELTA_CHUNK]);
  SHARED(float, by_state[DELTA_CHUNK]); // what a row's decay gives by the state before it
  SHARED(float, kept[DELTA_CHUNK]);
  SHARED(float, dbeta[DELTA_CHUNK]);
  const delta_inputs &in = a.in;
  const int64_t key_head = block_y(), group = delta_group(in), keys = in.key_dim, values = in.value_dim;
  const delta_chunk rows = memory<const delta_chunk>(a.chunks)[block_x()];
  for (int64_t head = key_head * group; head < (key_head + 1) * group; head++) {
    const chunk_of_head c = chunk_of_head::at(a, block_x(), head);
    const delta_gates *g = c.gates;
    const float *before = chunk_of_head::of(a, c, a.before, keys * values), *after = chunk_of_head::of(a, c, a.after, keys * values);
    const float *delta = chunk_of_head::of(a, c, a.delta, DELTA_CHUNK * values), *dr = chunk_of_head::of(a, c, a.dr, DELTA_CHUNK * values);
    auto dout = [&](int r, int64_t j) { return r < rows.count && j < values ? row_of<const float>(a.dout, rows.row + r)[head * values + j] : 0.0f; };
    auto value = [&](int r, int64_t j) { return r < rows.count && j < values ? row_of<const float>(in.mixed, rows.row + r)[delta_value(in, head) + j] : 0.0f; };
    auto bring_values = [&](int64_t j0) {
      bring<CHUNK_DEEP>(douts, DELTA_CHUNK, [&](int r, int j) { return dout(r, j0 + j); });
      bring<CHUNK_DEEP>(drs, DELTA_CHUNK, [&](int r, int j) { return j0 + j < values ? dr[r * values + j0 + j] : 0.0f; });
      bring<CHUNK_DEEP>(deltas, DELTA_CHUNK, [&](int r, int j) { return j0 + j < values ? delta[r * values + j0 + j] : 0.0f; });
    };
    float along_beta[4]; // of the thread's rows
    {
      chunk_sums<2> kk, qk, dp, dl;
      squares(c, douts, drs, kk, qk);
      clear(dp), clear(dl);
      UNROLL for (int i = 0; i < 4; i++) along_beta[i] = 0.0f;
      for (int64_t j0 = 0; j0 < values; j0 += CHUNK_DEEP) {
        barrier();
        bring_values(j0);
        barrier();
        multiply(dp, CHUNK_DEEP, [&](int r, int j) { return douts[r][j]; }, [&](int j, int r) { return deltas[r][j]; });
        multiply(dl, CHUNK_DEEP, [&](int r, int j) { return drs[r][j]; }, [&](int j, int r) { return deltas[r][j]; });
        UNROLL for (int i = 0; i < 4; i++) { // dR·V; dV = β·dR
          int r = 4 * down() + i;
          int64_t j = j0 + across();
          along_beta[i] = fma_rn(drs[r][across()], value(r, j), along_beta[i]);
          if (r < rows.count && j < values) row_of<float>(a.dmixed, rows.row + r)[delta_value(in, head) + j] = g->beta[r] * drs[r][across()];
        }
      }
      float of_row[4];
      UNROLL for (int i = 0; i < 4; i++) of_row[i] = 0.0f;
      UNROLL for (int i = 0; i < 4; i++)
        UNROLL for (int j = 0; j < 2; j++) {
          const int r = 4 * down() + i, k = across() + 16 * j;
          const float e = weight_between(g, r, k), by_p = k <= r ? dp.v[i][j] : 0.0f, by_l = k < r ? -dl.v[i][j] : 0.0f, le = by_l * e;
          along_beta[i] = fma_rn(le, kk.v[i][j], along_beta[i]);
          const float w = k < r ? fma_rn(by_p, e * qk.v[i][j], le * (g->beta[r] * kk.v[i][j])) : 0.0f; // the diagonal would be added and taken away
          of_row[i] = of_row[i] + w;
          weights[r][k] = w, m[r][k] = g->beta[r] * le, pe[r][k] = by_p * e;
        }
      UNROLL for (int i = 0; i < 4; i++) {
        of_row[i] = row_sum(of_row[i]);
        if (across() == 0) dg[4 * down() + i] = of_row[i];
      }
    }
    barrier();
    if (thread() < DELTA_CHUNK) {
      float column = 0.0f;
      for (int r = 0; r < DELTA_CHUNK; r++) column = column + weights[r][thread()];
      dg[thread()] = dg[thread()] - column;
    }
    float of_states[4], of_kept[4], both = 0.0f; // of the thread's rows; ΣS·D
    UNROLL for (int i = 0; i < 4; i++) of_states[i] = 0.0f, of_kept[i] = 0.0f;
    for (int64_t d0 = 0; d0 < keys; d0 += CHUNK_WIDE) {
      chunk_sums<4> by_q, by_k, by_after; // dO·Sᵀ, dR·Sᵀ, Δ·Dᵀ
      clear(by_q), clear(by_k), clear(by_after);
      for (int64_t j0 = 0; j0 < values; j0 += CHUNK_DEEP) {
        barrier();
        bring_values(j0);
        bring<CHUNK_DEEP>(befores, CHUNK_WIDE, [&](int i, int j) { return d0 + i < keys && j0 + j < values ? before[(d0 + i) * values + j0 + j] : 0.0f; });
        bring<CHUNK_DEEP>(afters, CHUNK_WIDE, [&](int i, int j) { return d0 + i < keys && j0 + j < values ? after[(d0 + i) * values + j0 + j] : 0.0f; });
        barrier();
        multiply(by_q, CHUNK_DEEP, [&](int r, int j) { return douts[r][j]; }, [&](int j, int i) { return befores[i][j]; });
        multiply(by_k, CHUNK_DEEP, [&](int r, int j) { return drs[r][j]; }, [&](int j, int i) { return befores[i][j]; });
        multiply(by_after, CHUNK_DEEP, [&](int r, int j) { return deltas[r][j]; }, [&](int j, int i) { return afters[i][j]; });
        UNROLL for (int e = 0; e < CHUNK_WIDE * CHUNK_DEEP / CHUNK_THREADS; e++) {
          int at = thread() + e * CHUNK_THREADS;
          both = fma_rn(befores[at / CHUNK_DEEP][at % CHUNK_DEEP], afters[at / CHUNK_DEEP][at % CHUNK_DEEP], both);
        }
      }
      barrier();
      bring<CHUNK_WIDE>(q, DELTA_CHUNK, [&](int r, int i) { return d0 + i < keys ? c.q[r * c.pitch + d0 + i] : 0.0f; });
      bring<CHUNK_WIDE>(k, DELTA_CHUNK, [&](int r, int i) { return d0 + i < keys ? c.k[r * c.pitch + d0 + i] : 0.0f; });
      barrier();
      UNROLL for (int i = 0; i < 4; i++)
        UNROLL for (int j = 0; j < 4; j++) {
          const int r = 4 * down() + i, d = across() + 16 * j;
          const float gamma = g->gamma[r], beta = g->beta[r];
          by_q.v[i][j] = gamma * by_q.v[i][j];
          of_states[i] = fma_rn(q[r][d], by_q.v[i][j], of_states[i]);
          by_after.v[i][j] = g->lambda[r] * by_after.v[i][j];
          of_kept[i] = fma_rn(k[r][d], by_after.v[i][j], of_kept[i]);
          const float dx = gamma * by_k.v[i][j]; // γ·dR·Sᵀ
          along_beta[i] = fma_rn(-k[r][d], dx, along_beta[i]);
          of_states[i] = fma_rn(-k[r][d], beta * dx, of_states[i]);
          by_after.v[i][j] = fma_rn(-beta, dx, by_after.v[i][j]);
        }
      multiply(by_q, DELTA_CHUNK, [&](int r, int t) { return pe[r][t]; }, [&](int t, int d) { return k[t][d]; });
      multiply(by_after, DELTA_CHUNK, [&](int r, int t) { return pe[t][r]; }, [&](int t, int d) { return q[t][d]; });
      multiply(by_after, DELTA_CHUNK, [&](int r, int t) { return m[r][t] + m[t][r]; }, [&](int t, int d) { return k[t][d]; });
      auto put = [&](int64_t column, int r, int d, float v) {
        if (r >= rows.count || d0 + d >= keys) return;
        float *to = row_of<float>(a.dmixed, rows.row + r) + column + key_head * keys + d0 + d;
        *to = head == key_head * group ? v : *to + v;
      };
      each(by_q, [&](int r, int d, float v) { put(0, r, d, v); });
      each(by_after, [&](int r, int d, float v) { put(delta_keys(in), r, d, v); });
    }
    UNROLL for (int i = 0; i < 4; i++) {
      const float beta = row_sum(along_beta[i]), state = row_sum(of_states[i]), keep = row_sum(of_kept[i]);
      const int r = 4 * down() + i;
      if (across() == 0) dbeta[r] = beta, by_state[r] = state, kept[r] = r + 1 < rows.count ? keep : 0.0f; // the last one's would be added and taken away
    }
    both = block_sum<CHUNK_THREADS>(both, room); // whose barrier is that of the rows, too
    if (thread() == 0) {
      const float rate = -exp_rn(row_of<const float>(in.a_log, 0)[head]), bias = row_of<const float>(in.bias, 0)[head];
      double last = (double)(g->gamma[DELTA_CHUNK - 1] * both), sum = 0; // terms of a whole chunk, which cancel
      for (int r = 0; r < rows.count; r++) last = last + (double)kept[r];
      for (int r = (int)rows.count - 1; r >= 0; r--) {
        sum = sum + ((double)dg[r] + (double)by_state[r] - (double)kept[r]);
        if (r + 1 == rows.count) sum = sum + last;
        const float beta = g->beta[r];
        row_of<float>(a.da, rows.row + r)[head] = (float)sum * rate * sigmoid(row_of<const float>(in.a, rows.row + r)[head] + bias);
        row_of<float>(a.db, rows.row + r)[head] = dbeta[r] * (beta * (1.0f - beta));
      }
    }
    barrier();
  }
  // The gradients by what was made of unit length become those by queries and keys.
  for (int t = warp(); t < rows.count; t += CHUNK_THREADS / 32)
    UNROLL for (int which = 0; which < 2; which++) {
      const int64_t at = which * delta_keys(in) + key_head * keys;
      float x[DELTA_HELD], d[DELTA_HELD], *to = row_of<float>(a.dmixed, rows.row + t) + at;
      delta_row(x, row_of<const float>(in.mixed, rows.row + t) + at, keys);
      delta_row(d, to, keys);
      const float inverse = unit_factor(delta_dot(x, x)), minus = -(delta_dot(x, d) * inverse * inverse), factor = which == 0 ? inverse * query_factor(keys) : inverse;
      UNROLL for (int e = 0; e < DELTA_HELD; e++)
        if (lane() + 32 * e < keys) to[lane() + 32 * e] = fma_rn(x[e], minus, d[e]) * factor;
    }
}
