// Operations on rows: norms, rotary positions, the gated activation, sums, AdamW. Included once per instruction set.

#define EACH_ROW(j)                                                                                                                  \
  for (int64_t r = unit * (j)->rows_per_unit, end = r + (j)->rows_per_unit < (j)->a.rows ? r + (j)->rows_per_unit : (j)->a.rows; r < end; r++)

// y = x · 1/√(mean x² + eps) · weight; a = y, b = x, c = weight
static float inverse_rms(const float *x, int64_t cols, float eps) {
  lanes s = lset(0.0f);
  EACH_16(cols) {
    lanes v = LOAD(x);
    s = lfma(v, v, s);
  }
  return 1.0f / sqrt1(lsum(s) / (float)cols + eps);
}
static void rmsnorm(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  int64_t cols = j->a.cols;
  EACH_ROW(j) {
    const float *x = row_of(j->b, r), *weight = row_of(j->c, 0);
    float *y = row_of(j->a, r);
    lanes inv = lset(inverse_rms(x, cols, j->x));
    EACH_16(cols) STORE(y, lmul(lmul(LOAD(x), inv), LOAD(weight)));
  }
}

// dx = inv · dy·w - x · inv³ · mean(dy·w·x); a = dx, b = dy, c = x, d = weight
static void rmsnorm_backward(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  int64_t cols = j->a.cols;
  EACH_ROW(j) {
    const float *dy = row_of(j->b, r), *x = row_of(j->c, r), *weight = row_of(j->d, 0);
    float *dx = row_of(j->a, r), inv1 = inverse_rms(x, cols, j->x);
    lanes s = lset(0.0f), inv = lset(inv1);
    EACH_16(cols) s = lfma(lmul(LOAD(dy), LOAD(weight)), LOAD(x), s);
    lanes minus = lset(-(lsum(s) / (float)cols * inv1 * inv1 * inv1));
    EACH_16(cols) {
      lanes g = lfma(LOAD(x), minus, lmul(lmul(LOAD(dy), LOAD(weight)), inv));
      STORE(dx, j->flag ? ladd(LOAD(dx), g) : g);
    }
  }
}

// a = x in place, b = table, index = positions
static void rope(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  int64_t half = j->b.cols / 2, dim = j->a.cols / j->heads;
  lanes sign = lset(j->flag ? -1.0f : 1.0f);
  EACH_ROW(j) {
    const float *cosine = row_of(j->b, j->index[r]), *sine = cosine + half;
    for (int64_t h = 0; h < j->heads; h++) {
      float *x = row_of(j->a, r) + h * dim, *y = x + half;
      EACH_16(half) {
        lanes a = LOAD(x), b = LOAD(y), c = LOAD(cosine), s = lmul(LOAD(sine), sign), zero = lset(0.0f);
        lanes bs = lmul(b, s);
        EACH_PART bs.v[i] = zero.v[i] - bs.v[i];
        lanes na = lfma(a, c, bs), nb = lfma(b, c, lmul(a, s));
        STORE(x, na);
        STORE(y, nb);
      }
    }
  }
}

