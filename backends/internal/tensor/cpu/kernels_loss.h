// Log-sum-exp and softmax over the vocabulary in fixed tiles: a row's result does not depend on the rows beside it. Included once per instruction set.

// A unit is one tile of one row: values receives its maximum and its sum of exp(x - maximum). a = logits, heads = tiles per row.
static void logsumexp_tile(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  const vocabulary_tile *tile = j->tiles + unit % j->heads;
  int64_t row = unit / j->heads, cols = tile->columns;
  const float *x = row_of(j->a, row) + tile->from;
  const float none = -__builtin_inff();
  lanes m = lset(none), s = lset(0.0f);
  EACH_16(cols) m = lmax(m, n == 16 ? lload(x + at) : lload_some(x + at, n, none));
  float top = lmax1(m);
  lanes minus = lset(top == none ? 0.0f : -top); // a tile of -Inf only sums to 0
  int64_t at = 0;
  EACH_32(cols) {
    lanes e[2] = {ladd(lload(x + at), minus), ladd(lload(x + at + 16), minus)};
    lexp_two(e);
    s = ladd(ladd(s, e[0]), e[1]);
  }
  EACH_16_AFTER(cols) s = ladd(s, lexp(ladd(n == 16 ? lload(x + at) : lload_some(x + at, n, none), minus)));
  float *out = (float *)(uintptr_t)j->values + unit * 2;
  out[0] = top;
  out[1] = lsum(s);
}
// A unit is some rows: the tiles of each segment of each are merged in order. a = lse.
static void logsumexp_merge(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  EACH_ROW(j) {
    const float *t = j->values + r * j->heads * 2;
    const vocabulary_tile *tile = j->tiles;
    int64_t from = 0;
    for (int64_t s = 0; s < j->a.cols; s++) {
      int64_t to = from;
      float top = -__builtin_inff(), sum = 0.0f;
      for (; to < j->heads && tile[to].segment == s; to++) top = to == from || t[2 * to] > top ? t[2 * to] : top;
      float base = top == -__builtin_inff() ? 0.0f : top;
      for (int64_t i = from; i < to; i++) sum = vfma(vset(t[2 * i + 1]), vset(exp1(t[2 * i] - base)), vset(sum))[0];
      row_of(j->a, r)[s] = sum == 0.0f ? top : top + log1(sum);
      from = to;
    }
  }
}
// a = p, b = logits, c = lse
static void softmax(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  int64_t cols = j->a.cols;
  EACH_ROW(j) {
    float *p = row_of(j->a, r);
    const float *x = row_of(j->b, r);
    lanes minus = lset(-*row_of(j->c, r));
    EACH_16(cols) STORE(p, lexp(ladd(LOAD(x), minus)));
  }
}
// a = logits in place, b = lse, index = targets, values = c, heads = k. The sum of c is taken first, in order.
static void softmax_gradient(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  int64_t cols = j->a.cols;
  EACH_ROW(j) {
    float *x = row_of(j->a, r), sum = 0.0f;
    const float *c = j->values + r * j->heads;
    for (int64_t k = 0; k < j->heads; k++) sum += c[k];
    lanes minus = lset(-*row_of(j->b, r)), factor = lset(-sum);
    int64_t at = 0;
    EACH_32(cols) {
      lanes e[2] = {ladd(lload(x + at), minus), ladd(lload(x + at + 16), minus)};
      lexp_two(e);
      lstore(x + at, lmul(factor, e[0])), lstore(x + at + 16, lmul(factor, e[1]));
    }
    EACH_16_AFTER(cols) STORE(x, lmul(factor, lexp(ladd(LOAD(x), minus))));
    for (int64_t k = 0; k < j->heads; k++)
      if (j->index[r * j->heads + k] >= 0) x[j->index[r * j->heads + k]] += c[k];
  }
}
