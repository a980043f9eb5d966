// The gated delta rule, token by token, in training as in sampling: where a sequence is cut changes no bit. A block has 32 columns of a head's state, which are independent of all others. Four threads share a column: thread c has its rows
// i ≡ c (mod 4), in registers for as long as the sequence's part goes; a sum over a column is a chain in each of the four, added (c0 + c2) + (c1 + c3). Four more warps bring the next rows meanwhile, of which queries and keys are made
// unit vectors, and compute their gates.
#include "delta.h"

enum { DELTA_THREADS = 256, DELTA_WORKERS = 128, DELTA_ROWS = 8 };

template <int R> struct delta_rule { // a thread's rows of a column
  static constexpr int held = R / 8;
  typedef float part[R + 4]; // a thread's elements of a query or key; the pad keeps those of the four in different banks

  // Rows of a batch as the columns of a block need them.
  struct prepared {
    part q[4], k[4];
    float v[DELTA_COLUMNS], e, beta, qk;
  };

  INLINE void put(part *to, const float (&x)[held], float factor) {
    UNROLL for (int e = 0; e < held; e++) {
      int i = lane() + 32 * e;
      to[i % 4][i / 4] = x[e] * factor;
    }
  }

  // prepare has a warp prepare rows from, from + step, … below to of a run: as many at once as wait for the same memory and for the same sums.
  INLINE void prepare(prepared *p, const delta_inputs &in, int64_t row, int from, int to, int64_t head, int64_t column, float rate, float bias) {
    constexpr int n = DELTA_ROWS / 4;
    if (from >= to) return;
    const int64_t q_at = head / delta_group(in) * in.key_dim, k_at = delta_keys(in) + q_at, v_at = delta_value(in, head) + column;
    float q[n][held], k[n][held], v[n], a[n], b[n], sums[n][3];
    UNROLL for (int t = 0; t < n; t++) {
      const int at = from + 4 * t;
      const bool have = at < to;
      const float *x = row_of<const float>(in.mixed, row + (have ? at : 0));
      delta_row(q[t], x + q_at, in.key_dim), delta_row(k[t], x + k_at, in.key_dim);
      v[t] = column + lane() < in.value_dim ? x[v_at + lane()] : 0.0f;
      a[t] = row_of<const float>(in.a, row + (have ? at : 0))[head], b[t] = row_of<const float>(in.b, row + (have ? at : 0))[head];
    }
    UNROLL for (int t = 0; t < n; t++) {
      UNROLL for (int i = 0; i < 3; i++) sums[t][i] = 0.0f;
      UNROLL for (int e = 0; e < held; e++)
        sums[t][0] = fma_rn(q[t][e], q[t][e], sums[t][0]), sums[t][1] = fma_rn(k[t][e], k[t][e], sums[t][1]), sums[t][2] = fma_rn(q[t][e], k[t][e], sums[t][2]);
    }
    for (int m = 16; m; m >>= 1)
      UNROLL for (int t = 0; t < n; t++)
        UNROLL for (int i = 0; i < 3; i++) sums[t][i] = sums[t][i] + shuffle_xor(sums[t][i], m);
    UNROLL for (int t = 0; t < n; t++) {
      const int at = from + 4 * t;
      if (at >= to) return;
      prepared &row_of_p = p[at];
      const float by_q = unit_factor(sums[t][0]) * query_factor(in.key_dim), by_k = unit_factor(sums[t][1]);
      put(row_of_p.q, q[t], by_q), put(row_of_p.k, k[t], by_k);
      row_of_p.v[lane()] = v[t];
      if (lane() == 0) row_of_p.e = exp_rn(delta_decay(rate, a[t] + bias)), row_of_p.beta = sigmoid(b[t]), row_of_p.qk = sums[t][2] * by_q * by_k;
    }
  }

  // each_row calls f for the thread's rows of a column that are there, n of them, which lie step elements apart. Addresses are made on the way: kept ones would take more registers than the rows.
  template <class F> INLINE void each_row(float *at, int64_t step, int n, F f) {
    UNROLL for (int i = 0; i < R; i++) {
      if (i < n) f(i, *at);
      at += step;
    }
  }

  // across adds what the four threads of a column have.
  INLINE float across(float v) {
    v = v + shuffle_xor(v, 2);
    return v + shuffle_xor(v, 1);
  }

  // look gives the thread's parts of m and p.
  INLINE void look(const float (&s)[R], const prepared &of, float &m, float &p) {
    const float *q = of.q[thread() % 4], *k = of.k[thread() % 4];
    m = 0.0f, p = 0.0f;
    UNROLL for (int i = 0; i < R; i++) m = fma_rn(k[i], s[i], m), p = fma_rn(q[i], s[i], p);
  }
  INLINE void update(float (&s)[R], const prepared &by, float delta) {
    const float *k = by.k[thread() % 4];
    UNROLL for (int i = 0; i < R; i++) s[i] = fma_rn(k[i], delta, by.e * s[i]);
  }
  // both updates by a row and looks by the next one: the same operations, without waiting for the first before the second begins.
  INLINE void both(float (&s)[R], const prepared &by, float delta, const prepared &of, float &m, float &p) {
    const float *before = by.k[thread() % 4], *q = of.q[thread() % 4], *k = of.k[thread() % 4];
    m = 0.0f, p = 0.0f;
    UNROLL for (int i = 0; i < R; i++) {
      s[i] = fma_rn(before[i], delta, by.e * s[i]);
      m = fma_rn(k[i], s[i], m), p = fma_rn(q[i], s[i], p);
    }
  }

  // block x has a run and a tile of columns, block y a head.
  INLINE void run(const delta_arguments &a) {
    SHARED(prepared, rows[2][DELTA_ROWS]);
    const delta_inputs &in = a.in;
    const int64_t tiles = (in.value_dim + DELTA_COLUMNS - 1) / DELTA_COLUMNS, head = block_y(), dim = in.key_dim, wide = in.value_dim;
    const state_run run = memory<const state_run>(a.runs)[block_x() / tiles];
    const int64_t first = block_x() % tiles * DELTA_COLUMNS, column = first + thread() / 4, part = thread() % 4;
    const int n_rows = (int)(dim - part + 3) / 4;
    const bool worker = thread() < DELTA_WORKERS, mine = worker && column < wide, outputs = a.o.at != 0;
    float s[R], m = 0.0f, p = 0.0f, rate = 0.0f, bias = 0.0f;
    UNROLL for (int i = 0; i < R; i++) s[i] = 0.0f;
    float *slot = run.slot >= 0 ? row_of<float>(a.states, run.slot) + (head * dim + part) * wide + column : nullptr;
    if (mine && slot) each_row(slot, 4 * wide, n_rows, [&](int i, float &from) { s[i] = from; });
    const int count = (int)run.count;
    float *out = outputs ? row_of<float>(a.o, run.row) + head * wide + column : nullptr;
    if (!worker) {
      rate = -exp_rn(row_of<const float>(in.a_log, 0)[head]), bias = row_of<const float>(in.bias, 0)[head];
      prepare(rows[0], in, run.row, warp() - 4, count < DELTA_ROWS ? count : DELTA_ROWS, head, first, rate, bias);
    }
    for (int t0 = 0;; t0 += DELTA_ROWS) {
      if (a.kept && t0 % (int)a.every == 0 && mine) {
        float *to = memory<float>(a.kept) + (((run.kept + t0 / (int)a.every) * in.value_heads + head) * dim + part) * wide + column;
        each_row(to, 4 * wide, n_rows, [&](int i, float &to) { to = s[i]; });
      }
      if (t0 >= count) break;
      barrier(); // the rows are there, and all have read those before
      const int n = count - t0 < DELTA_ROWS ? count - t0 : DELTA_ROWS;
      const prepared *now = rows[t0 / DELTA_ROWS % 2];
      if (!worker) {
        const int left = count - t0 - n;
        prepare(rows[(t0 / DELTA_ROWS + 1) % 2], in, run.row + t0 + DELTA_ROWS, warp() - 4, left < DELTA_ROWS ? left : DELTA_ROWS, head, first, rate, bias);
        continue;
      }
      look(s, now[0], m, p);
      for (int t = 0; t < n; t++) {
        const prepared &of = now[t];
        const float all_m = across(m), all_p = across(p), delta = of.beta * fma_rn(-of.e, all_m, of.v[thread() / 4]);
        if (outputs && mine && part == 0) *out = fma_rn(of.qk, delta, of.e * all_p);
        if (outputs) out += a.o.stride;
        if (R <= 32 && t + 1 < n && 4 * R == dim) {
          both(s, of, delta, now[t + 1], m, p);
          continue;
        }
        update(s, of, delta);
        if (4 * R > dim) // rows that are none stay zero, whatever δ is
          UNROLL for (int i = 0; i < R; i++)
            if (i >= n_rows) s[i] = 0.0f;
        if (t + 1 < n) look(s, now[t + 1], m, p);
      }
    }
    if (outputs && mine && slot) each_row(slot, 4 * wide, n_rows, [&](int i, float &to) { to = s[i]; });
  }
};

#define DELTA_RULE(D, blocks) \
  KERNEL_BLOCKS(delta_rule_##D, DELTA_THREADS, blocks, delta_arguments) { delta_rule<D / 4>::run(a); }
DELTA_RULE(64, 2)
DELTA_RULE(128, 2)
DELTA_RULE(256, 1)