INLINE lanes sigmoid(lanes x) {
  lanes r;
  EACH_PART r.v[i] = vset(1.0f) / (vset(1.0f) + vexp(vset(0.0f) - x.v[i]));
  return r;
}
INLINE void sigmoid_two(lanes *x) {
  for (int k = 0; k < 2; k++) EACH_PART x[k].v[i] = vset(0.0f) - x[k].v[i];
  lexp_two(x);
  for (int k = 0; k < 2; k++) EACH_PART x[k].v[i] = vset(1.0f) / (vset(1.0f) + x[k].v[i]);
}
// a = y, b = gate, c = up
static void swiglu(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  int64_t cols = j->a.cols;
  EACH_ROW(j) {
    float *y = row_of(j->a, r);
    const float *gate = row_of(j->b, r), *up = row_of(j->c, r);
    int64_t at = 0;
    EACH_32(cols) {
      lanes g[2] = {lload(gate + at), lload(gate + at + 16)}, s[2] = {g[0], g[1]};
      sigmoid_two(s);
      for (int k = 0; k < 2; k++) lstore(y + at + 16 * k, lmul(lmul(g[k], s[k]), lload(up + at + 16 * k)));
    }
    EACH_16_AFTER(cols) {
      lanes g = LOAD(gate);
      STORE(y, lmul(lmul(g, sigmoid(g)), LOAD(up)));
    }
  }
}
// silu_slope is silu'(g) = s·(1 + g·(1 - s)) for s = sigmoid(g).
INLINE lanes silu_slope(lanes g, lanes s) {
  lanes rest;
  EACH_PART rest.v[i] = vset(1.0f) - s.v[i];
  return lmul(s, lfma(g, rest, lset(1.0f)));
}
// a = dgate, b = dup, c = dy, d = gate, e = up
static void swiglu_backward(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  int64_t cols = j->a.cols;
  EACH_ROW(j) {
    float *dgate = row_of(j->a, r), *dup = row_of(j->b, r);
    const float *dy = row_of(j->c, r), *gate = row_of(j->d, r), *up = row_of(j->e, r);
    int64_t at = 0;
    EACH_32(cols) {
      lanes g[2] = {lload(gate + at), lload(gate + at + 16)}, s[2] = {g[0], g[1]};
      sigmoid_two(s);
      for (int k = 0; k < 2; k++) {
        int64_t from = at + 16 * k;
        lanes u = lload(up + from), d = lload(dy + from);
        lstore(dup + from, lmul(d, lmul(g[k], s[k])));
        lstore(dgate + from, lmul(lmul(d, u), silu_slope(g[k], s[k])));
      }
    }
    EACH_16_AFTER(cols) {
      lanes g = LOAD(gate), u = LOAD(up), d = LOAD(dy), s = sigmoid(g);
      STORE(dup, lmul(d, lmul(g, s)));
      STORE(dgate, lmul(lmul(d, u), silu_slope(g, s)));
    }
  }
}

static void add(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  int64_t cols = j->a.cols;
  EACH_ROW(j) {
    float *y = row_of(j->a, r);
    const float *x = row_of(j->b, r);
    EACH_16(cols) STORE(y, ladd(LOAD(y), LOAD(x)));
  }
}
static void add_row(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  int64_t cols = j->a.cols;
  const float *x = row_of(j->b, 0);
  EACH_ROW(j) {
    float *y = row_of(j->a, r);
    EACH_16(cols) STORE(y, ladd(LOAD(y), LOAD(x)));
  }
}
static void scale(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  lanes f = lset(j->x);
  int64_t cols = j->a.cols; // a store might change *j as far as the compiler knows
  EACH_ROW(j) {
    float *y = row_of(j->a, r);
    EACH_16(cols) STORE(y, lmul(LOAD(y), f));
    if (j->type == BFLOAT16) {
      uint32_t *bits = (uint32_t *)y;
      for (int64_t i = 0; i < cols; i++) bits[i] = round_bits(bits[i]);
    }
  }
}
// a = dst, b = src, of any types
static void round_rows(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  EACH_ROW(j) {
    int64_t cols = j->a.cols;
    if (j->a.type == FLOAT32 && j->b.type == FLOAT32) {
      memcpy(row_of(j->a, r), row_of(j->b, r), (size_t)cols * 4);
    } else if (j->a.type == BFLOAT16 && j->b.type == BFLOAT16) {
      memcpy((uint16_t *)j->a.addr + r * j->a.stride, (uint16_t *)j->b.addr + r * j->b.stride, (size_t)cols * 2);
    } else if (j->a.type == BFLOAT16) {
      uint16_t *y = (uint16_t *)j->a.addr + r * j->a.stride;
      const float *x = row_of(j->b, r);
      for (int64_t i = 0; i < cols; i++) y[i] = round_bf16(x[i]);
    } else {
      float *y = row_of(j->a, r);
      const uint16_t *x = (const uint16_t *)j->b.addr + r * j->b.stride;
      for (int64_t i = 0; i < cols; i++) y[i] = widen_bf16(x[i]);
    }
  }
}

