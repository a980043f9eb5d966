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

  // prepare has a warp prepare a row.
  INLINE void prepare(prepared &p, const delta_inputs &in, int64_t row, int64_t head, int64_t column, float rate, float bias) {
    int64_t key_head = head / delta_group(in);
    const float *x = row_of<const float>(in.mixed, row);
    float q[held], k[held], v = column + lane() < in.value_dim ? x[delta_value(in, head) + column + lane()] : 0.0f;
    float a = row_of<const float>(in.a, row)[head], b = row_of<const float>(in.b, row)[head];
    delta_row(q, x + key_head * in.key_dim, in.key_dim);
    delta_row(k, x + delta_keys(in) + key_head * in.key_dim, in.key_dim);
    float by_q = unit_factor(delta_dot(q, q)) * query_factor(in.key_dim), by_k = unit_factor(delta_dot(k, k));
    UNROLL for (int e = 0; e < held; e++) q[e] = q[e] * by_q, k[e] = k[e] * by_k;
    put(p.q, q, 1.0f), put(p.k, k, 1.0f);
    float qk = delta_dot(q, k);
    p.v[lane()] = v;
    if (lane() == 0) p.e = exp_rn(delta_decay(rate, a + bias)), p.beta = sigmoid(b), p.qk = qk;
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
    const bool worker = thread() < DELTA_WORKERS, mine = worker && column < wide, outputs = a.o.at != 0;
    float s[R], m = 0.0f, p = 0.0f, rate = 0.0f, bias = 0.0f;
    UNROLL for (int i = 0; i < R; i++) s[i] = 0.0f;
    float *slot = run.slot >= 0 ? row_of<float>(a.states, run.slot) + head * dim * wide + column : nullptr;
    if (mine && slot)
      UNROLL for (int i = 0; i < R; i++) s[i] = 4 * i + part < dim ? slot[(4 * i + part) * wide] : 0.0f;
    if (!worker) {
      rate = -exp_rn(row_of<const float>(in.a_log, 0)[head]), bias = row_of<const float>(in.bias, 0)[head];
      for (int t = warp() - 4; t < DELTA_ROWS && t < run.count; t += 4) prepare(rows[0][t], in, run.row + t, head, first, rate, bias);
    }
    for (int64_t t0 = 0;; t0 += DELTA_ROWS) {
      if (a.kept && t0 % a.every == 0 && mine) {
        float *to = memory<float>(a.kept) + ((run.kept + t0 / a.every) * in.value_heads + head) * dim * wide + column;
        UNROLL for (int i = 0; i < R; i++)
          if (4 * i + part < dim) to[(4 * i + part) * wide] = s[i];
      }
      if (t0 >= run.count) break;
      barrier(); // the rows are there, and all have read those before
      const int64_t n = run.count - t0 < DELTA_ROWS ? run.count - t0 : DELTA_ROWS;
      const prepared *now = rows[t0 / DELTA_ROWS % 2];
      if (!worker) {
        for (int64_t t = warp() - 4; t < DELTA_ROWS && t0 + DELTA_ROWS + t < run.count; t += 4)
          prepare(rows[(t0 / DELTA_ROWS + 1) % 2][t], in, run.row + t0 + DELTA_ROWS + t, head, first, rate, bias);
        continue;
      }
      look(s, now[0], m, p);
      for (int64_t t = 0; t < n; t++) {
        const prepared &of = now[t];
        const float all_m = across(m), all_p = across(p), delta = of.beta * fma_rn(-of.e, all_m, of.v[thread() / 4]);
        if (outputs && mine && part == 0) row_of<float>(a.o, run.row + t0 + t)[head * wide + column] = fma_rn(of.qk, delta, of.e * all_p);
        if (t + 1 < n && 4 * R == dim) {
          both(s, of, delta, now[t + 1], m, p);
          continue;
        }
        update(s, of, delta);
        if (4 * R > dim) // rows that are none stay zero, whatever δ is
          UNROLL for (int i = 0; i < R; i++)
            if (4 * i + part >= dim) s[i] = 0.0f;
        if (t + 1 < n) look(s, now[t + 1], m, p);
      }
    }
    if (outputs && mine && slot)
      UNROLL for (int i = 0; i < R; i++)
        if (4 * i + part < dim) slot[(4 * i + part) * wide] = s[i];
  }
};

#define DELTA_RULE(D) \
  KERNEL(delta_rule_##D, DELTA_THREADS, delta_arguments) { delta_rule<D / 4>::run(a); }
DELTA_RULE(64)
DELTA_RULE(128)
DELTA_RULE(256)
