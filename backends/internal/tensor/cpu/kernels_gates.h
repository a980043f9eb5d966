// What stands beside the delta rule: the causal convolution, the gated norm and the gate of attention. Included once per instruction set.

// filtered is the convolution's sum before its activation: one chain over the rows that it sees, the oldest first.
#define FILTERED(sources, weights, width)                                                                                              \
  lanes s = lset(0.0f);                                                                                                               \
  for (int64_t i = 0; i < (width); i++) s = lfma(LOAD(weights[i]), LOAD(sources[i]), s)

// filter_sources gives the rows that row r of a run sees, from a channel on: of x, of what was before the run, or zeros.
INLINE void filter_sources(const conv_job *j, const state_run *run, int64_t r, int64_t from, int64_t width, const float **sources) {
  static const float zeros[CONV_TILE];
  for (int64_t i = 0; i < width; i++) {
    int64_t at = r - width + 1 + i;
    if (at >= 0) sources[i] = row_of(j->x, run->row + at) + from;
    else if (run->slot >= 0) sources[i] = row_of(j->tails, run->slot) + (at + width - 1) * j->x.cols + from;
    else sources[i] = zeros;
  }
}

static void conv(const void *job, int64_t unit, worker *w) {
  (void)w;
  const conv_job *j = job;
  int64_t tiles = div_up(j->x.cols, CONV_TILE), from = unit % tiles * CONV_TILE, width = j->weight.rows;
  int64_t some = j->x.cols - from < CONV_TILE ? j->x.cols - from : CONV_TILE;
  const state_run *run = j->runs + unit / tiles;
  const float *weights[MAX_CONV_WIDTH], *sources[MAX_CONV_WIDTH];
  for (int64_t i = 0; i < width; i++) weights[i] = row_of(j->weight, i) + from;
  for (int64_t r = 0; r < run->count; r++) {
    filter_sources(j, run, r, from, width, sources);
    float *y = row_of(j->y, run->row + r) + from;
    EACH_16(some) {
      FILTERED(sources, weights, width);
      STORE(y, lmul(s, sigmoid(s)));
    }
  }
  if (run->slot < 0) return;
  for (int64_t k = 0; k < width - 1; k++) { // what a later run will see; a source that is in the tail lies behind its place
    int64_t at = run->count - width + 1 + k;
    float *to = row_of(j->tails, run->slot) + k * j->x.cols + from;
    const float *source = at >= 0 ? row_of(j->x, run->row + at) + from : to + run->count * j->x.cols;
    memcpy(to, source, (size_t)some * 4);
  }
}

// y = dx. dx of a row is a chain over the rows that saw it, the latest first, whose dy by the sum before the activation are in a ring.
static void conv_backward(const void *job, int64_t unit, worker *w) {
  (void)w;
  const conv_job *j = job;
  int64_t tiles = div_up(j->x.cols, CONV_TILE), from = unit % tiles * CONV_TILE, width = j->weight.rows;
  int64_t some = j->x.cols - from < CONV_TILE ? j->x.cols - from : CONV_TILE;
  const state_run *run = j->runs + unit / tiles;
  const float *weights[MAX_CONV_WIDTH], *sources[MAX_CONV_WIDTH];
  float ring[MAX_CONV_WIDTH][CONV_TILE];
  for (int64_t i = 0; i < width; i++) weights[i] = row_of(j->weight, i) + from;
  for (int64_t r = 0; r < run->count + width - 1; r++) {
    float *slope = ring[r % width];
    if (r < run->count) {
      filter_sources(j, run, r, from, width, sources);
      const float *dy = row_of(j->dy, run->row + r) + from;
      EACH_16(some) {
        FILTERED(sources, weights, width);
        STORE(slope, lmul(LOAD(dy), silu_slope(s, sigmoid(s))));
      }
    } else memset(slope, 0, sizeof ring[0]);
    int64_t to = r - width + 1;
    if (to < 0) continue;
    for (int64_t i = 0; i < width; i++) sources[i] = ring[(to + width - 1 - i) % width];
    float *dx = row_of(j->y, run->row + to) + from;
    EACH_16(some) {
      FILTERED(sources, weights, width);
      STORE(dx, s);
    }
  }
}

// a = y, b = x, c = z, d = weight
static void gated_norm(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  int64_t cols = j->a.cols;
  EACH_ROW(j) {
    const float *x = row_of(j->b, r), *z = row_of(j->c, r), *weight = row_of(j->d, 0);
    float *y = row_of(j->a, r);
    lanes inv = lset(inverse_rms(x, cols, j->x));
    EACH_16(cols) {
      lanes g = LOAD(z);
      STORE(y, lmul(lmul(lmul(LOAD(x), inv), LOAD(weight)), lmul(g, sigmoid(g))));
    }
  }
}

// a = dx, b = dz, c = dy, d = x, e = z; values = weight
static void gated_norm_backward(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  int64_t cols = j->a.cols;
  const float *weight = j->values;
  EACH_ROW(j) {
    const float *dy = row_of(j->c, r), *x = row_of(j->d, r), *z = row_of(j->e, r);
    float *dx = row_of(j->a, r), *dz = row_of(j->b, r), inv1 = inverse_rms(x, cols, j->x);
    lanes sum = lset(0.0f), inv = lset(inv1);
    EACH_16(cols) { // dx holds dy·w·silu(z) until the sum is known
      lanes g = LOAD(z), s = sigmoid(g), d = lmul(LOAD(dy), LOAD(weight)), v = LOAD(x), t = lmul(d, lmul(g, s));
      STORE(dz, lmul(lmul(d, lmul(v, inv)), silu_slope(g, s)));
      sum = lfma(t, v, sum);
      STORE(dx, t);
    }
    lanes minus = lset(-(lsum(sum) / (float)cols * inv1 * inv1 * inv1));
    EACH_16(cols) STORE(dx, lfma(LOAD(x), minus, lmul(LOAD(dx), inv)));
  }
}

// a = y, b = x, c = gate
static void sigmoid_gate(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  int64_t cols = j->a.cols;
  EACH_ROW(j) {
    float *y = row_of(j->a, r);
    const float *x = row_of(j->b, r), *gate = row_of(j->c, r);
    EACH_16(cols) STORE(y, lmul(LOAD(x), sigmoid(LOAD(gate))));
  }
}
// a = dx, b = dgate, c = dy, d = x, e = gate
static void sigmoid_gate_backward(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  int64_t cols = j->a.cols;
  EACH_ROW(j) {
    float *dx = row_of(j->a, r), *dgate = row_of(j->b, r);
    const float *dy = row_of(j->c, r), *x = row_of(j->d, r), *gate = row_of(j->e, r);
    EACH_16(cols) {
      lanes s = sigmoid(LOAD(gate)), d = LOAD(dy), rest;
      EACH_PART rest.v[i] = vset(1.0f) - s.v[i];
      STORE(dgate, lmul(lmul(d, LOAD(x)), lmul(s, rest)));
      STORE(dx, lmul(d, s));
    }
  }
}