// tile_squares is the sum of squares of up to SUM_TILE elements.
INLINE double tile_squares(const float *x, int64_t n) {
  double s[16] = {0}; // a square of a float32 is exact in float64, so a fused add and a separate one agree
  int64_t at = 0;
  for (; at + 16 <= n; at += 16)
    for (int i = 0; i < 16; i++) s[i] += (double)x[at + i] * (double)x[at + i];
  for (int i = 0; at + i < n; i++) s[i] += (double)x[at + i] * (double)x[at + i];
  for (int width = 8; width > 0; width >>= 1)
    for (int i = 0; i < width; i++) s[i] += s[i + width];
  return s[0];
}

// A unit is some tiles of SUM_TILE elements, which lie one behind another but at a row's end; heads counts the tiles of a row, rows_per_unit those of a unit.
static void sum_squares(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  int64_t tiles = j->a.rows * j->heads, first = unit * j->rows_per_unit, last = first + j->rows_per_unit < tiles ? first + j->rows_per_unit : tiles;
  for (int64_t tile = first; tile < last; tile++) {
    int64_t row = tile / j->heads, from = tile % j->heads * SUM_TILE, n = j->a.cols - from < SUM_TILE ? j->a.cols - from : SUM_TILE;
    j->sums[tile] = tile_squares(row_of(j->a, row) + from, n);
  }
}

// values are pointers to views: newP newM newV p m v g. The sums of squares of what it writes, and with flag those of g, are made tile by tile while these are near: ADAMW_SUMS of each tile lie together, heads counts the tiles of a row.
static void adamw(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  int64_t cols = j->a.cols;
  const view *t = (const view *)j->values;
  const adamw_step *s = &j->step;
  lanes b1 = lset((float)s->beta1), c1 = lset((float)(1 - s->beta1)), b2 = lset((float)s->beta2), c2 = lset((float)(1 - s->beta2));
  lanes decay = lset((float)(1 - s->learning_rate * s->weight_decay)), minus_rate = lset((float)(-s->learning_rate / s->correction1));
  lanes eps = lset((float)s->eps), grad_scale = lset((float)s->grad_scale);
  vf root2 = vset((float)s->root_correction2);
  EACH_ROW(j) {
    double *sums = j->sums + r * j->heads * ADAMW_SUMS;
    for (int64_t from = 0; from < cols; from += SUM_TILE, sums += ADAMW_SUMS) {
      int64_t some = cols - from < SUM_TILE ? cols - from : SUM_TILE;
      float *np = row_of(t[0], r) + from, *nm = row_of(t[1], r) + from, *nv = row_of(t[2], r) + from;
      const float *p = row_of(t[3], r) + from, *m = row_of(t[4], r) + from, *v = row_of(t[5], r) + from, *grad = row_of(t[6], r) + from;
      if (j->flag) sums[3] = tile_squares(grad, some);
      EACH_16(some) {
        lanes g = lmul(LOAD(grad), grad_scale);
        lanes mm = lfma(c1, g, lmul(b1, LOAD(m)));
        lanes vv = lfma(lmul(c2, g), g, lmul(b2, LOAD(v)));
        lanes ratio;
        EACH_PART ratio.v[i] = mm.v[i] / (vsqrt(vv.v[i]) / root2 + eps.v[i]);
        lanes pp = lfma(minus_rate, ratio, lmul(decay, LOAD(p)));
        STORE(np, pp);
        STORE(nm, mm);
        STORE(nv, vv);
      }
      sums[0] = tile_squares(np, some), sums[1] = tile_squares(nm, some), sums[2] = tile_squares(nv, some);
    }
  }
}
