// Mixtures of experts: the choice of each token and what its slots give. Included once per instruction set.

// route_sum gives the largest logit of a row and the sum of exp(logit - largest) over all of them.
INLINE float route_sum(const float *logits, int64_t experts, float *largest) {
  const float least = -__builtin_inff();
  lanes top = lset(least), sum = lset(0.0f);
  EACH_16(experts) top = lmax(top, n == 16 ? lload(logits + at) : lload_some(logits + at, n, least));
  *largest = lmax1(top);
  lanes minus = lset(-*largest);
  EACH_16(experts) sum = ladd(sum, lexp(ladd(n == 16 ? lload(logits + at) : lload_some(logits + at, n, least), minus)));
  return lsum(sum);
}

// above tells whether a logit goes before another one: NaN goes before every number, so that it is chosen and spoils the row.
INLINE bool above(float x, float y) { return x > y || (x != x && y == y); }

// choose writes the k largest logits' indices in descending order, ties, NaN among them, by lower index.
INLINE void choose(const float *logits, int64_t experts, int64_t k, int32_t *choice) {
  int64_t have = 0;
  for (int64_t e = 0; e < experts; e++) {
    float x = logits[e];
    if (have == k && !above(x, logits[choice[k - 1]])) continue;
    int64_t at = have < k ? have++ : k - 1;
    for (; at > 0 && above(x, logits[choice[at - 1]]); at--) choice[at] = choice[at - 1];
    choice[at] = (int32_t)e;
  }
}

// a = choice, b = p, c = logits, flag = normalise
static void route(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  int64_t k = j->a.cols, experts = j->c.cols;
  EACH_ROW(j) {
    int32_t *choice = (int32_t *)row_of(j->a, r);
    float *p = row_of(j->b, r), largest, sum = 0.0f;
    const float *logits = row_of(j->c, r);
    choose(logits, experts, k, choice);
    if (j->flag) largest = logits[choice[0]];
    else sum = route_sum(logits, experts, &largest);
    for (int64_t s = 0; s < k; s++) p[s] = logits[choice[s]] - largest;
    EACH_16(k) STORE(p, lexp(LOAD(p)));
    if (j->flag)
      for (int64_t s = 0; s < k; s++) sum += p[s];
    for (int64_t s = 0; s < k; s++) p[s] /= sum;
  }
}

// a = dlogits, b = dp, c = p, d = choice, e = logits, flag = normalise
static void route_backward(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  int64_t k = j->d.cols, experts = j->a.cols;
  EACH_ROW(j) {
    float *dlogits = row_of(j->a, r), mean = 0.0f;
    const float *dp = row_of(j->b, r), *p = row_of(j->c, r), *logits = row_of(j->e, r);
    const int32_t *choice = (const int32_t *)row_of(j->d, r);
    for (int64_t s = 0; s < k; s++) mean = vfma(vset(p[s]), vset(dp[s]), vset(mean))[0];
    if (j->flag) {
      memset(dlogits, 0, (size_t)experts * 4);
    } else {
      float largest, sum = route_sum(logits, experts, &largest);
      lanes minus = lset(-largest), factor = lset(-mean);
      EACH_16(experts) {
        lanes e = lexp(ladd(LOAD(logits), minus));
        EACH_PART e.v[i] = e.v[i] / vset(sum);
        STORE(dlogits, lmul(e, factor));
      }
    }
    for (int64_t s = 0; s < k; s++) dlogits[choice[s]] = p[s] * (dp[s] - mean);
  }
}

// a = rows, b = x, c = p (none: 1), index = the tokens of rows, then their slots, flag = x has a row for each token
static void spread(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  int64_t cols = j->a.cols, k = j->heads;
  EACH_ROW(j) {
    float *y = row_of(j->a, r);
    const float *x = row_of(j->b, j->flag ? j->index[r] : r);
    if (!j->c.addr) {
      memmove(y, x, (size_t)cols * 4);
      continue;
    }
    int64_t slot = j->index[j->a.rows + r];
    lanes p = lset(row_of(j->c, slot / k)[slot % k]);
    EACH_16(cols) STORE(y, lmul(LOAD(x), p));
  }
}

// a = y, b = rows, c = p (none: 1), index = the rows of slots, heads = slots, flag = accumulate
static void combine(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  int64_t cols = j->a.cols, k = j->heads;
  EACH_ROW(j) {
    float *y = row_of(j->a, r), factors[64];
    const float *rows[64];
    for (int64_t s = 0; s < k; s++) rows[s] = row_of(j->b, j->index[r * k + s]), factors[s] = j->c.addr ? row_of(j->c, r)[s] : 1.0f;
    EACH_16(cols) {
      lanes sum = j->flag ? LOAD(y) : lset(0.0f);
      for (int64_t s = 0; s < k; s++) sum = lfma(LOAD(rows[s]), lset(factors[s]), sum);
      STORE(y, sum);
    }
  }
}

// a = drows, b = h, c = p, d = dp, index = the slots of rows, heads = slots, cut = the segments of a row
static void combine_backward(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  int64_t k = j->heads;
  EACH_ROW(j) {
    float *d = row_of(j->a, r);
    const float *h = row_of(j->b, r);
    int64_t slot = j->index[r];
    lanes p = lset(row_of(j->c, slot / k)[slot % k]);
    float sums[PARTIAL_SUMS];
    for (int64_t s = 0, from = 0; s < j->cut.count; from = j->cut.ends[s++]) {
      float *some = d + from;
      const float *others = h + from;
      lanes sum = lset(0.0f);
      EACH_16(j->cut.ends[s] - from) {
        lanes x = LOAD(some);
        sum = lfma(x, LOAD(others), sum);
        STORE(some, lmul(x, p));
      }
      int64_t last = partial_sum(s);
      sums[last] = lsum(sum);
      for (int64_t i = sums_after(s); i > 0; i--, last--) sums[last - 1] += sums[last];
    }
    row_of(j->d, slot / k)[slot % k] = sums[0];
  }
}
