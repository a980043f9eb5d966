// Attention with sinks, behind attention itself, and experts that have biases and a clamped gated product. Included once per instruction set.

// a = o, b = lse, c = sinks
static void sink(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  int64_t heads = j->b.cols, dim = j->a.cols / heads;
  const float *sinks = row_of(j->c, 0);
  EACH_ROW(j) {
    float *lse = row_of(j->b, r);
    for (int64_t h = 0; h < heads; h++) {
      float *o = row_of(j->a, r) + h * dim, z = lse[h], s = sinks[h];
      bool above = s > z;
      float less = exp1(above ? z - s : s - z), sum = 1.0f + less; // of the smaller one, relative to the larger
      lanes factor = lset((above ? less : 1.0f) / sum);
      EACH_16(dim) STORE(o, lmul(LOAD(o), factor));
      lse[h] = (above ? s : z) + log1(sum);
    }
  }
}

// clamp_gates gives g and u of a clamped gated product, and s, the sigmoid of alpha · g.
INLINE void clamp_gates(lanes *g, lanes *u, lanes *s, float alpha, float limit) {
  EACH_PART g->v[i] = vmin(vset(limit), g->v[i]); // in this order a NaN comes through
  EACH_PART u->v[i] = vmax(vset(-limit), vmin(vset(limit), u->v[i]));
  *s = sigmoid(lmul(*g, lset(alpha)));
}
// a = y, b = gate, c = up, x = alpha
static void swiglu_clamped(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  int64_t cols = j->a.cols;
  float alpha = j->x, limit = j->limit;
  EACH_ROW(j) {
    float *y = row_of(j->a, r);
    const float *gate = row_of(j->b, r), *up = row_of(j->c, r);
    EACH_16(cols) {
      lanes g = LOAD(gate), u = LOAD(up), s;
      clamp_gates(&g, &u, &s, alpha, limit);
      STORE(y, lmul(ladd(u, lset(1.0f)), lmul(g, s)));
    }
  }
}
// a = dgate, b = dup, c = dy, d = gate, e = up, x = alpha
static void swiglu_clamped_backward(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  int64_t cols = j->a.cols;
  float alpha = j->x, limit = j->limit;
  const vf zero = vset(0.0f), most = vset(limit), least = vset(-limit);
  EACH_ROW(j) {
    float *dgate = row_of(j->a, r), *dup = row_of(j->b, r);
    const float *dy = row_of(j->c, r), *gate = row_of(j->d, r), *up = row_of(j->e, r);
    EACH_16(cols) {
      lanes d = LOAD(dy), x = LOAD(gate), y = LOAD(up), g = x, u = y, s;
      clamp_gates(&g, &u, &s, alpha, limit);
      lanes du = lmul(d, lmul(g, s)), dg = lmul(lmul(d, ladd(u, lset(1.0f))), silu_slope(lmul(g, lset(alpha)), s));
      EACH_PART du.v[i] = vselect((vi)(y.v[i] > most) | (vi)(y.v[i] < least), zero, du.v[i]);
      EACH_PART dg.v[i] = vselect((vi)(x.v[i] > most), zero, dg.v[i]);
      STORE(dup, du);
      STORE(dgate, dg);
    }
  }
}

// a = rows, b = bias, index = the first row of each expert, and the number of rows
static void add_routed(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  int64_t cols = j->a.cols, expert = 0;
  EACH_ROW(j) {
    while (j->index[expert + 1] <= r) expert++;
    float *y = row_of(j->a, r);
    const float *bias = row_of(j->b, expert);
    EACH_16(cols) STORE(y, ladd(LOAD(y), LOAD(bias)));
  }
}

// a = dp, b = dy, c = bias, d = choice
static void add_routed_backward(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  int64_t cols = j->b.cols, k = j->a.cols;
  EACH_ROW(j) {
    float *dp = row_of(j->a, r);
    const float *dy = row_of(j->b, r);
    const int32_t *choice = (const int32_t *)row_of(j->d, r);
    for (int64_t s = 0; s < k; s++) {
      const float *bias = row_of(j->c, choice[s]);
      lanes sum = lset(0.0f);
      EACH_16(cols) sum = lfma(LOAD(dy), LOAD(bias), sum);
      dp[s] += lsum(sum);
    }
  }
}
